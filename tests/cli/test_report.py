"""`rollmill report`: where the page goes, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from report_builders import FAILED, Page, publish, rewarded
from seaweedfs import S3Place

from rollmill.storage.objects import open_objects

if TYPE_CHECKING:
    from conftest import RunCommand


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of two versions."""
    objects = open_objects(str(tmp_path / "store"))
    publish(objects, [[rewarded(0.0), rewarded(1.0)], [rewarded(0.0), FAILED]], "first", policy_version=1)
    publish(objects, [[rewarded(1.0), rewarded(1.0)], [rewarded(0.0), FAILED]], "second", policy_version=2)
    return tmp_path / "store"


def test_the_page_takes_the_place_of_an_older_one_and_leaves_nothing_else(
    command: RunCommand, store: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "pages"
    folder.mkdir()
    (folder / "report.html").write_text("an older page")
    ended = command("report", store, "--out", folder / "report.html")
    size = (folder / "report.html").stat().st_size
    assert (ended.status, ended.err) == (0, "")
    assert ended.out == f"wrote {folder / 'report.html'}, {size:,} bytes: version 2 of {store}\n"
    assert [path.name for path in folder.iterdir()] == ["report.html"]


def test_the_page_is_called_report_html_where_it_is_not_told_otherwise(
    command: RunCommand, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command("report", store).status == 0
    assert Page((tmp_path / "report.html").read_text()).data("figures")["version"] == 2


def test_one_version_is_shown_and_another_compared(command: RunCommand, store: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "page.html"
    ended = command("report", store, "--version", "1", "--compare", "2", "--out", out, "--json")
    said, page = json.loads(ended.out), Page(out.read_text())
    assert (said["version"], said["compared_with"]["version"]) == (1, 2)
    assert (said["page"], said["page_bytes"]) == (str(out), out.stat().st_size)
    assert {name: value for name, value in said.items() if not name.startswith("page")} == page.data("figures")


def test_fewer_answers_make_a_smaller_page_with_the_same_figures(
    command: RunCommand, store: Path, tmp_path: Path
) -> None:
    whole, small = (
        json.loads(command("report", store, "--out", tmp_path / "page.html", "--json", *options).out)
        for options in ((), ("--max-answers", "2"))
    )
    assert small.pop("page_bytes") < whole.pop("page_bytes")
    assert small == whole
    assert "showing 1 of 2 prompts, 2 of 4 answers" in Page((tmp_path / "page.html").read_text()).words


def test_the_page_goes_to_s3(command: RunCommand, store: Path, s3: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    ended = command("report", store, "--out", f"{s3.url}/pages/1.html")
    assert ended.out.startswith(f"wrote {s3.url}/pages/1.html, ")
    assert Page(open_objects(s3.url, s3.storage_options).get("pages/1.html").decode()).data("figures")["version"] == 2


@pytest.mark.parametrize(
    ("options", "status", "reason"),
    [
        (["--version", "7"], 1, "has no version 7; its versions are 1 to 2"),
        (["--compare", "7"], 1, "has no version 7; its versions are 1 to 2"),
        (["--out", "pages/"], 2, "--out must name a file, as in report.html or s3://bucket/reports/1.html, got pages/"),
        (["--out", "/"], 2, "--out must name a file"),
        (["--out", "ftp://host/page.html"], 2, "ftp:// is not supported"),
        (["--out", "/proc/page.html"], 2, "the page cannot be written to /proc/page.html"),
        (["--tokenizer", "/no/such/folder"], 2, "there is no such folder"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    command: RunCommand, tmp_path: Path, options: list[str], status: int, reason: str
) -> None:
    objects = open_objects(str(tmp_path / "store"))
    policy = {"policy": {"model": "x"}, "prompts": {"tokenizer": "0" * 64}}
    for run_id in ("first", "second"):
        publish(objects, [[rewarded(1.0)]], run_id, metadata=policy)
    out = [] if "--out" in options else ["--out", tmp_path / "page.html"]
    ended = command("report", tmp_path / "store", *out, *options)
    assert (ended.status, ended.out) == (status, "")
    assert reason in ended.err
    assert len(ended.err.splitlines()) == 1
    assert not (tmp_path / "page.html").exists()


def test_a_missing_matplotlib_is_named_with_how_to_get_it(
    command: RunCommand, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ended = command("report", store, "--out", tmp_path / "page.html")
    assert (ended.status, ended.err) == (2, "rollmill: charts need matplotlib: pip install 'rollmill[report]'\n")
