"""Reward `model`: a Hugging Face sequence classifier scores conversations."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from rollmill.errors import RewardError
from rollmill.tasks.rewards.base import BaseRewardModel
from rollmill.tasks.rewards.classifier import Classifier, EncodedRow
from rollmill.tasks.rewards.item import Group, Item, Outcome, failure, outcome_of
from rollmill.tasks.rewards.rating import BatchRater, Outcomes

TooLong = Literal["fail", "truncate"]


class SequenceClassifier(BaseRewardModel):
    """The logit that a sequence classifier gives to a prompt and its answer.

    The conversation goes through the classifier's own chat template, with exactly one beginning-of-sequence token. A
    tokenizer without a template gets the two texts as a pair if it knows pairs, else joined and closed by its end
    token. The logit is read at the row's last real token, whatever its id.

    model            a local folder, a Hugging Face hub id or an s3:// folder
    label            which logit, by number or name; needed when there are several
    probability      the sigmoid of a single logit, or the softmax over several, instead of the logit
    dtype, device    auto is bfloat16 on a GPU and float32 on a CPU; auto is the first GPU when there is one
    max_tokens       longest row; the classifier's own limit when that is smaller
    too_long         a longer row fails by name, or loses tokens after its beginning
    tokens_per_batch most tokens, padding included, that go through the classifier at once; rows of like length together

    Raises JobError when there is no such classifier.

        >>> import tempfile
        >>> from transformers import BertConfig, BertForSequenceClassification, BertTokenizer
        >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "2+2?", "4", "5"]
        >>> sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
        >>> network = BertForSequenceClassification(BertConfig(vocab_size=len(words), num_labels=1, **sizes))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     network.save_pretrained(folder)
        ...     _ = BertTokenizer(vocab={word: i for i, word in enumerate(words)}).save_pretrained(folder)
        ...     SequenceClassifier(folder, probability=True).score(["2+2?"], [["4", "5"]]).shape
        torch.Size([1, 2])
    """

    def __init__(
        self,
        model: str,
        *,
        label: int | str | None = None,
        probability: bool = False,
        dtype: str = "auto",
        device: str = "auto",
        max_tokens: int | None = None,
        too_long: TooLong = "fail",
        tokens_per_batch: int = 16384,
    ) -> None:
        self._classifier = Classifier(model, label=label, probability=probability, dtype=dtype, device=device)
        limits = [limit for limit in (max_tokens, self._classifier.max_tokens) if limit is not None]
        self._max_tokens = min(limits, default=None)
        self._too_long = too_long
        self._tokens_per_batch = tokens_per_batch
        self._lock = threading.Lock()

    def score(
        self,
        prompts: list[str],
        responses: list[list[str]],
        prompt_messages: Sequence[Sequence[Mapping[str, Any]] | None] | None = None,
        *_: Any,
        **columns: Any,  # noqa: ARG002 - what a classifier sees is the conversation alone
    ) -> Tensor:
        """Return [B, G] float32. Raises RewardError when a row is too long, or cannot be put into the template."""
        messages = prompt_messages or [None] * len(prompts)
        groups = [
            [Item(prompt=prompt, response=text, messages=own) for text in group]
            for prompt, group, own in zip(prompts, responses, messages, strict=True)
        ]
        rows = [[_value_of(outcome) for outcome in group] for group in self.rate(groups)]
        return torch.tensor(rows, dtype=torch.float32)

    def rate(self, groups: Sequence[Group]) -> Outcomes:
        """Return one outcome an answer; one that lost tokens says how many under `tokens_cut`."""
        encoded = [[self._encode(item) for item in group] for group in groups]
        rows = [row for group in encoded for row in group if isinstance(row, EncodedRow)]
        with self._lock:
            values = iter(self._values(rows))
        return [
            [row if isinstance(row, Outcome) else _outcome(row, next(values)) for row in group] for group in encoded
        ]

    def _encode(self, item: Item) -> EncodedRow | Outcome:
        try:
            row = self._classifier.encode(item)
        except RewardError as error:
            return failure(str(error))
        if self._max_tokens is None or len(row.token_ids) <= self._max_tokens:
            return row
        if self._too_long == "truncate":
            return row.shortened(self._max_tokens)
        return failure(f"the conversation has {len(row.token_ids)} tokens, more than the limit of {self._max_tokens}")

    def _values(self, rows: Sequence[EncodedRow]) -> list[float]:
        """Return the rows' values in their order, computed longest first."""
        order = sorted(range(len(rows)), key=lambda index: -len(rows[index].token_ids))
        values = [0.0] * len(rows)
        start = 0
        while start < len(order):
            longest = len(rows[order[start]].token_ids)
            batch = order[start : start + max(1, self._tokens_per_batch // max(1, longest))]
            for index, value in zip(batch, self._classifier.values([rows[i] for i in batch]), strict=True):
                values[index] = value
            start += len(batch)
        return values


class ClassifierRater(BatchRater):
    """Rates by a `SequenceClassifier`, each row's failure its own."""

    def __init__(self, classifier: SequenceClassifier) -> None:
        super().__init__()
        self._classifier = classifier

    def rate_batch(self, groups: Sequence[Group]) -> Outcomes:
        return self._classifier.rate(groups)


def _outcome(row: EncodedRow, value: float) -> Outcome:
    return outcome_of(value, {"tokens_cut": float(row.num_cut)} if row.num_cut else None)


def _value_of(outcome: Outcome) -> float:
    if outcome.value is None:
        raise RewardError(str(outcome.reason))
    return outcome.value
