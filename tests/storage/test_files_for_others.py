"""The files are plain Parquet: other tools read them with no help from us."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest
from seaweedfs import S3Place
from store_builders import Place, plan_of, shard_rows, write_run

from rollmill.storage.publish import publish_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the response files of a published run."""
    place = Place(str(tmp_path / "store"))
    write_run(place.objects(), plan_of())
    publish_run(place.objects(), plan_of(), "generate", policy_version=1)
    return tmp_path / "store" / "data" / "run" / "generate"


def expected() -> list[dict[str, Any]]:
    return [row for shard in plan_of().shards for row in shard_rows(plan_of(), shard.index).to_pylist()]


def test_duckdb_reads_them(folder: Path) -> None:
    columns = ["prompt_id", "sample_index", "seed", "response_token_ids", "reward", "reward_parts"]
    with duckdb.connect() as connection:
        query = f"select {', '.join(columns)} from '{folder}/*.parquet' order by prompt_id, sample_index"
        found = connection.execute(query).fetchall()
    assert found == [tuple(row[name] for name in columns) for row in expected()]


def test_pandas_reads_them(folder: Path) -> None:
    frame = pd.concat([pd.read_parquet(path) for path in sorted(folder.iterdir())], ignore_index=True)
    assert frame["reward"].tolist() == [row["reward"] for row in expected()]
    assert [ids.tolist() for ids in frame["response_token_ids"]] == [row["response_token_ids"] for row in expected()]
    assert frame["seed"].tolist() == [row["seed"] for row in expected()]


def test_datasets_reads_them(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets

    files = sorted(str(path) for path in folder.iterdir())
    loaded = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded["response_token_ids"][:] == [row["response_token_ids"] for row in expected()]
    assert loaded["logprobs"][:] == [row["logprobs"] for row in expected()]
    assert loaded["reward_parts"][:] == [row["reward_parts"] for row in expected()]
    assert loaded["prompt_id"][:] == [row["prompt_id"] for row in expected()]


def test_pandas_reads_them_from_s3(s3: S3Place) -> None:
    place = Place(s3.url, s3.storage_options)
    write_run(place.objects(), plan_of())
    version = publish_run(place.objects(), plan_of(), "generate", policy_version=1)
    frames = [pd.read_parquet(f"{s3.url}/{file.file}", storage_options=s3.storage_options) for file in version.files]
    assert sum(len(frame) for frame in frames) == version.num_rows
