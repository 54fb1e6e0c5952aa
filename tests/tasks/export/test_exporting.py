"""Training sets: what is in them, in which split, and that what they say of themselves is so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from export_builders import FACTS, MANY, SYSTEM, all_files, config_of, publish_answers, records_of
from hypothesis import given, settings
from hypothesis import strategies as st
from seaweedfs import S3Place
from store_builders import Place, in_memory

from rollmill.errors import JobError, RunFailedError
from rollmill.storage.objects import open_objects
from rollmill.storage.store import RolloutStore
from rollmill.tasks.export.card import card_of
from rollmill.tasks.export.config import ExportConfig
from rollmill.tasks.export.exporting import Exported, export_training_set
from rollmill.tasks.export.manifest import Manifest
from rollmill.tasks.export.records import to_records
from rollmill.tasks.export.split import is_test

FORMATS = ["sft", "dpo", "kto", "table"]


@pytest.fixture
def store(tmp_path: Path) -> RolloutStore:
    """A store with one version."""
    folder = tmp_path / "store"
    publish_answers(open_objects(str(folder)))
    return RolloutStore(folder)


def exported(store: RolloutStore, out: Path, config: ExportConfig | None = None, **options: Any) -> Exported:
    return export_training_set(store, open_objects(str(out)), config or config_of(), **options)


@pytest.mark.parametrize("training_format", FORMATS)
def test_no_prompt_is_in_both_splits_and_nothing_is_lost(
    store: RolloutStore, tmp_path: Path, training_format: str
) -> None:
    manifest = exported(store, tmp_path / "out", config_of(training_format)).manifest
    splits = {split: records_of(tmp_path / "out", manifest, split) for split in ("train", "test")}
    prompts = {split: {record["prompt_id"] for record in records} for split, records in splits.items()}
    assert prompts["train"]
    assert prompts["test"]
    assert not prompts["train"] & prompts["test"]
    assert all(is_test(prompt, 0.3, 0) for prompt in prompts["test"])
    assert sum(map(len, splits.values())) == manifest.records
    assert manifest.rows == 160 == manifest.kept + sum(manifest.dropped.values())


@given(st.lists(st.text(min_size=1), min_size=1, max_size=50), st.floats(0, 0.99), st.integers(0, 9))
def test_a_greater_test_split_holds_the_smaller_one(prompts: list[str], fraction: float, seed: int) -> None:
    small = {prompt for prompt in prompts if is_test(prompt, fraction / 2, seed)}
    assert small <= {prompt for prompt in prompts if is_test(prompt, fraction, seed)}
    assert not any(is_test(prompt, 0.0, seed) for prompt in prompts)


def test_about_the_asked_share_of_prompts_is_in_the_test_split() -> None:
    number = sum(is_test(f"prompt {index}", 0.1, 0) for index in range(10_000))
    assert 880 < number < 1120  # four standard deviations


def test_the_records_are_the_best_answers_in_the_messages_that_were_asked(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "It is"}]
    contents = {1: chat, 2: [7, 8, 9], 3: [{"role": "user", "content": "?", "name": "Ada"}]}
    place = in_memory()
    publish_answers(place, [[0.0, 1.0]] * 4, contents=contents)
    manifest = exported(RolloutStore(place.url), tmp_path, config_of(test_fraction=0.0)).manifest
    user = {"role": "user", "content": "question 0"}
    assert [record["messages"] for record in records_of(tmp_path, manifest, "train")] == [
        [SYSTEM, user, {"role": "assistant", "content": "answer 0.1"}],
        [SYSTEM, chat[0], {"role": "assistant", "content": "It isanswer 1.1"}],
        [{"role": "user", "content": "question 2"}, {"role": "assistant", "content": "answer 2.1"}],
    ]
    assert manifest.dropped == {"unsupported_prompt": 2, "not_best": 3}


def test_without_stored_prompts_the_whole_prompt_is_the_users_message(tmp_path: Path) -> None:
    place = in_memory()
    publish_answers(place, [[0.0, 1.0]], with_prompts=False)
    manifest = exported(RolloutStore(place.url), tmp_path, config_of("dpo", test_fraction=0.0)).manifest
    (pair,) = records_of(tmp_path, manifest, "train")
    assert pair["prompt"] == [{"role": "user", "content": "question 0"}]
    assert pair["chosen"] == [{"role": "assistant", "content": "answer 0.1"}]
    assert (pair["chosen_reward"], pair["rejected_reward"]) == (1.0, 0.0)


@pytest.mark.parametrize("training_format", FORMATS)
def test_the_same_input_gives_the_same_bytes(store: RolloutStore, tmp_path: Path, training_format: str) -> None:
    for name in ("one", "other"):
        assert exported(store, tmp_path / name, config_of(training_format)).is_new
    assert all_files(tmp_path / "one") == all_files(tmp_path / "other")


def test_a_table_is_the_chosen_rows_as_they_are_stored(store: RolloutStore, tmp_path: Path) -> None:
    manifest = exported(store, tmp_path / "out", config_of("table", min_reward=1, test_fraction=0.0)).manifest
    wanted = [row for row in store.latest().read().to_pylist() if row["reward"] == 1 and row["finish_reason"] == "stop"]
    assert records_of(tmp_path / "out", manifest, "train") == wanted


def test_a_column_that_older_files_do_not_have_is_null(store: RolloutStore) -> None:
    rows = store.latest().read()
    records = to_records(rows.drop_columns(["reward_parts"]), "table")
    assert records.schema == rows.schema.remove_metadata()
    assert records["reward_parts"].null_count == rows.num_rows


def test_duckdb_finds_what_the_manifest_and_the_card_say(store: RolloutStore, tmp_path: Path) -> None:
    out = tmp_path / "out"
    manifest = exported(store, out, config_of("dpo", min_margin=0.25)).manifest
    said = json.loads((out / "manifest.json").read_text())
    card = (out / "README.md").read_text()
    rows = f"'{tmp_path}/store/data/run/generate/*.parquet'"
    with duckdb.connect() as connection:

        def ask(query: str) -> tuple[Any, ...]:
            answered = connection.execute(query).fetchone()
            assert answered is not None
            return answered

        total, mean = ask(f"select count(*), avg(reward) from {rows}")
        assert (said["rows"], said["mean_reward"]) == (total, pytest.approx(mean, abs=1e-12))
        assert f"| all | {total} | answers looked at |" in card
        assert f"The mean of all scored answers is {mean:.4f}." in card
        unscored = ask(f"select count(*) from {rows} where reward is null")[0]
        assert f"| `not_scored` | {unscored} |" in card
        pairs = f"'{out}/data/{manifest.export_id}/*.parquet'"
        records, kept = ask(
            f"select count(*), (select count(*) from (select prompt_id, chosen_sample_index from {pairs} union "
            f"select prompt_id, rejected_sample_index from {pairs})) from {pairs}"
        )
        assert (said["records"], said["kept"]) == (records, kept)
        assert (
            card.count(f"{records} records, made by rollmill of {kept} of {total} answers that tiny, version 1 gave")
            == 1
        )
        for split, summary in said["splits"].items():
            files = f"'{out}/data/{manifest.export_id}/{split}-*.parquet'"
            number, prompts, chosen, rejected = ask(
                f"select count(*), count(distinct prompt_id), avg(chosen_reward), avg(rejected_reward) from {files}"
            )
            assert (summary["records"], summary["prompts"]) == (number, prompts)
            assert summary["mean"] == {
                "chosen_reward": pytest.approx(chosen),
                "rejected_reward": pytest.approx(rejected),
            }
            assert f"| {split} | {number} | {prompts} | {chosen:.4f} | {rejected:.4f} |" in card
        edges = said["histogram"]["edges"]
        for name, source, column in (("answers", rows, "reward"), ("chosen_reward", pairs, "chosen_reward")):
            for place, count in enumerate(said["histogram"]["counts"][name]):
                below = "<=" if place == len(edges) - 2 else "<"
                within = f"{column} >= {edges[place]!r} and {column} {below} {edges[place + 1]!r}"
                assert ask(f"select count(*) from {source} where {within}")[0] == count


def test_the_card_says_where_the_answers_come_from(store: RolloutStore, tmp_path: Path) -> None:
    exported(store, tmp_path / "out", config_of(min_reward=0.5))
    card = (tmp_path / "out" / "README.md").read_text()
    assert "### Run run" in card
    assert "| policy | tiny, version 1 |" in card
    assert json.dumps(FACTS["sampling"]) in card
    assert json.dumps(FACTS["rewards"]) in card
    assert "| min_reward | `0.5` |" in card
    assert "min_margin" not in card
    assert str(tmp_path) not in card


def test_a_manifest_read_back_is_the_manifest_and_makes_the_same_card(store: RolloutStore, tmp_path: Path) -> None:
    manifest = exported(store, tmp_path / "out", config_of("kto", min_reward=0.25)).manifest
    again = Manifest.from_bytes((tmp_path / "out" / "manifest.json").read_bytes(), "there")
    assert again == manifest
    assert card_of(again) == (tmp_path / "out" / "README.md").read_bytes()


@pytest.fixture
def two_runs(tmp_path: Path) -> RolloutStore:
    """A store with a run of an old policy and one of a new, of the same prompts, and the old one published again."""
    objects = open_objects(str(tmp_path / "store"))
    publish_answers(objects, MANY[:10], "old", policy_version=1)
    publish_answers(objects, MANY[:10], "new", policy_version=2)
    return RolloutStore(tmp_path / "store")


def test_several_versions_or_a_window_make_one_set_and_each_ones_part_is_told(
    two_runs: RolloutStore, tmp_path: Path
) -> None:
    several = exported(two_runs, tmp_path / "several", config_of("sft", keep_duplicates=True), versions=[1, 2]).manifest
    window = exported(two_runs, tmp_path / "window", config_of("sft", keep_duplicates=True), window=2).manifest
    assert all_files(tmp_path / "several") == all_files(tmp_path / "window")
    assert [(part.version, part.run_id, part.rows) for part in several.sources] == [(2, "new", 40), (1, "old", 40)]
    assert sum(part.kept for part in several.sources) == several.kept
    assert sum(part.records for part in window.sources) == several.records == 20
    records = records_of(tmp_path / "several", several, "train") + records_of(tmp_path / "several", several, "test")
    assert [sum(record["run_id"] == run for record in records) for run in ("new", "old")] == [10, 10]


def test_an_answer_that_the_newer_run_gave_too_is_taken_from_there(two_runs: RolloutStore, tmp_path: Path) -> None:
    manifest = exported(two_runs, tmp_path / "out", window=2).manifest
    assert [(part.run_id, part.records) for part in manifest.sources] == [("new", 10), ("old", 0)]


def test_versions_and_a_window_together_are_refused(two_runs: RolloutStore, tmp_path: Path) -> None:
    with pytest.raises(JobError, match="give several versions or a window, not both"):
        exported(two_runs, tmp_path / "out", versions=[1, 2], window=2)


def test_too_few_records_are_refused_with_the_reasons_and_nothing_is_written(
    store: RolloutStore, tmp_path: Path
) -> None:
    with pytest.raises(RunFailedError, match=r"0 sft records are left of 160 rows .* 8 not_scored") as refused:
        exported(store, tmp_path / "out", config_of(min_reward=5))
    assert "152 reward_low" in str(refused.value) or "reward_low" in str(refused.value)
    assert all_files(tmp_path / "out") == {}


def test_a_large_set_is_cut_into_files(store: RolloutStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import rollmill.tasks.export.spool as spool

    whole = exported(store, tmp_path / "whole", config_of("table")).manifest
    monkeypatch.setattr(spool, "_BYTES_PER_ROW_GROUP", 1)
    monkeypatch.setattr(spool, "_BYTES_PER_FILE", 1)
    cut = exported(store, tmp_path / "cut", config_of("table")).manifest
    assert len(cut.splits["train"].files) > 1
    for split in ("train", "test"):
        assert records_of(tmp_path / "cut", cut, split) == records_of(tmp_path / "whole", whole, split)


@settings(max_examples=10)
@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from(["sft", "dpo", "kto"]))
def test_the_same_answers_cut_into_other_shards_give_the_same_records(
    one: int, other: int, training_format: str
) -> None:
    found = []
    for prompts_per_shard in (one, other):
        store, out = in_memory(), in_memory()
        publish_answers(store, MANY[:12], prompts_per_shard=prompts_per_shard)
        config = config_of(training_format, pairs="max_random")
        manifest = export_training_set(RolloutStore(store.url), out, config).manifest
        found.append([_rows(out.get(file.path)) for file in manifest.files])
    assert found[0] == found[1]


def _rows(data: bytes) -> list[dict[str, Any]]:
    import pyarrow as pa

    rows: list[dict[str, Any]] = pq.read_table(pa.BufferReader(data)).to_pylist()
    return rows


def test_a_set_goes_from_s3_to_s3(s3: S3Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    source, target = Place(f"{s3.url}/store"), Place(f"{s3.url}/set")
    publish_answers(source.objects())
    manifest = export_training_set(source.store(), target.objects(), config_of("kto")).manifest
    local = tmp_path / "set"
    for key in target.objects().list(""):
        (local / key).parent.mkdir(parents=True, exist_ok=True)
        (local / key).write_bytes(target.objects().get(key))
    assert sorted(all_files(local)) == sorted(["README.md", "manifest.json", *(file.path for file in manifest.files)])
    assert len(records_of(local, manifest, "train")) == manifest.splits["train"].records
    assert not export_training_set(source.store(), target.objects(), config_of("kto")).is_new
