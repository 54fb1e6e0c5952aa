"""Which models run through `packed_attention`, found from the config alone or by one small forward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel

from rollmill.errors import PolicyError
from rollmill.tasks.generation.kv_cache import KVShape

_PROBE_NAME = "rollmill_probe"


def check_config(config: PreTrainedConfig, max_seq_len: int | None = None) -> None:
    """Raise PolicyError when a config names a kind of attention that rollmill cannot honour."""
    values = config.get_text_config().to_dict()
    if config.is_encoder_decoder:
        raise PolicyError(f"{config.model_type} is an encoder-decoder; rollmill runs decoder-only causal LMs")
    kinds = set(values.get("layer_types") or ()) - {"full_attention", "sliding_attention"}
    if kinds:
        names = ", ".join(sorted(kinds))
        raise PolicyError(f"{config.model_type} has {names} layers; rollmill runs full attention only")
    if values.get("attn_logit_softcapping") is not None:
        raise PolicyError(f"{config.model_type} caps attention scores, which rollmill does not support")
    _check_window(config.model_type, _sliding_window(values), max_seq_len or values.get("max_position_embeddings"))


def _sliding_window(values: dict[str, Any]) -> int | None:
    kinds = values.get("layer_types")
    used = values.get("use_sliding_window", True) and (kinds is None or "sliding_attention" in kinds)
    return values.get("sliding_window") if used else None


def _check_window(name: str, window: int | None, max_seq_len: int | None) -> None:
    if window is not None and (max_seq_len is None or window < max_seq_len):
        raise PolicyError(
            f"{name} attends to a sliding window of {window} tokens, which rollmill does not support; "
            f"it runs with engine.max_seq_len at most {window}, where the window changes nothing"
        )


def probe_kv_shape(model: PreTrainedModel, max_seq_len: int) -> KVShape:
    """Run one token through the model; return the shape of each layer's keys.

    Raises PolicyError when a layer does not attend through transformers' attention interface, or asks for a sliding
    window shorter than `max_seq_len`, capped scores or attention sinks.
    """
    seen: dict[int, tuple[int, int]] = {}
    repeats: set[int] = set()
    name = model.config.model_type

    def record(
        module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, _mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, None]:
        _check_window(name, options.get("sliding_window"), max_seq_len)
        for option in ("softcap", "s_aux", "position_bias"):
            if options.get(option) is not None:
                raise PolicyError(f"{name} uses {option} in its attention, which rollmill does not support")
        if key.shape != value.shape:
            raise PolicyError(f"{name} has keys and values of different sizes, which rollmill does not support")
        repeats.add(query.shape[1] // key.shape[1])
        seen[int(module.layer_idx)] = (key.shape[1], key.shape[3])  # type: ignore[arg-type]
        return torch.zeros_like(query).transpose(1, 2), None

    AttentionInterface.register(_PROBE_NAME, record)
    previous = model.config._attn_implementation
    model.config._attn_implementation = _PROBE_NAME
    try:
        with torch.inference_mode():
            model(input_ids=torch.zeros((1, 1), dtype=torch.int64, device=model.device), use_cache=False)
    finally:
        model.config._attn_implementation = previous
    expected = int(model.config.get_text_config().num_hidden_layers)
    if sorted(seen) != list(range(expected)):
        raise PolicyError(
            f"{name}: only {len(seen)} of {expected} layers attend through transformers' attention interface, "
            "which rollmill needs"
        )
    return KVShape(
        layers=tuple(seen[layer] for layer in range(expected)),
        queries_per_key=min(repeats),
        dtype=model.dtype,
        device=model.device,
    )
