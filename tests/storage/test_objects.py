from __future__ import annotations

import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from threading import Barrier

import pytest
from fault_proxy import fault_proxy
from seaweedfs import S3Place, S3Server
from store_builders import Place

from rollmill.errors import ObjectExistsError, ObjectMissingError, StoreAccessError
from rollmill.storage.local_objects import LocalObjects
from rollmill.storage.objects import Objects, open_objects


def test_an_object_comes_back_as_it_was_written(place: Place) -> None:
    objects = place.objects()
    for key, data in (("a", b""), ("folder/b", b"\x00\xff" * 1000)):
        objects.create(key, data)
        assert objects.get(key) == data
        assert objects.size(key) == len(data)
    assert objects.list("") == ["a", "folder/b"]
    assert objects.list("fol") == ["folder/b"]
    assert objects.list("folder/b/") == []


def test_create_refuses_a_key_that_is_taken_and_changes_nothing(place: Place) -> None:
    objects = place.objects()
    objects.create("key", b"first")
    with pytest.raises(ObjectExistsError, match="key is there already"):
        objects.create("key", b"second")
    assert objects.get("key") == b"first"


def test_creating_the_same_bytes_again_counts_as_a_lost_reply(place: Place) -> None:
    objects = place.objects()
    objects.create("key", b"mine")
    objects.create("key", b"mine")
    assert objects.get("key") == b"mine"


def test_put_replaces_and_delete_is_final(place: Place) -> None:
    objects = place.objects()
    objects.put("HEAD", b"1")
    objects.put("HEAD", b"2")
    assert objects.get("HEAD") == b"2"
    objects.delete("HEAD")
    objects.delete("HEAD")
    assert objects.size("HEAD") is None
    with pytest.raises(ObjectMissingError, match="HEAD is missing"):
        objects.get("HEAD")


def test_of_many_threads_one_creates(place: Place) -> None:
    objects, barrier = place.objects(), Barrier(4)

    def race(worker: int) -> list[bytes | None]:
        results = []
        for number in range(3):
            barrier.wait()
            results.append(_created(objects, f"race/{number}", b"%d" % worker))
        return results

    with ThreadPoolExecutor(4) as threads:
        by_worker = list(threads.map(race, range(4)))
    for number, results in enumerate(zip(*by_worker, strict=True)):
        assert [won for won in results if won is not None] == [objects.get(f"race/{number}")]


def test_a_forked_process_makes_its_own_connections(shared_place: Place) -> None:
    objects = shared_place.objects()
    objects.put("before", b"parent")
    context = get_context("fork")
    with context.Pool(2) as pool:
        assert pool.map(_Read(objects, "before"), range(4)) == [b"parent"] * 4
    child = context.Process(target=objects.create, args=("after", b"child"))  # inherits the used object itself
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert objects.get("after") == b"child"


def test_objects_can_be_pickled(place: Place) -> None:
    objects = place.objects()
    objects.put("key", b"data")
    assert pickle.loads(pickle.dumps(objects)).get("key") == b"data"


def test_a_usable_store_passes_the_check_and_is_left_empty(place: Place) -> None:
    objects = place.objects()
    objects.check_access()
    assert objects.list("") == []


def test_what_a_killed_writer_leaves_is_no_object(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    objects.create("key", b"data")
    (tmp_path / "_tmp" / "left").write_bytes(b"half")
    assert objects.list("") == ["key"]


@pytest.mark.parametrize("folder", ["file", "file/below"])
def test_a_path_that_is_a_file_is_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreAccessError, match="is a file"):
        open_objects(str(tmp_path / folder)).check_access()


def test_a_folder_that_is_not_writable_is_refused(tmp_path: Path) -> None:
    folder = "/sys/rollmill"
    if os.geteuid() != 0:
        tmp_path.chmod(0o500)
        folder = str(tmp_path / "store")
    with pytest.raises(StoreAccessError, match="permission denied"):
        open_objects(folder).check_access()


@pytest.mark.parametrize("url", ["gs://bucket/prefix", "https://host/path"])
def test_an_unknown_kind_of_address_is_refused(url: str) -> None:
    with pytest.raises(StoreAccessError, match="is not supported"):
        open_objects(url)


def test_storage_options_are_refused_where_they_would_be_ignored(tmp_path: Path) -> None:
    with pytest.raises(StoreAccessError, match="only for s3"):
        open_objects(str(tmp_path), {"key": "k"})


def test_a_missing_bucket_is_named(s3: S3Place) -> None:
    with pytest.raises(StoreAccessError, match="no bucket nowhere-at-all"):
        open_objects("s3://nowhere-at-all/prefix", s3.storage_options).check_access()


def test_a_missing_bucket_is_named_even_to_one_who_could_make_it(s3_server: S3Server) -> None:
    key, secret = s3_server.admin
    options = {"key": key, "secret": secret, "endpoint_url": s3_server.endpoint_url}
    with pytest.raises(StoreAccessError, match="no bucket nowhere-at-all"):
        open_objects("s3://nowhere-at-all/prefix", options).check_access()


@pytest.mark.parametrize("wrong", [{"key": "nobody"}, {"secret": "wrong"}])
def test_wrong_credentials_are_named(s3: S3Place, wrong: dict[str, str]) -> None:
    with pytest.raises(StoreAccessError, match=r"access refused .*check key and secret"):
        open_objects(s3.url, {**s3.storage_options, **wrong}).check_access()


@pytest.mark.parametrize("endpoint_url", ["http://127.0.0.1:9", "http://nowhere.invalid"])
def test_an_unreachable_endpoint_is_named_within_seconds(s3: S3Place, endpoint_url: str) -> None:
    begin = time.monotonic()
    with pytest.raises(StoreAccessError, match=r"no answer .*check that the server runs"):
        open_objects(s3.url, {**s3.storage_options, "endpoint_url": endpoint_url}).check_access()
    assert time.monotonic() - begin < 15


def test_the_environment_alone_is_enough(s3: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    open_objects(s3.url).check_access()


def test_a_store_that_ignores_conditions_is_refused(s3: S3Place) -> None:
    with fault_proxy(s3.endpoint_url) as proxy:
        proxy.spoil("PUT", "", "ignore_condition")
        with pytest.raises(StoreAccessError, match="ignores If-None-Match"):
            open_objects(s3.url, {**s3.storage_options, "endpoint_url": proxy.url}).check_access()


@pytest.mark.parametrize("fault", ["lost_reply", "SlowDown", "ConditionalRequestConflict", "InternalError"])
def test_a_create_survives_a_passing_fault(s3: S3Place, fault: str) -> None:
    with fault_proxy(s3.endpoint_url) as proxy:
        objects = open_objects(s3.url, {**s3.storage_options, "endpoint_url": proxy.url})
        proxy.spoil("PUT", fault, fault)
        objects.create("key", b"mine")
        assert objects.get("key") == b"mine"
        with pytest.raises(ObjectExistsError):
            objects.create("key", b"other")


@pytest.mark.parametrize("fault", ["lost_reply", "cut_body", "SlowDown"])
def test_a_read_survives_a_passing_fault(s3: S3Place, fault: str) -> None:
    with fault_proxy(s3.endpoint_url) as proxy:
        objects = open_objects(s3.url, {**s3.storage_options, "endpoint_url": proxy.url})
        objects.put("key", b"data" * 1000)
        proxy.spoil("GET", fault)
        assert objects.get("key") == b"data" * 1000


def test_an_object_is_read_with_one_request(s3: S3Place) -> None:
    with fault_proxy(s3.endpoint_url) as proxy:
        objects = open_objects(s3.url, {**s3.storage_options, "endpoint_url": proxy.url})
        objects.put("key", b"data")
        proxy.requests.clear()
        objects.get("key")
        with pytest.raises(ObjectMissingError):
            objects.get("missing")
        assert [method for method, _ in proxy.requests] == ["GET", "GET"]


def _created(objects: Objects, key: str, data: bytes) -> bytes | None:
    try:
        objects.create(key, data)
    except ObjectExistsError:
        return None
    return data


class _Read:
    def __init__(self, objects: Objects, key: str) -> None:
        self.objects, self.key = objects, key

    def __call__(self, _: int) -> bytes:
        return self.objects.get(self.key)


def test_writers_and_those_who_tidy_after_them_do_not_disturb_each_other(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)

    def write(number: int) -> None:
        objects.create(f"_probe/{number}", b"%d" % number)
        objects.put("last", b"%d" % number)
        objects.delete(f"_probe/{number}")
        objects.tidy()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write, range(200)))
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


def test_tidying_keeps_what_another_writer_has_there(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    objects.check_access()
    assert list(tmp_path.iterdir()) == []
    objects.create("_probe/of another", b"x")
    objects.tidy()
    assert objects.list("") == ["_probe/of another"]
