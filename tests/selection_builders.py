"""Tables of answers for tests of selection, drawn by hypothesis or written out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from store_builders import failed_row, row_of, table_of

Key = tuple[str, str, int]

_TEXTS = ["four", "it is four", "it is five", "I think that it is four", "", "no idea"]
_REWARDS = st.none() | st.sampled_from([0.0, 0.1, 0.2, 0.30000000000000004, 0.5, 1.0, 1.0, 2.0])


def answer(prompt: int, sample: int, run_id: str = "run", **changes: Any) -> dict[str, Any]:
    """Return a row; `tokens` is how many the answer has, and a reward of None is one that failed."""
    tokens = changes.pop("tokens", None)
    if tokens is not None:
        changes |= {"response_token_ids": list(range(tokens)), "logprobs": [-1.0] * tokens}
    if "reward" in changes and changes["reward"] is None:
        changes |= {"reward_status": "failed", "reward_error": "timed out"}
    changes.setdefault("finish_reason", "stop")
    return row_of(prompt, sample, run_id, **changes)


def rewarded(*groups: Iterable[float | None]) -> pa.Table:
    """Return answers with these rewards, group by group; each has a text of its own."""
    rows = [
        answer(prompt, sample, reward=reward)
        for prompt, group in enumerate(groups)
        for sample, reward in enumerate(group)
    ]
    return table_of(rows)


@st.composite
def answers(draw: st.DrawFn) -> pa.Table:
    """Draw whole groups of up to 5 answers of one or two runs, some failed, cut, unscored or alike."""
    rows = []
    for run_id in draw(st.sampled_from([["old"], ["old", "new"]])):
        for prompt in range(draw(st.integers(0, 4))):
            for sample in range(draw(st.integers(1, 5))):
                rows.append(draw(_rows(prompt, sample, run_id)))
    return table_of(rows)


@st.composite
def _rows(draw: st.DrawFn, prompt: int, sample: int, run_id: str) -> dict[str, Any]:
    if draw(st.integers(0, 9)) == 0:
        return failed_row(prompt, sample, run_id)
    return answer(
        prompt,
        sample,
        run_id,
        tokens=draw(st.integers(1, 6)),
        reward=draw(_REWARDS),
        response_text=draw(st.sampled_from(_TEXTS)),
        finish_reason=draw(st.sampled_from(["stop", "stop", "length"])),
        policy_version=2 if run_id == "new" else 1,
    )


def shuffled(draw: st.DataObject, table: pa.Table) -> pa.Table:
    """Draw another order of the rows."""
    return table.take(pa.array(draw.draw(st.permutations(range(table.num_rows))), pa.int64()))


def keys(table: pa.Table) -> list[Key]:
    """Return (run, prompt, sample) of every row, in order."""
    return [(row["run_id"], row["prompt_id"], row["sample_index"]) for row in table.to_pylist()]


def pair_keys(pairs: pa.Table) -> list[tuple[str, str, int, int]]:
    """Return (run, prompt, chosen sample, rejected sample) of every pair, in order."""
    names = ["run_id", "prompt_id", "chosen_sample_index", "rejected_sample_index"]
    return [tuple(row[name] for name in names) for row in pairs.select(names).to_pylist()]


def canonical(table: pa.Table) -> list[str]:
    """Return the rows as text, sorted, so that tables can be compared whatever their order."""
    return sorted(repr(row) for row in table.to_pylist())
