"""Pairs of a better and a worse answer to one prompt, for preference training."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rollmill.errors import JobError
from rollmill.tasks.selection.groups import (
    Groups,
    best_first,
    num_tokens_of,
    places_in_groups,
    rewards_of,
    worst_first,
)
from rollmill.tasks.selection.reasons import (
    IDENTICAL_TEXTS,
    LENGTH_RATIO,
    MARGIN,
    NOT_IN_PAIR,
    SINGLE_ANSWER,
    TIE,
)
from rollmill.tasks.selection.row_filters import scored
from rollmill.tasks.selection.selected import Selected, added

PairStrategy = Literal["max_min", "max_random", "adjacent"]
_SHARED = ["run_id", "prompt_id", "policy_version", "prompt_text", "metadata"]
_OWN = ["sample_index", "reward", "response_text", "num_tokens"]
_ROUNDING = 1e-9  # 0.3 - 0.2 is a margin of 0.1

_USED, _UNUSED = 0, 1
_FAULTS = (TIE, IDENTICAL_TEXTS, MARGIN, LENGTH_RATIO)
_STATES = ("", NOT_IN_PAIR, SINGLE_ANSWER, *_FAULTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRule:
    """Which answers make a pair.

    strategy          max_min pairs the best answer with the worst, max_random with a random worse one, adjacent each
                      answer with the next in the order of rewards
    min_margin        least difference of the two rewards; equal rewards never make a pair
    max_length_ratio  most times that one of the two may have as many tokens as the other; None for any
    seed              another seed draws other partners for max_random

    Raises JobError for a value out of bounds.
    """

    strategy: PairStrategy = "max_min"
    min_margin: float = 0.0
    max_length_ratio: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.strategy not in get_args(PairStrategy):
            raise JobError(f"pairs must be one of {', '.join(get_args(PairStrategy))}, got {self.strategy!r}")
        if not self.min_margin >= 0:
            raise JobError(f"min_margin must be at least 0, got {self.min_margin:g}")
        if self.max_length_ratio is not None and not self.max_length_ratio >= 1:
            raise JobError(f"max_length_ratio must be at least 1, got {self.max_length_ratio:g}")


def dpo_pairs(table: pa.Table, rule: PairRule | None = None) -> Selected:
    """Return pairs of scored answers to one prompt of one run, as rows with what both have in common and `chosen_…`
    and `rejected_…` sample_index, reward, response_text and num_tokens.

    Equal rewards and identical texts never make a pair. Of equal rewards the lower sample_index stands for them. A row
    that is in no pair counts under the reason for which its own pair, or its prompt's, was refused.
    """
    return scored(table).then(lambda rows: _paired(rows, rule or PairRule()))


def _paired(table: pa.Table, rule: PairRule) -> Selected:
    groups = Groups.of(table)
    order = best_first(table, groups)
    better, worse = _candidates(table, groups, order, rule)
    faults = _faults(table, better, worse, rule)
    good = faults == _USED
    if rule.strategy == "max_random":
        good &= _drawn(table, groups, better, worse, good, rule.seed)
    states = _states_of_rows(groups, better, worse, faults)
    states[better[good]], states[worse[good]] = _USED, _USED
    counts = np.bincount(states, minlength=len(_STATES)).tolist()
    return Selected(
        table=_pair_table(table, better[good], worse[good]),
        num_input=table.num_rows,
        num_kept=counts[_USED],
        dropped=added({}, {_STATES[state]: number for state, number in enumerate(counts) if state != _USED}),
    )


def _candidates(
    table: pa.Table, groups: Groups, order: NDArray[np.int64], rule: PairRule
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of possible pairs, better and worse, that the strategy looks at."""
    places = places_in_groups(groups, order)[order]
    if rule.strategy == "adjacent":
        following = np.flatnonzero(places > 0)
        return order[following - 1], order[following]
    firsts, sizes = order[places == 0], np.bincount(groups.numbers, minlength=groups.count)
    if rule.strategy == "max_min":
        several = sizes > 1
        return firsts[several], worst_first(table, groups)[places == 0][several]
    return np.repeat(firsts, sizes - 1), order[places > 0]


def _faults(table: pa.Table, better: NDArray[np.int64], worse: NDArray[np.int64], rule: PairRule) -> NDArray[np.int64]:
    """Return for each possible pair 0, or the state of `_STATES` that says why it is none."""
    rewards, lengths = rewards_of(table), num_tokens_of(table)
    texts = table["response_text"].combine_chunks()
    difference = rewards[better] - rewards[worse]
    shorter, longer = np.minimum(lengths[better], lengths[worse]), np.maximum(lengths[better], lengths[worse])
    holds = {
        TIE: difference <= 0,
        IDENTICAL_TEXTS: pc.equal(texts.take(pa.array(better)), texts.take(pa.array(worse))).to_numpy(False),
        MARGIN: difference < rule.min_margin - _ROUNDING,
        LENGTH_RATIO: longer > shorter * (np.inf if rule.max_length_ratio is None else rule.max_length_ratio),
    }
    states = [_STATES.index(fault) for fault in _FAULTS]
    faults: NDArray[np.int64] = np.select([holds[fault] for fault in _FAULTS], states, _USED).astype(np.int64)
    return faults


def _states_of_rows(
    groups: Groups, better: NDArray[np.int64], worse: NDArray[np.int64], faults: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the state of every row if no pair were made: the fault of its own pair, or else of its prompt's last."""
    sizes = np.bincount(groups.numbers, minlength=groups.count)
    of_group = np.where(sizes == 1, _STATES.index(SINGLE_ANSWER), _UNUSED)
    faulty = faults != _USED
    last = np.full(groups.count, _UNUSED)
    last[groups.numbers[better[faulty]]] = faults[faulty]
    paired = np.zeros(groups.count, dtype=bool)
    paired[groups.numbers[better[~faulty]]] = True
    states: NDArray[np.int64] = np.where(paired | (sizes == 1), of_group, last)[groups.numbers]
    states[worse[faulty]] = faults[faulty]
    return states


def _drawn(
    table: pa.Table,
    groups: Groups,
    better: NDArray[np.int64],
    worse: NDArray[np.int64],
    good: NDArray[np.bool_],
    seed: int,
) -> NDArray[np.bool_]:
    """Return which of the good pairs is drawn for each group, by a hash that knows nothing of the rows' order."""
    places = np.flatnonzero(good)
    names = table.select(["run_id", "prompt_id", "sample_index"]).take(pa.array(worse[places])).to_pylist()
    draws = [_draw(seed, row["run_id"], row["prompt_id"], row["sample_index"]) for row in names]
    ordered = places[np.lexsort((np.array(draws, np.uint64), groups.numbers[better[places]]))]
    _, first = np.unique(groups.numbers[better[ordered]], return_index=True)
    drawn = np.zeros(len(good), dtype=bool)
    drawn[ordered[first]] = True
    return drawn


def _draw(seed: int, run_id: str, prompt_id: str, sample_index: int) -> int:
    text = f"{seed}\n{sample_index}\n{run_id}\n{prompt_id}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _pair_table(table: pa.Table, better: NDArray[np.int64], worse: NDArray[np.int64]) -> pa.Table:
    """Return the pairs in the order of their chosen rows."""
    order = np.lexsort((worse, better))
    rows = table.append_column("num_tokens", pa.array(num_tokens_of(table)))
    chosen, rejected = (rows.take(pa.array(side[order])) for side in (better, worse))
    columns = {name: chosen[name] for name in _SHARED}
    for prefix, side in (("chosen", chosen), ("rejected", rejected)):
        columns |= {f"{prefix}_{name}": side[name] for name in _OWN}
    return pa.table(columns)
