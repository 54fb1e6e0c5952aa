"""A set is seen whole or not at all, and nothing of another's is replaced unasked."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from crashing import HookedObjects
from export_builders import all_files, config_of, export_and_die, publish_answers

from rollmill.errors import CorruptDataError, JobError, RunFailedError
from rollmill.storage.objects import open_objects
from rollmill.storage.store import RolloutStore
from rollmill.tasks.export.exporting import Exported, export_training_set
from rollmill.tasks.export.place import unfinished_card


@pytest.fixture
def store(tmp_path: Path) -> RolloutStore:
    publish_answers(open_objects(str(tmp_path / "store")))
    return RolloutStore(tmp_path / "store")


def exported(store: RolloutStore, out: Path, overwrite: bool = False, **options: Any) -> Exported:
    return export_training_set(store, open_objects(str(out)), config_of(**options), overwrite=overwrite)


def loaded(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load a set as its users do."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    import datasets

    return datasets.load_dataset(str(folder), cache_dir=str(cache))


MESSAGE = {"role": "string", "content": "string"}
ORIGIN = {"prompt_id": "string", "run_id": "string", "policy_version": "int64"}
FEATURES: dict[str, dict[str, Any]] = {
    "sft": {"messages": [MESSAGE], **ORIGIN, "sample_index": "int32", "reward": "float64"},
    "dpo": {
        **{name: [MESSAGE] for name in ("prompt", "chosen", "rejected")},
        **ORIGIN,
        **dict.fromkeys(("chosen_sample_index", "rejected_sample_index"), "int32"),
        **dict.fromkeys(("chosen_reward", "rejected_reward"), "float64"),
    },
    "kto": {
        **{name: [MESSAGE] for name in ("prompt", "completion")},
        "label": "bool",
        **ORIGIN,
        "sample_index": "int32",
        "reward": "float64",
    },
}


def plain(feature: Any) -> Any:
    """Return a feature of `datasets` as plain names."""
    if isinstance(feature, dict):
        return {name: plain(inner) for name, inner in feature.items()}
    return [plain(feature.feature)] if hasattr(feature, "feature") else feature.dtype


@pytest.mark.parametrize("training_format", ["sft", "dpo", "kto", "table"])
def test_datasets_loads_both_splits_with_the_right_features(
    store: RolloutStore, tmp_path: Path, training_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = exported(store, tmp_path / "out", training_format=training_format).manifest
    found = loaded(tmp_path / "out", tmp_path / "cache", monkeypatch)
    assert {split: len(rows) for split, rows in found.items()} == {
        split: summary.records for split, summary in manifest.splits.items()
    }
    if training_format in FEATURES:
        assert plain(dict(found["train"].features)) == FEATURES[training_format]


@pytest.mark.parametrize(
    ("method", "key"),
    [("create", "README.md"), ("create", "data/{}/train"), ("create", "data/{}/test"), ("put", "manifest.json")],
)
def test_a_killed_export_shows_nothing_and_the_next_one_ends_the_same(
    store: RolloutStore, tmp_path: Path, method: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    manifest = exported(store, tmp_path / "whole").manifest
    assert export_and_die(tmp_path / "store", out, method, key.format(manifest.export_id)) == -9
    assert not (out / "manifest.json").exists()
    with pytest.raises(FileNotFoundError):
        loaded(out, tmp_path / "cache", monkeypatch)
    assert exported(store, out).is_new
    assert all_files(out) == all_files(tmp_path / "whole")


def test_a_killed_replacement_leaves_the_old_set_as_it_was(
    store: RolloutStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    old = exported(store, out, min_reward=1).manifest
    assert export_and_die(tmp_path / "store", out, "put", "README.md") == -9
    found = loaded(out, tmp_path / "cache", monkeypatch)
    assert {split: len(rows) for split, rows in found.items()} == {
        split: summary.records for split, summary in old.splits.items()
    }
    exported(store, tmp_path / "whole")
    assert exported(store, out).is_new
    whole = all_files(tmp_path / "whole")
    assert {path: data for path, data in all_files(out).items() if path in whole} == whole


def test_the_same_export_again_leaves_what_is_there(store: RolloutStore, tmp_path: Path) -> None:
    first = exported(store, tmp_path / "out")
    before = {path: (tmp_path / "out" / path).stat().st_mtime_ns for path in all_files(tmp_path / "out")}
    again = exported(store, tmp_path / "out")
    assert (first.is_new, again.is_new) == (True, False)
    assert again.manifest == first.manifest
    assert {path: (tmp_path / "out" / path).stat().st_mtime_ns for path in all_files(tmp_path / "out")} == before


def test_a_set_that_lost_a_file_is_made_again(store: RolloutStore, tmp_path: Path) -> None:
    first = exported(store, tmp_path / "out")
    whole = all_files(tmp_path / "out")
    (tmp_path / "out" / first.manifest.files[0].path).unlink()
    assert exported(store, tmp_path / "out").is_new
    assert all_files(tmp_path / "out") == whole


def test_another_set_is_refused_and_replaced_only_when_told(store: RolloutStore, tmp_path: Path) -> None:
    old = exported(store, tmp_path / "out")
    whole = all_files(tmp_path / "out")
    with pytest.raises(JobError, match=r"holds another training set \(\d+ sft records of version 1\)") as refused:
        exported(store, tmp_path / "out", training_format="kto")
    assert "--overwrite" in str(refused.value)
    assert all_files(tmp_path / "out") == whole
    new = exported(store, tmp_path / "out", overwrite=True, training_format="kto")
    assert sorted(all_files(tmp_path / "out")) == sorted(
        ["README.md", "manifest.json", *(file.path for file in new.manifest.files)]
    )
    assert new.manifest.export_id != old.manifest.export_id


def test_a_card_of_something_else_is_not_replaced_unasked(store: RolloutStore, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "README.md").write_text("# My notes")
    with pytest.raises(JobError, match=r"holds a README\.md of something else"):
        exported(store, tmp_path / "out")
    assert all_files(tmp_path / "out") == {"README.md": b"# My notes"}
    assert exported(store, tmp_path / "out", overwrite=True).is_new


def test_a_store_is_no_place_for_a_set(store: RolloutStore, tmp_path: Path) -> None:
    before = all_files(tmp_path / "store")
    with pytest.raises(JobError, match="is a rollout store; give another --out"):
        exported(store, tmp_path / "store", overwrite=True)
    assert all_files(tmp_path / "store") == before


def test_a_file_that_was_changed_is_not_taken_for_the_sets_own(store: RolloutStore, tmp_path: Path) -> None:
    first = exported(store, tmp_path / "one")
    shutil.copytree(tmp_path / "one" / "data", tmp_path / "out" / "data")
    (tmp_path / "out" / first.manifest.files[0].path).write_bytes(b"changed")
    with pytest.raises(CorruptDataError, match="holds other bytes than this export makes"):
        exported(store, tmp_path / "out")
    assert (tmp_path / "out" / "README.md").read_bytes() == unfinished_card(first.manifest.input_id)


def test_a_manifest_that_is_none_is_named(store: RolloutStore, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").write_text('{"kind": "web app"}')
    with pytest.raises(CorruptDataError, match=r"manifest\.json is not the manifest of a training set"):
        exported(store, tmp_path / "out")


def race(store: RolloutStore, out: Path, formats: Sequence[str]) -> list[Future[Exported]]:
    """Export several sets to one new place, all of which find it free and then begin to write at the same time."""
    start = Barrier(len(formats), timeout=60)

    def hook(moment: str, name: str, key: str) -> None:
        if (moment, name, key) == ("before", "create", "README.md"):
            start.wait()

    def export(training_format: str) -> Exported:
        place = HookedObjects(open_objects(str(out)), hook)
        return export_training_set(store, place, config_of(training_format))

    with ThreadPoolExecutor(len(formats)) as threads:
        return [threads.submit(export, training_format) for training_format in formats]


def test_of_exports_of_different_sets_that_race_to_a_new_place_one_is_put_there_whole(
    store: RolloutStore, tmp_path: Path
) -> None:
    formats = ["sft", "dpo", "kto", "table"]
    raced = race(store, tmp_path / "out", formats)
    [won] = [export for export in raced if export.exception() is None]
    for lost in raced:
        if lost is not won:
            assert isinstance(lost.exception(), JobError)
            assert "another training set" in str(lost.exception())
    manifest = won.result().manifest
    assert manifest.format == formats[raced.index(won)]
    exported(store, tmp_path / "alone", training_format=manifest.format)
    assert all_files(tmp_path / "out") == all_files(tmp_path / "alone")


def test_exports_of_the_same_set_that_race_to_a_new_place_all_succeed(store: RolloutStore, tmp_path: Path) -> None:
    raced = race(store, tmp_path / "out", ["sft"] * 3)
    assert len({export.result().manifest.export_id for export in raced}) == 1
    exported(store, tmp_path / "alone")
    assert all_files(tmp_path / "out") == all_files(tmp_path / "alone")


def test_another_set_does_not_go_on_where_a_killed_export_began_unless_told(
    store: RolloutStore, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert export_and_die(tmp_path / "store", out, "create", "data/") == -9
    before = all_files(out)
    with pytest.raises(JobError, match=r"another training set is being written to .* or its writer was stopped"):
        exported(store, out, training_format="kto")
    assert all_files(out) == before
    assert exported(store, out, training_format="kto", overwrite=True).is_new
    assert exported(store, tmp_path / "alone", training_format="kto").is_new
    assert {path for path in all_files(out) if not path.startswith("_tmp/")} == set(all_files(tmp_path / "alone"))


def test_an_export_leaves_nothing_beside_its_set(store: RolloutStore, tmp_path: Path) -> None:
    exported(store, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"README.md", "data", "manifest.json"}
    with pytest.raises(RunFailedError):
        exported(store, tmp_path / "none", min_records=10**6)
    assert list((tmp_path / "none").iterdir()) == []
