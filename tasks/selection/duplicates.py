"""Answers that are there already, word for word or nearly so."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pyarrow as pa

from rollmill.errors import JobError
from rollmill.tasks.prompts.unique import UniqueIds
from rollmill.tasks.selection.reasons import DUPLICATE, NEAR_DUPLICATE
from rollmill.tasks.selection.selected import Selected, keep

if TYPE_CHECKING:
    from datasketch import MinHash

DuplicateScope = Literal["prompt", "all"]
"""Among which answers one may be a duplicate: those to prompts of the same text, or all."""

NUM_PERMUTATIONS = 128
_WORDS_TOGETHER = 3
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\w+")  # scripts without spaces: each character is a word


class ExactDuplicates:
    """Drops answers whose text was kept before. Remembers 24 to 40 bytes for each kept answer, over many tables.

    Within a table the answer with the greatest reward is kept, of equal ones that of the newer policy, then the lower
    sample_index. Raises JobError for an unknown scope.
    """

    def __init__(self, scope: DuplicateScope = "prompt") -> None:
        self._scope = _checked(scope)
        self._seen = UniqueIds()

    def drop(self, table: pa.Table) -> Selected:
        kept = np.zeros(table.num_rows, dtype=bool)
        for row, prompt, answer in _texts(table, self._scope):
            kept[row] = self._seen.add(f"{len(prompt)}\n{prompt}{answer}") is None
        return keep(table, kept, DUPLICATE)


class NearDuplicates:
    """Drops answers that share most of their words with one that was kept before, over many tables.

    Two answers are near duplicates when the estimated Jaccard similarity of their sets of three words in a row is at
    least `threshold`; the estimate is by MinHash of 128 permutations, so it errs by about 0.05. Only signatures are
    remembered. Raises JobError for a threshold that is not from 0.1 to 1, or without the package datasketch.
    """

    def __init__(self, threshold: float, scope: DuplicateScope = "prompt") -> None:
        if not 0.1 <= threshold <= 1:
            raise JobError(f"near_duplicates must be from 0.1 to 1, got {threshold:g}")
        self._scope = _checked(scope)
        self._threshold = threshold
        self._index = _index(threshold)
        self._signatures: list[Any] = []

    def drop(self, table: pa.Table) -> Selected:
        from datasketch import MinHash

        rows = list(_texts(table, self._scope))
        sets = (_shingles(prompt, answer) for _, prompt, answer in rows)
        signatures = MinHash.generator(sets, num_perm=NUM_PERMUTATIONS)
        kept = np.zeros(table.num_rows, dtype=bool)
        for (row, _, _), signature in zip(rows, signatures, strict=True):
            kept[row] = self._is_new(signature)
        return keep(table, kept, NEAR_DUPLICATE)

    def _is_new(self, signature: MinHash) -> bool:
        """Remember the signature unless one like it is there."""
        values = signature.hashvalues
        for place in self._index.query(signature):
            if np.mean(self._signatures[place] == values) >= self._threshold:
                return False
        self._index.insert(len(self._signatures), signature, check_duplication=False)
        self._signatures.append(values)
        return True


def drop_exact_duplicates(table: pa.Table, scope: DuplicateScope = "prompt") -> Selected:
    """Keep one of the answers of the same text, as `ExactDuplicates` does."""
    return ExactDuplicates(scope).drop(table)


def drop_near_duplicates(table: pa.Table, threshold: float, scope: DuplicateScope = "prompt") -> Selected:
    """Keep one of the answers of nearly the same words, as `NearDuplicates` does."""
    return NearDuplicates(threshold, scope).drop(table)


def _texts(table: pa.Table, scope: DuplicateScope) -> list[tuple[int, str, str]]:
    """Return (row, what the scope goes by, answer) of all rows, those first that are rather kept."""
    keys = table.select(["reward", "policy_version", "sample_index", "run_id", "prompt_id"])
    numbered = keys.append_column("row", pa.array(np.arange(table.num_rows)))
    order = numbered.sort_by(
        [
            ("reward", "descending"),
            ("policy_version", "descending"),
            ("sample_index", "ascending"),
            ("run_id", "ascending"),
            ("prompt_id", "ascending"),
        ]
    )["row"]
    prompts = table["prompt_text"].take(order).to_pylist() if scope == "prompt" else [""] * table.num_rows
    return list(zip(order.to_pylist(), prompts, table["response_text"].take(order).to_pylist(), strict=True))


def _shingles(prompt: str, answer: str) -> list[bytes]:
    """Return the sets' members: three words in a row; the prompt keeps apart what the scope keeps apart."""
    words = _WORD.findall(answer.lower()) or [answer]
    last = max(len(words) - _WORDS_TOGETHER, 0)
    together = {" ".join(words[start : start + _WORDS_TOGETHER]) for start in range(last + 1)}
    return [f"{prompt}\n{part}".encode() for part in together]


def _checked(scope: DuplicateScope) -> DuplicateScope:
    if scope not in get_args(DuplicateScope):
        raise JobError(f"duplicate_scope must be prompt or all, got {scope!r}")
    return scope


def _index(threshold: float) -> Any:
    try:
        from datasketch import MinHashLSH
    except ImportError as error:
        raise JobError(
            "near_duplicates needs the package datasketch; install it with pip install 'rollmill[dedup]'"
        ) from error
    wide = 0.9 * threshold  # finds nearly all that the signatures then call near, and a few more
    return MinHashLSH(threshold=wide, num_perm=NUM_PERMUTATIONS)
