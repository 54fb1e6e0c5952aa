"""Which split a prompt belongs to, for ever."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

TRAIN, TEST = "train", "test"
SPLITS = (TRAIN, TEST)


def is_test(prompt_id: str, test_fraction: float, seed: int) -> bool:
    """Return whether a prompt is in the test split: it depends on its id and the seed alone."""
    digest = hashlib.blake2b(f"{seed}\n{prompt_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") < test_fraction * 2**64


def split_records(records: pa.Table, test_fraction: float, seed: int) -> dict[str, pa.Table]:
    """Return the records of each split, in their order; all records of a prompt are in the same."""
    codes = records["prompt_id"].combine_chunks().dictionary_encode()
    chosen = [is_test(prompt_id, test_fraction, seed) for prompt_id in codes.dictionary.to_pylist()]
    test: NDArray[np.bool_] = np.array(chosen, dtype=bool)[codes.indices.to_numpy()]
    return {TRAIN: records.filter(pa.array(~test)), TEST: records.filter(pa.array(test))}
