from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import fault_proxy
from seaweedfs import S3Place
from store_builders import Place, in_memory

from rollmill.errors import ObjectMissingError
from rollmill.storage.objects import Objects, open_objects
from rollmill.storage.probe import probe_store


def test_a_store_that_honours_everything_is_fit_and_left_as_it_was(place: Place) -> None:
    objects = place.objects()
    objects.put("mine", b"x")
    findings = probe_store(objects)
    assert [finding for finding in findings if not finding.honoured] == []
    assert len(findings) == 11
    assert objects.list("") == ["mine"]


def test_a_server_that_ignores_conditions_is_unfit(s3: S3Place) -> None:
    with fault_proxy(s3.endpoint_url) as proxy:
        proxy.always("PUT", "ignore_condition")
        findings = probe_store(open_objects(s3.url, {**s3.storage_options, "endpoint_url": proxy.url}))
    unfit = {finding.name: finding.detail for finding in findings if not finding.honoured}
    assert "ignores If-None-Match" in unfit["create only"]
    assert "creates at once succeeded" in unfit["one winner"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"secret": "wrong"}, "access refused"), ({"endpoint_url": "http://127.0.0.1:9"}, "no answer")],
)
def test_what_cannot_be_reached_is_said_in_one_finding(s3: S3Place, options: dict[str, Any], reason: str) -> None:
    last = probe_store(open_objects(s3.url, {**s3.storage_options, **options}))[-1]
    assert not last.honoured
    assert reason in last.detail


def test_a_folder_below_a_file_is_unfit(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    [finding] = probe_store(open_objects(str(tmp_path / "file")))
    assert not finding.honoured
    assert "is a file" in finding.detail


def test_a_newer_format_is_unfit() -> None:
    objects = in_memory()
    objects.put("_format.json", b'{"format_version": 99}')
    last = probe_store(objects)[-1]
    assert (last.name, last.honoured) == ("format", False)
    assert "upgrade rollmill" in last.detail


def _stale_reads(objects: Objects) -> None:
    remembered: dict[str, bytes | None] = {}
    get = objects.get

    def remember(key: str) -> bytes:
        if key not in remembered:
            try:
                remembered[key] = get(key)
            except ObjectMissingError:
                remembered[key] = None
        found = remembered[key]
        if found is None:
            raise ObjectMissingError(key)
        return found

    objects.get = remember  # type: ignore[method-assign]


def _short_bodies(objects: Objects) -> None:
    get = objects.get
    objects.get = lambda key: get(key)[:1000]  # type: ignore[method-assign]


def _late_listings(objects: Objects) -> None:
    objects.scan = lambda _: []  # type: ignore[method-assign]


def _kept_after_deletion(objects: Objects) -> None:
    objects.delete = lambda _: None  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("fault", "names"),
    [
        (_stale_reads, {"no memory of missing", "overwrite"}),
        (_short_bodies, {"whole bodies"}),
        (_late_listings, {"listing"}),
        (_kept_after_deletion, {"deletion", "left clean"}),
    ],
)
def test_each_fault_of_a_store_has_its_finding(fault: Callable[[Objects], None], names: set[str]) -> None:
    objects = in_memory()
    fault(objects)
    assert {finding.name for finding in probe_store(objects) if not finding.honoured} == names
