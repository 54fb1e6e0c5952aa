"""Reading a trainer's batch, as its dataloader gives it, into prompts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from rollmill.tasks.prompts.prompt import Content, Prompt, to_json

_CONTENT_KEYS = ("input_ids", "prompts", "messages", "prompt")
_MASK_KEYS = ("attention_mask", "prompt_mask")
_ID_KEYS = ("prompt_ids", "prompt_id")


def batch_prompts(batch: Mapping[str, Any]) -> list[Prompt]:
    """Return the prompts of a batch; every key that is neither content, mask nor id becomes a column.

    The first of `input_ids` or `prompts` ([B, P] tensor or B lists of ids, with an optional `attention_mask`; `prompts`
    may also be B strings or conversations), `messages` (B conversations) and `prompt` (B strings or conversations) that
    is there holds the prompts. `prompt_ids` names them; without it a prompt's id is the hash of its content and place.
    Raises ValueError when there is none, or when lengths disagree.
    """
    key = next((name for name in _CONTENT_KEYS if name in batch), None)
    if key is None:
        raise ValueError(
            f"a batch needs one of {', '.join(_CONTENT_KEYS)}; this one has {', '.join(batch) or 'no keys'}"
        )
    contents = _contents(batch, key)
    names = next((name for name in _ID_KEYS if name in batch), None)
    ids = [_content_id(content, place) for place, content in enumerate(contents)] if names is None else batch[names]
    special = {key, names, *_MASK_KEYS}
    columns = {name: _as_list(values) for name, values in batch.items() if name not in special}
    for name, values in {**columns, "prompt_ids": ids}.items():
        if len(values) != len(contents):
            raise ValueError(f"batch[{name!r}] has {len(values)} entries for {len(contents)} prompts")
    return [
        Prompt(
            prompt_id=str(ids[place]),
            content=content,
            columns={name: values[place] for name, values in columns.items()},
        )
        for place, content in enumerate(contents)
    ]


def _contents(batch: Mapping[str, Any], key: str) -> Sequence[Content]:
    values = batch[key]
    mask = next((batch[name] for name in _MASK_KEYS if name in batch), None)
    if mask is None:
        contents: Sequence[Content] = _as_list(values)
        return contents
    pairs = zip(_as_list(values), _as_list(mask), strict=True)
    return [[token for token, keep in zip(row, kept, strict=True) if keep] for row, kept in pairs]


def _as_list(values: Any) -> list[Any]:
    return values.tolist() if isinstance(values, Tensor) else list(values)


def _content_id(content: Content, place: int) -> str:
    return hashlib.blake2b(f"{place}\x00{to_json(content)}".encode(), digest_size=16).hexdigest()
