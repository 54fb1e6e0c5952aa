from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmill.storage.order import epoch_order

FILES = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 50)), max_size=12)


@given(files=FILES, most=st.integers(1, 120), key=st.lists(st.integers(0, 2**63), min_size=1, max_size=3))
def test_blocks_hold_every_group_of_every_file_once_and_few_bytes(
    files: list[tuple[int, int]], most: int, key: list[int]
) -> None:
    num_groups, num_bytes = [file[0] for file in files], [file[1] for file in files]
    blocks = epoch_order(num_groups, num_bytes, key, most)
    assert sorted(file for block in blocks for file in block.files) == list(range(len(files)))
    start = 0
    for block in blocks:
        assert block.start == start
        assert sorted(block.groups.tolist()) == list(range(sum(num_groups[file] for file in block.files)))
        assert len(block.files) == 1 or sum(num_bytes[file] for file in block.files) <= most
        start += len(block.groups)


def mixed(state: int) -> int:
    """splitmix64's output for one state, in plain integers."""
    state = (state + 0x9E3779B97F4A7C15) % 2**64
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % 2**64
    return state ^ (state >> 31)


def shuffled(number: int, key: list[int]) -> list[int]:
    state = 0
    for part in key:
        state = mixed((state + part) % 2**64)
    return sorted(range(number), key=lambda counter: mixed((state + counter) % 2**64))


@given(key=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4), sizes=st.lists(st.integers(1, 9), max_size=5))
def test_the_order_is_that_of_plain_arithmetic(key: list[int], sizes: list[int]) -> None:
    blocks = epoch_order(sizes, [1] * len(sizes), key, 2)
    files = shuffled(len(sizes), key)
    assert [block.files for block in blocks] == [tuple(files[start : start + 2]) for start in range(0, len(files), 2)]
    for block in blocks:
        total = sum(sizes[file] for file in block.files)
        assert block.groups.tolist() == shuffled(total, [*key, *block.files])


def test_every_place_is_equally_likely() -> None:
    firsts = [epoch_order([10], [1], [seed])[0].groups[0] for seed in range(2000)]
    counts = np.bincount(firsts, minlength=10)
    assert (np.abs(counts - 200) < 60).all()  # four standard deviations


@pytest.mark.parametrize("other", [[1, 1, 0], [0, 2, 0], [0, 1, 1]])
def test_another_seed_version_or_epoch_is_another_order(other: list[int]) -> None:
    usual, changed = (epoch_order([50], [1], key)[0].groups for key in ([0, 1, 0], other))
    assert not np.array_equal(usual, changed)
