from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from export_builders import publish_answers

from rollmill.storage.objects import open_objects

if TYPE_CHECKING:
    from conftest import RunCommand


@pytest.fixture
def store(tmp_path: Path) -> Path:
    publish_answers(open_objects(str(tmp_path / "store")))
    return tmp_path / "store"


def test_a_set_is_written_and_its_figures_are_printed(command: RunCommand, store: Path, tmp_path: Path) -> None:
    ended = command("export", store, "--format", "sft", "--min-reward", "1", "--out", tmp_path / "set")
    assert (ended.status, ended.err) == (0, "")
    manifest = json.loads((tmp_path / "set" / "manifest.json").read_text())
    lines = ended.out.splitlines()
    assert lines[0] == f"wrote 40 sft records of 160 answers in {tmp_path / 'set'}"
    assert lines[2].split() == ["split", "records", "prompts", "mean", "reward"]
    assert any(line.split() == ["1", "run", "1", "160", "40", "40"] for line in lines)
    told = {line.split()[1].rstrip(":"): int(line.split()[0]) for line in lines[lines.index("answers  why") + 1 :]}
    assert told == {**manifest["dropped"], "kept": 40, "all": 160}


def test_the_manifest_is_printed_as_json(command: RunCommand, store: Path, tmp_path: Path) -> None:
    arguments = ("export", store, "--format", "dpo", "--pairs", "adjacent", "--min-margin", "0.3", "--json")
    said = json.loads(command(*arguments, "--out", tmp_path / "set").out)
    assert said["is_new"]
    assert said["config"]["selection"]["pairs"] == "adjacent"
    assert said["kept"] + sum(said["dropped"].values()) == said["rows"]
    assert not json.loads(command(*arguments, "--out", tmp_path / "set").out)["is_new"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--format", "orpo"], "format must be 'sft', 'dpo', 'kto' or 'table', got 'orpo'"),
        (["--format", "sft", "--best-of", "0"], "selection.best_of must be at least 1, got 0"),
        (
            ["--format", "sft", "--min-pass-rate", "0.9", "--max-pass-rate", "0.1"],
            "max_pass_rate must be at least min_pass_rate, got 0.1 < 0.9",
        ),
        (["--format", "dpo", "--top", "2"], "top is for sft and table"),
        (["--format", "sft", "--match", "("], "is not a regular expression"),
        (["--format", "sft", "--where", "reward"], "is not a comparison"),
        (["--format", "sft", "--test-fraction", "1"], "test_fraction must be less than 1.0, got 1.0"),
        (["--format", "sft", "--window", "0"], "window must be at least 1, got 0"),
    ],
)
def test_options_that_make_no_sense_are_one_line_and_status_2(
    command: RunCommand, store: Path, tmp_path: Path, options: list[str], reason: str
) -> None:
    ended = command("export", store, *options, "--out", tmp_path / "set")
    assert (ended.status, ended.out) == (2, "")
    assert reason in ended.err
    assert ended.err.count("\n") == 1
    assert not (tmp_path / "set").exists()


def test_no_records_are_status_1_with_the_reasons(command: RunCommand, store: Path, tmp_path: Path) -> None:
    ended = command("export", store, "--format", "sft", "--min-reward", "2", "--out", tmp_path / "set")
    assert (ended.status, ended.out) == (1, "")
    assert "0 sft records are left of 160 rows" in ended.err
    assert "reward_low" in ended.err


def test_another_set_is_refused_until_it_may_be_replaced(command: RunCommand, store: Path, tmp_path: Path) -> None:
    assert command("export", store, "--format", "sft", "--out", tmp_path / "set").status == 0
    ended = command("export", store, "--format", "kto", "--out", tmp_path / "set")
    assert ended.status == 2
    assert "give --overwrite to replace it, or another --out" in ended.err
    assert command("export", store, "--format", "kto", "--out", tmp_path / "set", "--overwrite").status == 0


def test_an_empty_store_and_a_version_that_is_not_there_are_named(
    command: RunCommand, store: Path, tmp_path: Path
) -> None:
    ended = command("export", store, "--format", "sft", "--version", "7", "--out", tmp_path / "set")
    assert (ended.status, "has no version 7" in ended.err) == (1, True)
    ended = command("export", tmp_path / "none", "--format", "sft", "--out", tmp_path / "set")
    assert (ended.status, "has no published version yet" in ended.err) == (1, True)
