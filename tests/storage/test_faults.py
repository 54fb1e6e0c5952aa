"""Networks, disks and other people's hands spoil things; what was committed stays, and what is returned is right."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from crashing import work
from fault_proxy import FaultProxy, fault_proxy
from hypothesis import given, settings
from hypothesis import strategies as st
from seaweedfs import S3Place
from store_builders import Place, in_memory, plan_of, shard_rows, write_rows, write_run

from rollmill.errors import CorruptDataError, ObjectExistsError, RollmillError, StoreAccessError
from rollmill.storage.objects import Objects, open_objects
from rollmill.storage.publish import publish_run
from rollmill.storage.runs import RunStore
from rollmill.storage.store import RolloutStore
from rollmill.storage.verify import verify_store

IMPATIENT: dict[str, Any] = {"config_kwargs": {"read_timeout": 1}}
PUT_FAULTS = ["lost_reply", "late_reply", "no_reply", "cut_request", "SlowDown", "ConditionalRequestConflict"]
GET_FAULTS = ["lost_reply", "late_reply", "no_reply", "cut_body", "slow_body", "SlowDown", "InternalError"]


@pytest.mark.parametrize("fault", PUT_FAULTS)
@pytest.mark.parametrize("times", [1, 2])
def test_a_create_is_done_once_whatever_happens_on_the_way(s3: S3Place, fault: str, times: int) -> None:
    with _spoiled(s3) as (proxy, objects):
        proxy.spoil("PUT", *[fault] * times)
        objects.create("key", b"mine" * 1000)
        assert objects.get("key") == b"mine" * 1000
        with pytest.raises(ObjectExistsError):
            objects.create("key", b"other")


@pytest.mark.parametrize("fault", PUT_FAULTS)
def test_a_create_that_lost_is_told_so_whatever_happens_on_the_way(s3: S3Place, fault: str) -> None:
    with _spoiled(s3) as (proxy, objects):
        objects.create("key", b"theirs")
        proxy.spoil("PUT", fault)
        with pytest.raises(ObjectExistsError):
            objects.create("key", b"mine")
        assert objects.get("key") == b"theirs"


@pytest.mark.parametrize("fault", GET_FAULTS)
def test_a_read_is_whole_whatever_happens_on_the_way(s3: S3Place, fault: str) -> None:
    with _spoiled(s3) as (proxy, objects):
        objects.put("key", b"data" * 10_000)
        proxy.spoil("GET", fault, fault)
        assert objects.get("key") == b"data" * 10_000


@pytest.mark.parametrize("fault", ["lost_reply", "no_reply", "SlowDown"])
def test_sizes_and_listings_survive_passing_faults(s3: S3Place, fault: str) -> None:
    with _spoiled(s3) as (proxy, objects):
        objects.put("key", b"data")
        for method in ("HEAD", "GET", "DELETE"):
            proxy.spoil(method, fault)
        assert objects.size("key") == 4
        assert objects.list("") == ["key"]
        objects.delete("key")
        assert objects.size("key") is None


@pytest.mark.parametrize("fault", ["SlowDown", "no_reply", "cut_request"])
def test_a_fault_that_stays_is_one_clear_line_and_commits_nothing(s3: S3Place, fault: str) -> None:
    with _spoiled(s3) as (proxy, objects):
        proxy.always("PUT", fault)
        with pytest.raises(StoreAccessError, match=r"store s3://.*\[at key\]"):
            objects.impatient().create("key", b"mine")
    assert Place(s3.url, s3.storage_options).objects().list("") == []


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_over_a_network_that_fails_all_the_time_is_whole(s3: S3Place, seed: int) -> None:
    chance, plan = random.Random(seed), plan_of()
    quick_put, quick_get = [f for f in PUT_FAULTS if f[-5:] != "reply"], ["cut_body", "SlowDown", "InternalError"]
    with _spoiled(s3) as (proxy, objects):
        for method, faults in (("PUT", [*quick_put, "lost_reply"]), ("GET", quick_get), ("HEAD", ["SlowDown"])):
            proxy.spoil(method, *(chance.choice([*faults, "", ""]) for _ in range(10 if seed == 0 else 60)))
        version = work(objects, plan, range(3), publish_parts=True)
        assert version.read().to_pylist() == [row for n in range(3) for row in shard_rows(plan, n).to_pylist()]
    store = Place(s3.url, s3.storage_options).store()
    assert verify_store(store).problems == ()
    assert len(store.objects.list("data/")) == 6


def test_a_full_disk_is_named_commits_nothing_and_the_rest_of_the_run_goes_on_later(tmp_path: Path) -> None:
    with _small_disk(tmp_path / "disk", "1m") as folder:
        objects, plan = open_objects(str(folder / "store")), plan_of()
        runs = RunStore(objects, plan.run_id)
        runs.open_plan(plan)
        first = write_rows(runs, 0, shard_rows(plan, 0))
        (folder / "ballast").write_bytes(bytes(_free(folder) - 4096))
        with pytest.raises(StoreAccessError, match=r"No space left on device .*free some space"):
            write_rows(runs, 1, shard_rows(plan, 1, response_text="long " * 10_000 + random.randbytes(9000).hex()))
        assert runs.finished("generate", range(3)) == {0: first}
        assert objects.list("data/") == [first.file]
        assert list((folder / "store" / "_tmp").iterdir()) == []
        (folder / "ballast").unlink()
        work(objects, plan, range(3))
        assert verify_store(RolloutStore(objects.url)).problems == ()


def test_a_limit_on_file_sizes_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    """Where no small disk can be mounted, the system's own limit on a file's size cuts the write short."""
    program = (
        "import resource, signal, sys; from store_builders import *; "
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)); "
        "write_one(open_objects(sys.argv[1]))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert "raise the limit on file sizes" in done.stderr
    assert open_objects(str(tmp_path)).list("") == []
    assert list((tmp_path / "_tmp").iterdir()) == []


def test_a_process_killed_by_that_limit_leaves_only_a_temporary_file(tmp_path: Path) -> None:
    program = (
        "import resource, sys; from store_builders import *; import signal; "
        "signal.signal(signal.SIGXFSZ, signal.SIG_DFL); resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)); "
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); write_one(open_objects(sys.argv[1]))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], env=environment, capture_output=True, timeout=60
    )
    assert done.returncode == -signal.SIGXFSZ
    assert open_objects(str(tmp_path)).list("") == []
    [left] = (tmp_path / "_tmp").iterdir()
    assert left.stat().st_size == 3000


def test_a_read_only_store_can_be_read_and_verified_but_not_written(tmp_path: Path) -> None:
    plan = plan_of()
    with _read_only_store(tmp_path, plan) as folder:
        store = RolloutStore(folder)
        assert store.latest().read().num_rows == 15
        assert verify_store(store).problems == ()
        for write in (
            store.objects.check_access,
            lambda: write_rows(RunStore(store.objects, "run"), 0, shard_rows(plan, 0)),
            lambda: RunStore(store.objects, "new").open_plan(plan_of("new")),
            lambda: publish_run(store.objects, plan, "other", policy_version=1),
        ):
            with pytest.raises(RollmillError, match=r"Read-only file system|may not be written to|are not committed"):
                write()


_SOUND: list[Objects] = []


@settings(max_examples=120)
@given(data=st.data())
def test_a_file_cut_or_changed_anywhere_is_named_and_never_returned(data: st.DataObject) -> None:
    if not _SOUND:
        _SOUND.append(in_memory())
        write_run(_SOUND[0], plan_of())
        publish_run(_SOUND[0], plan_of(), "generate", policy_version=1)
    objects = _SOUND[0]
    file = data.draw(st.sampled_from(RolloutStore(objects.url).latest().files)).file
    whole = objects.get(file)
    place = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytes([whole[place] ^ data.draw(st.integers(1, 255))])
    spoiled = data.draw(
        st.sampled_from([whole[:place], whole[:place] + flipped + whole[place + 1 :], whole + b"\x00", b""])
    )
    objects.put(file, spoiled)
    try:
        for read in (RolloutStore(objects.url).latest().read, RolloutStore(objects.url).latest().result):
            with pytest.raises(CorruptDataError, match=file):
                read()
        assert file in {problem.where for problem in verify_store(RolloutStore(objects.url)).problems}
    finally:
        objects.put(file, whole)


@contextmanager
def _spoiled(s3: S3Place) -> Iterator[tuple[FaultProxy, Objects]]:
    """Give a proxy to the server, and objects whose every request goes through it."""
    with fault_proxy(s3.endpoint_url) as proxy:
        yield proxy, open_objects(s3.url, {**s3.storage_options, **IMPATIENT, "endpoint_url": proxy.url})


@contextmanager
def _small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a file system in memory at `folder`; skips the test where that is not allowed."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("mounting a file system needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def _read_only_store(folder: Path, plan: Any) -> Iterator[Path]:
    """Give a published store that cannot be written: on a read-only mount, or by its permissions."""
    if os.geteuid() != 0:
        objects = open_objects(str(folder))
        write_run(objects, plan)
        publish_run(objects, plan, "generate", policy_version=1)
        places = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
        for place in places:
            place.chmod(0o500)
        try:
            yield folder
        finally:
            for place in places:
                place.chmod(0o700)
        return
    with _small_disk(folder / "disk", "4m") as disk:
        objects = open_objects(str(disk))
        write_run(objects, plan)
        publish_run(objects, plan, "generate", policy_version=1)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        yield disk


def _free(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize
