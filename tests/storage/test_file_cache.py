"""Copies on the local disk: checked, bounded, shared by processes."""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cache_worker import read_all
from reading_builders import Watched, publish, published, take
from store_builders import Place

from rollmill import CachedRolloutRunner
from rollmill.errors import CorruptDataError, InputError, StoreAccessError
from rollmill.storage.file_cache import FileCache
from rollmill.storage.log import DatasetFile
from rollmill.storage.objects import Objects


def files_of(objects: Objects) -> list[DatasetFile]:
    return list(publish(objects).latest().files)


def test_a_file_is_fetched_once(tmp_path: Path) -> None:
    store = published()
    file = store.latest().files[0]
    watched = Watched(store.objects)
    for _ in range(3):
        assert hashlib.sha256(FileCache(tmp_path).read(store.objects, file)).hexdigest() == file.sha256
    assert watched.keys() == [file.file]


@pytest.mark.parametrize("harm", ["changed", "short", "empty"])
def test_a_damaged_copy_is_fetched_again(tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture) -> None:
    store = published()
    file = store.latest().files[0]
    cache = FileCache(tmp_path)
    data = cache.read(store.objects, file)
    path = cache.path_of(file)
    damaged = {"changed": data[:50] + bytes([data[50] ^ 1]) + data[51:], "short": data[:-3], "empty": b""}[harm]
    path.write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        assert cache.read(store.objects, file) == data
    assert "it is fetched again" in caplog.text
    assert path.read_bytes() == data


def test_a_store_that_has_other_bytes_is_not_believed_nor_cached(tmp_path: Path) -> None:
    store = published()
    file = store.latest().files[0]
    store.objects.put(file.file, b"x" * file.bytes)
    cache = FileCache(tmp_path)
    with pytest.raises(CorruptDataError, match=file.file):
        cache.read(store.objects, file)
    assert not cache.path_of(file).exists()


def test_the_folder_stays_below_its_limit_and_loses_what_was_read_longest_ago(tmp_path: Path) -> None:
    store = published()
    files = store.latest().files
    cache = FileCache(tmp_path, max_bytes=sum(file.bytes for file in files[:3]))
    for age, file in enumerate(files[:3]):
        cache.read(store.objects, file)
        os.utime(cache.path_of(file), (1000 + age, 1000 + age))
    cache.read(store.objects, files[0])  # used again, so the second is now the oldest
    cache.read(store.objects, files[3])
    assert [cache.path_of(file).exists() for file in files[:4]] == [True, False, files[3].bytes <= files[1].bytes, True]
    kept = sum(path.stat().st_size for path in tmp_path.glob("??/*.parquet"))
    assert kept <= cache.max_bytes


def test_a_file_larger_than_the_limit_is_read_without_being_kept(tmp_path: Path) -> None:
    store = published()
    file = store.latest().files[0]
    cache = FileCache(tmp_path, max_bytes=10)
    assert len(cache.read(store.objects, file)) == file.bytes
    assert list(tmp_path.glob("??/*")) == []


def test_what_died_processes_left_behind_is_removed(tmp_path: Path) -> None:
    store = published()
    left = tmp_path / "_tmp" / "dead"
    left.parent.mkdir()
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    FileCache(tmp_path).read(store.objects, store.latest().files[0])
    assert not left.exists()


def test_threads_that_want_the_same_file_fetch_it_once(tmp_path: Path) -> None:
    store = published()
    files = store.latest().files
    watched = Watched(store.objects)
    with ThreadPoolExecutor(8) as threads:
        for data in threads.map(lambda file: FileCache(tmp_path).read(store.objects, file), files * 6):
            assert data
    assert sorted(watched.keys()) == sorted(file.file for file in files)


@pytest.mark.parametrize("fraction", [2.0, 0.4])
def test_processes_share_the_folder_also_when_it_is_too_small(tmp_path: Path, fraction: float) -> None:
    url = str(tmp_path / "store")
    files = files_of(Place(url).objects())
    max_bytes = int(fraction * sum(file.bytes for file in files))
    spawning = multiprocessing.get_context("spawn")
    results = spawning.Queue()
    arguments = (url, str(tmp_path / "cache"), max_bytes, files, results)
    processes = [spawning.Process(target=read_all, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    outcomes = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert all(good for good, _ in outcomes)
    if fraction > 1:
        assert sum(number for _, number in outcomes) == len(files)
    assert sum(path.stat().st_size for path in (tmp_path / "cache").glob("??/*.parquet")) <= max_bytes


def test_a_trainer_reads_on_when_its_cache_is_damaged_or_too_small(tmp_path: Path) -> None:
    store = published()
    for limit in (10**9, 3000):
        runner = CachedRolloutRunner(store, cache_dir=tmp_path, max_cache_bytes=limit)
        expected = [result.prompt_ids for result in take(CachedRolloutRunner(store), 6)]
        first = take(runner, 3)
        for path in tmp_path.glob("??/*.parquet"):
            path.write_bytes(b"damaged")
        assert [result.prompt_ids for result in [*first, *take(runner, 3)]] == expected


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    store = published()
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreAccessError, match=r"cache folder .*/file cannot be used: Not a directory"):
        FileCache(tmp_path / "file").read(store.objects, store.latest().files[0])
    with pytest.raises(InputError, match="max_cache_bytes must be at least 0, got -1"):
        FileCache(tmp_path, max_bytes=-1)
