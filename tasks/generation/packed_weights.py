"""Weights in the order in which oneDNN's kernels read them, for a model that will not be trained.

A plain matrix product on a CPU rearranges its weights each time, which costs as much as the product when only some
tens of rows go through. The packed kernels also round a row the same in every batch of 16 rows and more, in bfloat16
too.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

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
    """Replace the model's `nn.Linear` modules where packing pays, for good; return how many.

    The weights are gone from the model's parameters afterwards, so it can neither be trained nor saved. Nothing happens
    on a GPU, in float16, or where torch has no oneDNN.
    """
    wanted = [name for name, module in model.named_modules() if type(module) is nn.Linear and _can_pack(module)]
    for name in wanted:
        parent_name, _, own_name = name.rpartition(".")
        parent = model.get_submodule(parent_name)
        linear = getattr(parent, own_name)
        with torch.inference_mode():
            setattr(parent, own_name, PackedLinear(linear))
    if wanted:
        _leave_file(model)
    return len(wanted)


def _leave_file(model: nn.Module) -> None:
    """Copy what parameters are left: as views of a mapped file they would keep all of it in memory."""
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def _can_pack(linear: nn.Linear) -> bool:
    weight = linear.weight
    if weight.device.type != "cpu" or weight.dtype not in _TYPES or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return weight.dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
