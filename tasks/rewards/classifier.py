"""A Hugging Face sequence classifier: from a conversation to token ids, and from those to one number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jinja2 import TemplateError
from torch import Tensor

from rollmill.errors import JobError, PolicyError, RewardError
from rollmill.tasks.generation.policy_folders import resolve_policy
from rollmill.tasks.generation.quiet import one_line, quiet_transformers
from rollmill.tasks.rewards.item import Item

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_NO_LIMIT = 10**9  # what tokenizers say who know none is larger


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedRow:
    """One conversation as token ids; `num_beginning` of them must stay, and `num_cut` are gone already."""

    token_ids: list[int]
    type_ids: list[int]
    num_beginning: int = 0
    num_cut: int = 0

    def shortened(self, length: int) -> EncodedRow:
        """Return the row without the tokens after its beginning that are too many."""
        kept = slice(len(self.token_ids) - max(length - self.num_beginning, 0), None)
        return replace(
            self,
            token_ids=self.token_ids[: self.num_beginning] + self.token_ids[kept],
            type_ids=self.type_ids[: self.num_beginning] + self.type_ids[kept],
            num_cut=len(self.token_ids) - length,
        )


class Classifier:
    """The model, its tokenizer, and which of its logits is the reward. Not for use by two threads at once."""

    def __init__(self, model: str, *, label: int | str | None, probability: bool, dtype: str, device: str) -> None:
        from rollmill.tasks.prompts.beginning import BeginningTokens

        folder, config = find_classifier(model)
        self._label = label_index(model, config, label)
        self._probability = probability
        self._device = _device(model, device)
        self._model = _load(model, folder, _dtype(dtype, self._device)).to(self._device).eval()
        self._tokenizer = _load_tokenizer(model, folder)
        self._beginning = BeginningTokens(self._tokenizer)
        self.max_tokens = _token_limit(config, self._tokenizer.model_max_length)

    def encode(self, item: Item) -> EncodedRow:
        """Return the conversation of a prompt and its answer as token ids.

        Raises RewardError when the chat template refuses it.
        """
        if self._tokenizer.chat_template is not None:
            return self._row(self._templated(item))
        if self._tokenizer.cls_token_id is not None and self._tokenizer.sep_token_id is not None:
            # Lists of one, for a lone text takes an empty second one for none.
            encoded = self._tokenizer([item.prompt], [item.response], return_token_type_ids=True, verbose=False)
            ids, type_ids = encoded["input_ids"][0], encoded["token_type_ids"][0]
            return EncodedRow(token_ids=ids, type_ids=type_ids, num_beginning=1)
        return self._row(item.prompt + item.response + (self._tokenizer.eos_token or ""))

    @torch.inference_mode()
    def values(self, rows: Sequence[EncodedRow]) -> list[float]:
        """Return one number a row, from one batch padded on the right."""
        ids, mask = self._padded(rows)
        inputs: dict[str, Tensor] = {"input_ids": ids, "attention_mask": mask.long()}
        if any(any(row.type_ids) for row in rows):
            inputs["token_type_ids"] = self._pad([row.type_ids for row in rows], 0)[0]
        logits = self._model(**{name: tensor.to(self._device) for name, tensor in inputs.items()}).logits.float()
        if self._probability:
            logits = logits.sigmoid() if logits.shape[-1] == 1 else logits.softmax(dim=-1)
        values: list[float] = logits[:, self._label].tolist()
        return values

    def _padded(self, rows: Sequence[EncodedRow]) -> tuple[Tensor, Tensor]:
        """Return the ids, padded with an id that none of the rows holds, and the mask.

        Decoders with a classification head look for the end of a row by its ids, as the last that is not the padding
        id. With an id that no row holds, that is the last real token even where the usual one is also a real token.
        """
        used = {token_id for row in rows for token_id in row.token_ids}
        pad_id = next(token_id for token_id in range(len(used) + 1) if token_id not in used)
        self._model.config.get_text_config().pad_token_id = pad_id
        return self._pad([row.token_ids for row in rows], pad_id)

    def _pad(self, rows: Sequence[Sequence[int]], value: int) -> tuple[Tensor, Tensor]:
        lengths = torch.tensor([len(row) for row in rows])
        ids = torch.full((len(rows), int(lengths.max())), value)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = torch.tensor(row)
        return ids, torch.arange(ids.shape[1]) < lengths[:, None]

    def _row(self, text: str) -> EncodedRow:
        token_ids = self._beginning.encode(text)[1]
        begins = int(bool(token_ids) and token_ids[0] == self._tokenizer.bos_token_id)
        return EncodedRow(token_ids=token_ids, type_ids=[0] * len(token_ids), num_beginning=begins)

    def _templated(self, item: Item) -> str:
        messages = [dict(message) for message in item.messages or [{"role": "user", "content": item.prompt}]]
        if messages[-1].get("role") == "assistant":  # the policy went on with an answer that was begun
            messages[-1]["content"] = f"{messages[-1]['content']}{item.response}"
        else:
            messages.append({"role": "assistant", "content": item.response})
        try:
            return str(self._tokenizer.apply_chat_template(messages, tokenize=False))
        except (TemplateError, ValueError, TypeError, KeyError) as error:
            raise RewardError(f"the classifier's chat template refuses the conversation: {one_line(error)}") from error


def find_classifier(model: str, *, weights: bool = True) -> tuple[Path, PreTrainedConfig]:
    """Return the folder and the configuration of a sequence classifier. Raises JobError when it is none."""
    from transformers import AutoConfig

    try:
        folder = resolve_policy(model, weights=weights)
        with quiet_transformers():
            config: PreTrainedConfig = AutoConfig.from_pretrained(folder, local_files_only=True)
    except PolicyError as error:
        raise JobError(str(error).replace("policy.model", "reward model", 1)) from error
    except (OSError, ValueError) as error:
        raise JobError(f"reward model {model}: its configuration cannot be read: {one_line(error)}") from error
    kinds = [str(kind) for kind in config.architectures or ()]
    if not any(kind.endswith("ForSequenceClassification") for kind in kinds):
        raise JobError(f"reward model {model} is no sequence classifier but {', '.join(kinds) or 'of no known kind'}")
    return folder, config


def label_index(model: str, config: PreTrainedConfig, label: int | str | None) -> int:
    """Return which logit `label` means, the only one when it is None. Raises JobError when that is not clear."""
    names = {int(index): str(name) for index, name in (config.id2label or {}).items()}
    listed = ", ".join(f"{index} ({name})" for index, name in sorted(names.items()))
    if label is None and len(names) == 1:
        return 0
    if isinstance(label, int) and label in names:
        return label
    named = [index for index, name in names.items() if name == label]
    if len(named) == 1:
        return named[0]
    asked = "several logits, and label must name one" if label is None else f"no label {label!r}"
    raise JobError(f"reward model {model} has {asked}: {listed}")


def _load(model: str, folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    from transformers import AutoModelForSequenceClassification

    try:
        with quiet_transformers():
            network, report = AutoModelForSequenceClassification.from_pretrained(
                folder, dtype=dtype, trust_remote_code=False, local_files_only=True, output_loading_info=True
            )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise JobError(f"reward model {model}: its weights cannot be loaded: {one_line(error)}") from error
    if report["missing_keys"]:
        raise JobError(f"reward model {model}: its weights lack {', '.join(sorted(report['missing_keys'])[:5])}")
    network.config.use_cache = False
    loaded: PreTrainedModel = network
    return loaded


def _load_tokenizer(model: str, folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        with quiet_transformers():
            return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise JobError(f"reward model {model}: its tokenizer cannot be loaded: {one_line(error)}") from error


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return _DTYPES[name]


def _device(model: str, name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise JobError(f"reward model {model}: {name} is not there; this machine has {torch.cuda.device_count()} GPUs")
    return device


def _token_limit(config: PreTrainedConfig, tokenizers_limit: int) -> int | None:
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    limits = [limit for limit in (positions, tokenizers_limit) if isinstance(limit, int) and 0 < limit < _NO_LIMIT]
    return min(limits, default=None)
