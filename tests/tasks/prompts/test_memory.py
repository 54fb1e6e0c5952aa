"""Reading takes memory that does not grow with the dataset, but for a few bytes an id."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollmill.tasks.prompts.config import PromptsConfig
from rollmill.tasks.prompts.reading import read_prompts
from rollmill.tasks.prompts.unique import UniqueIds

NUM_ROWS, ROW_BYTES = 20_000, 2_000


def write_jsonl(folder: Path) -> Path:
    path = folder / "a.jsonl"
    with path.open("w") as file:
        file.writelines(json.dumps({"prompt": f"{index} " * (ROW_BYTES // 6)}) + "\n" for index in range(NUM_ROWS))
    return path


def write_csv(folder: Path) -> Path:
    path = folder / "a.csv"
    with path.open("w") as file:
        file.write("prompt\n")
        file.writelines(f"{index} " * (ROW_BYTES // 6) + "\n" for index in range(NUM_ROWS))
    return path


def write_parquet(folder: Path) -> Path:
    path = folder / "a.parquet"
    table = pa.table({"prompt": [f"{index} " * (ROW_BYTES // 6) for index in range(NUM_ROWS)]})
    pq.write_table(table, path, row_group_size=2_000)
    return path


@pytest.mark.parametrize("write", [write_jsonl, write_csv, write_parquet])
def test_reading_a_large_file_takes_little_memory(write: Callable[[Path], Path], tmp_path: Path) -> None:
    path = write(tmp_path)
    prompts = read_prompts(PromptsConfig(source=str(path)))
    list(islice(prompts, 10))
    arrow_before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        arrow_most = max(pa.total_allocated_bytes() - arrow_before for _ in prompts)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most + arrow_most < 12 << 20 < NUM_ROWS * ROW_BYTES / 2


def test_an_id_costs_less_than_forty_bytes() -> None:
    ids = UniqueIds()
    tracemalloc.start()
    try:
        assert all(ids.add(f"a rather long prompt id, number {index}") is None for index in range(100_000))
        now, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert now < 40 * 100_000
    assert ids.add("a rather long prompt id, number 99998") == 99_998
    assert ids.add("a rather long prompt id, number 0") == 0
    assert ids.add("another") is None
