"""Weights in the order in which oneDNN's kernels read them, for a model that will not be trained.

A plain matrix product on a CPU rearranges its weights each time, which costs as much as the product when only some
tens of rows go through. The packed kernels also round a row the same in every batch of 16 rows and more, in bfloat16
too.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rollmill.tasks.generation.fused_modules import fused_form

_TYPICAL_ROWS = 64
_TYPES = (torch.float32, torch.bfloat16)


class PackedLinear(nn.Module):
    """What an `nn.Linear` computes, from a packed copy of its weight; it holds no parameters."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _TYPICAL_ROWS)
        self._bias = None if linear.bias is None else linear.bias.detach().clone()

    def forward(self, states: Tensor) -> Tensor:
        """Return (..., out_features) for (..., in_features)."""
        rows = states.reshape(-1, self.in_features)
        output = torch.ops.mkldnn._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
        return torch.as_tensor(output).view(*states.shape[:-1], self.out_features)


def pack_weights(model: nn.Module) -> int:
    """Replace the model's `nn.Linear` modules where packing pays, for good; return how many are packed.

    The modules around them are fused where that changes nothing (`fused_modules`). The weights are gone from the
    model's parameters afterwards, so it can neither be trained nor saved. Nothing happens on a GPU, in float16, or
    where torch has no oneDNN.
    """
    if not all(_can_pack(parameter) for parameter in model.parameters()):
        return 0
    with torch.inference_mode():
        count = _pack(model)
    _leave_file(model)
    return count


def _pack(parent: nn.Module) -> int:
    count = 0
    for name, child in parent.named_children():
        module = fused_form(child) or child
        count += _pack(module)
        if type(module) is nn.Linear:
            module, count = PackedLinear(module), count + 1
        setattr(parent, name, module)
    return count


def _leave_file(model: nn.Module) -> None:
    """Copy what parameters are left: as views of a mapped file they would keep all of it in memory."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def _can_pack(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or weight.dtype not in _TYPES or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return weight.dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
