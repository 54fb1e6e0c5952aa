"""A model's norms, gated MLPs and rotary attention with their small operations fused, for a CPU.

Between two matrix products of a small model lie tens of elementwise operations, and calling them costs more than
computing them. A fused module takes the place of the model's own only where it computes the same, which is seen by
running both on random states; whatever differs, by architecture or option, stays as it is.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rollmill.tasks.generation.row_threads import as_array, run_on_rows

_PROBE_NAME = "rollmill_fusion_probe"
_PROBE_TOKENS = 24
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
_ROWS_PER_THREAD = 512  # of fewer, handing some to a second thread costs more than it saves


class FusedNorm(nn.Module):
    """RMSNorm (Zhang and Sennrich, 2019) over the last dimension, rounded once."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight: nn.Parameter = norm.weight
        self._epsilon = np.float32(norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps)
        self._factors = self.weight.detach().float().numpy().copy()

    def forward(self, states: Tensor) -> Tensor:
        """Return (..., width) for (..., width)."""
        output = torch.empty_like(states, memory_format=torch.contiguous_format)
        rows = as_array(states.reshape(-1, states.shape[-1]))
        arguments = (rows, self._factors, self._epsilon, as_array(output).reshape(rows.shape))
        run_on_rows("norm_part", len(rows), arguments, _ROWS_PER_THREAD)
        return output


class FusedGatedMLP(nn.Module):
    """SwiGLU (Shazeer, 2020) whose gate and up projections are one product."""

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.gate_up_proj = _joined(mlp.gate_proj, mlp.up_proj)
        self.down_proj = mlp.down_proj

    def forward(self, states: Tensor) -> Tensor:
        """Return (..., hidden) for (..., hidden)."""
        both = self.gate_up_proj(states)
        width = both.shape[-1] // 2
        output = torch.empty(*both.shape[:-1], width, dtype=both.dtype)
        rows = as_array(both.reshape(-1, 2 * width))
        arguments = (rows, as_array(output).reshape(-1, width))
        run_on_rows("gate_part", len(rows), arguments, _ROWS_PER_THREAD)
        return torch.as_tensor(self.down_proj(output))


class FusedAttention(nn.Module):
    """Attention with rotary positions (Su et al., "RoFormer", 2021) whose three projections are one product."""

    def __init__(self, attention: Any, options: dict[str, Any]) -> None:
        super().__init__()
        self.config, self.layer_idx = attention.config, attention.layer_idx
        self.head_dim: int = attention.head_dim
        self.num_key_value_groups, self.is_causal = attention.num_key_value_groups, attention.is_causal
        self.qkv_proj = _joined(attention.q_proj, attention.k_proj, attention.v_proj)
        self.o_proj = attention.o_proj
        self._heads: int = attention.q_proj.out_features // self.head_dim
        self._kv_heads: int = attention.k_proj.out_features // self.head_dim
        self._options = options

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        cache: Any = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Return (batch, tokens, hidden) and what weights the attention function gives."""
        shape = hidden_states.shape[:2]
        states = self._rotated(self.qkv_proj(hidden_states), *position_embeddings)
        query, key, value = (part.view(*shape, -1, self.head_dim).transpose(1, 2) for part in states)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        mixed, weights = attend(self, query, key, value, attention_mask, **self._options, **options)
        return self.o_proj(mixed.reshape(*shape, -1)), weights

    def _rotated(self, states: Tensor, cosines: Tensor, sines: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows = states.reshape(-1, states.shape[-1])
        angles = [angle.expand(*states.shape[:2], -1).reshape(len(rows), -1) for angle in (cosines, sines)]
        query = states.new_empty(len(rows), self._heads, self.head_dim)
        key, value = (states.new_empty(len(rows), self._kv_heads, self.head_dim) for _ in range(2))
        arguments = tuple(as_array(tensor) for tensor in (rows, *angles, query, key, value))
        run_on_rows("rotate_part", len(rows), arguments, _ROWS_PER_THREAD)
        return query, key, value


def fused_form(module: Any) -> nn.Module | None:
    """Return a fused module that computes what `module` does in inference on a CPU, or None where there is none.

    Linear modules are shared with `module` or joined from its own.
    """
    children = {name: type(child) for name, child in module.named_children()}
    linear = {name for name, kind in children.items() if kind is nn.Linear}
    kind = type(module).__name__
    if kind.endswith("RMSNorm") and _is_plain_norm(module):
        return _if_equal(module, FusedNorm(module), len(module.weight))
    if kind.endswith("MLP") and linear == {"gate_proj", "up_proj", "down_proj"}:
        return _if_equal(module, FusedGatedMLP(module), module.gate_proj.in_features)
    if kind.endswith("Attention") and set(children) == linear == {"q_proj", "k_proj", "v_proj", "o_proj"}:
        return _fused_attention(module)
    return None


def _is_plain_norm(module: nn.Module) -> bool:
    own = {name for name, _ in module.named_parameters()}
    return own == {"weight"} and (hasattr(module, "variance_epsilon") or hasattr(module, "eps"))


def _if_equal(module: nn.Module, fused: nn.Module, width: int) -> nn.Module | None:
    states = _random((1, _PROBE_TOKENS, width), module)
    return fused if _close(fused(states), module(states)) else None


def _fused_attention(module: Any) -> FusedAttention | None:
    parameters = inspect.signature(module.forward).parameters
    needed = ("layer_idx", "head_dim", "num_key_value_groups", "is_causal", "config")
    if not {"position_embeddings", "cache"} <= parameters.keys() or not all(hasattr(module, name) for name in needed):
        return None
    if module.config._attn_implementation not in ALL_ATTENTION_FUNCTIONS:
        return None  # "eager" is a function of the model's own
    states = _random((1, _PROBE_TOKENS, module.q_proj.in_features), module)
    angles = _random((1, _PROBE_TOKENS, module.head_dim // 2), module).repeat(1, 1, 2)
    turn = (angles.cos(), angles.sin())
    own, options = _attended(module, states, turn)
    fused = FusedAttention(module, options)
    ours, _ = _attended(fused, states, turn)
    return fused if all(map(_close, ours, own)) else None


def _attended(module: Any, states: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[list[Tensor], dict[str, Any]]:
    """Return query, key, value and output of an attention module whose attention gives back its queries, and what
    options it calls attention with."""
    seen: list[Tensor] = []
    options: dict[str, Any] = {}

    def record(
        _module: nn.Module, query: Tensor, key: Tensor, value: Tensor, _mask: Tensor | None, **given: Any
    ) -> tuple[Tensor, None]:
        seen.extend((query, key, value))
        options.update(given)
        return query.transpose(1, 2), None

    AttentionInterface.register(_PROBE_NAME, record)
    config = module.config
    previous, config._attn_implementation = config._attn_implementation, _PROBE_NAME
    try:
        output = module(hidden_states=states, position_embeddings=turn, attention_mask=None)[0]
    finally:
        config._attn_implementation = previous
    return [*seen, output], options


def _close(ours: Tensor, own: Tensor) -> bool:
    tolerance = _TOLERANCE[own.dtype]
    return ours.shape == own.shape and torch.allclose(ours, own, rtol=tolerance, atol=tolerance * float(own.std()))


def _random(shape: tuple[int, ...], module: nn.Module) -> Tensor:
    dtype = next(module.parameters()).dtype
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def _joined(*parts: Any) -> nn.Linear:
    """Return one linear module whose outputs are those of all parts, one after the other."""
    weight = torch.cat([part.weight.detach() for part in parts])
    joined = nn.Linear(weight.shape[1], weight.shape[0], bias=parts[0].bias is not None, device="meta")
    joined.weight = nn.Parameter(weight, requires_grad=False)
    if parts[0].bias is not None:
        joined.bias = nn.Parameter(torch.cat([part.bias.detach() for part in parts]), requires_grad=False)
    return joined
