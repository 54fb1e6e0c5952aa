"""What of an answer a reward sees."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from rollmill.tasks.rewards.item import Group, Item, Outcome, describe, failure
from rollmill.tasks.rewards.rating import Outcomes, Rater

Decode = Callable[[Sequence[int]], str]
"""From sampled token ids to text with the special tokens in it."""


class ViewRater(Rater):
    """Shows a reward the answers decoded with special tokens, or with what the template had already begun them with."""

    def __init__(self, rater: Rater, *, decode: Decode | None = None, prefilled: str | None = None) -> None:
        self._rater = rater
        self._decode = decode
        self._prefilled = prefilled

    def rate(self, groups: Sequence[Group]) -> Outcomes:
        seen = [[self._seen(item) for item in group] for group in groups]
        rated = self._rater.rate([[view for view in group if isinstance(view, Item)] for group in seen])
        rest = [iter(outcomes) for outcomes in rated]
        return [
            [view if isinstance(view, Outcome) else next(outcomes) for view in group]
            for group, outcomes in zip(seen, rest, strict=True)
        ]

    def missing_column(self, columns: Collection[str]) -> str | None:
        return self._rater.missing_column(columns)

    def _seen(self, item: Item) -> Item | Outcome:
        text = item.response
        if self._decode is not None:
            if item.token_ids is None:
                return failure("special tokens cannot be shown without the answer's token ids")
            try:
                text = self._decode(item.token_ids)
            except Exception as error:  # noqa: BLE001 - a tokenizer raises what it likes for ids it does not know
                return failure(f"the answer's tokens cannot be decoded: {describe(error)}")
        if self._prefilled is not None and item.prompt.rstrip().endswith(self._prefilled.strip()):
            text = self._prefilled + text
        return replace(item, response=text)
