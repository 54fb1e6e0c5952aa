"""Padding one way and the plain other way give the same."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmill.storage.ragged import Ragged, padded, padded_mask
from rollmill.storage.results import pad_rows

Lists = list[list[int]]
LISTS = st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5), min_size=1, max_size=6)


@given(chunks=st.lists(LISTS, min_size=1, max_size=3), data=st.data(), side=st.sampled_from(["left", "right"]))
def test_chosen_lists_of_several_chunks_are_padded_as_one_by_one(
    chunks: list[Lists], data: st.DataObject, side: str
) -> None:
    kind = pa.list_(pa.int32())
    column = pa.chunked_array([pa.array(chunk, kind) for chunk in chunks])
    lists = [one for chunk in chunks for one in chunk]
    skipped = data.draw(st.integers(0, len(lists)))
    tables = [(Ragged.of(column), lists), (Ragged.of(column.slice(skipped)), lists[skipped:])]
    choices = [(ragged, data.draw(st.lists(st.sampled_from(range(len(there)))) if there else st.just([])))
               for ragged, there in tables]  # fmt: skip
    wanted = [there[number] for (_, there), (_, numbers) in zip(tables, choices, strict=True) for number in numbers]
    arrays = [(ragged, np.array(numbers, np.int64)) for ragged, numbers in choices]
    ids, mask = pad_rows(wanted, pad_id=7, side=side)
    assert np.array_equal(padded(arrays, np.int64, 7, side), ids.numpy())
    assert np.array_equal(padded_mask(arrays, side), mask.numpy())


@given(chunks=st.lists(st.lists(st.text(max_size=4), max_size=5), max_size=3), data=st.data())
def test_texts_of_several_chunks_come_back_as_they_were(chunks: list[list[str]], data: st.DataObject) -> None:
    column = pa.chunked_array([pa.array(chunk, pa.string()) for chunk in chunks], pa.string())
    texts = [text for chunk in chunks for text in chunk]
    skipped = data.draw(st.integers(0, len(texts)))
    left = texts[skipped:]
    chosen = data.draw(st.lists(st.sampled_from(range(len(left)))) if left else st.just([]))
    ragged = Ragged.of_texts(column.slice(skipped))
    assert ragged.texts(np.array(chosen, np.int64)) == [left[number] for number in chosen]


def test_a_side_that_is_none_is_refused() -> None:
    for make in (lambda: padded([], np.int64, 0, "top"), lambda: padded_mask([], "top")):
        with pytest.raises(ValueError, match="padding side must be left or right, got top"):
            make()
