"""Attention of a packed step: each row attends to its group's one stored prompt and to its own tokens.

A step packs the last token of every active row and the whole prompts that are being prefilled into one sequence of
batch size 1. The model's own modules run over it unchanged; only this function knows which token belongs to whom.
On a CPU a compiled pass goes over both kinds of keys (`row_attention`). Elsewhere attention over the prompt and over a
row's own tokens are computed apart and merged by their log-sum-exp (Dao et al., "FlashAttention", 2022, section 3.1;
Juravsky et al., "Hydragen", 2024).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from rollmill.errors import PolicyError
from rollmill.tasks.generation.kv_cache import PrefixClass, PrefixSlot, SuffixCache
from rollmill.tasks.generation.row_attention import attend_rows

ATTENTION_NAME = "rollmill"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixRows:
    """The rows of one length class of prompts, prompt by prompt."""

    store: PrefixClass
    rows: Tensor  # (n,) int64
    prompts: Tensor  # (n,) int64, the slot of each row's prompt
    lengths: Tensor  # (prompts,) int64


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixLanes:
    """The rows of one length class of prompts, as (prompts, lanes); short groups repeat a row in their spare lanes."""

    store: PrefixClass
    length: int  # tokens attended to, rounded up
    rows: Tensor  # (prompts * lanes,) the row that each lane computes
    num_lanes: int
    mask: Tensor  # (prompts, 1, 1, length) added to the scores


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductLayout:
    """What matrix products need to know of a step's rows."""

    suffix_length: int  # tokens attended to, rounded up
    suffix_mask: Tensor  # (rows, 1, 1, suffix_length) added to the scores
    lanes: list[PrefixLanes]
    row_to_lane: Tensor  # (rows,) place of each row in the lanes of all classes, one after the other


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillSegment:
    """One prompt's tokens within the packed sequence."""

    start: int
    slot: PrefixSlot


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLayout:
    """Which token of the packed sequence is whose: rows first, then prompts, then padding."""

    num_rows: int
    num_tokens: int
    suffix: SuffixCache
    suffix_lengths: Tensor  # (rows,) int64, tokens that each row has of its own, the new one included
    prefixes: list[PrefixRows]  # for the compiled pass, where there is one
    segments: list[PrefillSegment]
    products: ProductLayout | None  # where there is none


@contextmanager
def packed_attention(model: PreTrainedModel) -> Iterator[None]:
    """Route the model's attention through this module, and put back what was there."""
    previous = model.config._attn_implementation
    model.config._attn_implementation = ATTENTION_NAME
    try:
        yield
    finally:
        model.config._attn_implementation = previous


def attend_packed(
    module: torch.nn.Module,
    query: Tensor,  # (1, heads, tokens, head_dim)
    key: Tensor,  # (1, kv_heads, tokens, head_dim)
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 - the layout says who sees whom
    *,
    rollmill_layout: StepLayout,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend over a packed step; return (1, tokens, heads, head_dim). Registered with transformers by name."""
    if softcap is not None or s_aux is not None:
        raise PolicyError("this model caps attention scores or has attention sinks, which rollmill does not support")
    layout, layer = rollmill_layout, int(module.layer_idx)  # type: ignore[arg-type]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    query, key, value = query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1)
    output = torch.zeros_like(query)  # (tokens, heads, head_dim)
    if rows := layout.num_rows:
        output[:rows] = _attend_rows(layout, layer, query[:rows], key[:rows], value[:rows], scale)
    for segment in layout.segments:
        part = slice(segment.start, segment.start + segment.slot.length)
        output[part] = _attend_prompt(segment.slot, layer, query[part], key[part], value[part], scale)
    return output[None], None


def _attend_rows(layout: StepLayout, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    rows, kv_heads, head_dim = key.shape
    grouped = query.reshape(rows, kv_heads, -1, head_dim)  # heads that share a key lie side by side
    keys, values = layout.suffix.keys[layer], layout.suffix.values[layer]
    if layout.products is not None:
        slots, places = torch.arange(rows, device=key.device), layout.suffix_lengths - 1
        keys[slots, :, places] = key
        values[slots, :, places] = value
        output = _attend_by_products(layout.products, layer, grouped, keys[:rows], values[:rows], scale)
    else:
        parts = (
            (part.rows, part.prompts, part.store.keys[layer], part.store.values[layer], part.lengths)
            for part in layout.prefixes
        )
        output = attend_rows(grouped, key, value, keys, values, layout.suffix_lengths, scale, parts)
    return output.reshape(rows, -1, head_dim)


def _attend_by_products(
    layout: ProductLayout, layer: int, grouped: Tensor, keys: Tensor, values: Tensor, scale: float
) -> Tensor:
    shared, shared_lse = _attend_prefixes(layout.lanes, layer, grouped, scale)
    shared, shared_lse = shared[layout.row_to_lane], shared_lse[layout.row_to_lane]
    length = layout.suffix_length
    own, own_lse = attend(grouped, keys[:, :, :length], values[:, :, :length], layout.suffix_mask, scale)
    weight = torch.sigmoid(shared_lse - own_lse).float().unsqueeze(-1)
    return (own + (shared - own) * weight).to(grouped.dtype)


def _attend_prefixes(prefixes: list[PrefixLanes], layer: int, grouped: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Multiply the queries of each group with its prompt's keys together; return a result for every lane."""
    outputs, lses = [], []
    _, kv_heads, repeats, head_dim = grouped.shape
    for lanes in prefixes:
        prompts = lanes.mask.shape[0]
        queries = grouped[lanes.rows].view(prompts, lanes.num_lanes, kv_heads, repeats, head_dim)
        queries = queries.transpose(1, 2).reshape(prompts, kv_heads, lanes.num_lanes * repeats, head_dim)
        keys = lanes.store.keys[layer][:prompts, :, : lanes.length]
        values = lanes.store.values[layer][:prompts, :, : lanes.length]
        output, lse = attend(queries, keys, values, lanes.mask, scale)
        output = output.view(prompts, kv_heads, lanes.num_lanes, repeats, head_dim).transpose(1, 2)
        outputs.append(output.reshape(-1, kv_heads, repeats, head_dim))
        lse = lse.view(prompts, kv_heads, lanes.num_lanes, repeats).transpose(1, 2)
        lses.append(lse.reshape(-1, kv_heads, repeats))
    return (outputs[0], lses[0]) if len(outputs) == 1 else (torch.cat(outputs), torch.cat(lses))


def _attend_prompt(slot: PrefixSlot, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
    slot.write(layer, key, value)
    output = torch.nn.functional.scaled_dot_product_attention(
        query[None], key[None], value[None], is_causal=True, scale=scale, enable_gqa=query.shape[0] != key.shape[0]
    )
    return output[0].transpose(0, 1)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return (output, log-sum-exp of the scores in float64) with float32 sums.

    query (batch, heads, queries, dim), key and value (batch, heads, length, dim), mask (batch, 1, 1, length) float32.
    Reduced precision on a CPU takes the fused kernel, which keeps scores in float32; float32 takes plain matrix
    products, whose rows come out bit for bit the same whatever else is in the batch, as the fused kernel's do not.
    float64 makes the few logarithms a row agree too, which vector and scalar code round differently in float32.
    """
    if query.dtype != torch.float32 and query.device.type == "cpu":
        full_mask = mask.expand(-1, 1, query.shape[2], -1)
        output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, False, attn_mask=full_mask, scale=scale
        )
        return output, lse.double()
    scores = torch.matmul(query, key.transpose(-1, -2)).float().mul_(scale).add_(mask)
    top = scores.amax(-1, keepdim=True)
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True)
    output = torch.matmul(weights.to(value.dtype), value) / total
    return output, (top.double() + total.double().log()).squeeze(-1)


AttentionInterface.register(ATTENTION_NAME, attend_packed)
