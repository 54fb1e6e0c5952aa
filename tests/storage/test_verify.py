from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_builders import (
    FILE_METADATA,
    PROMPT_SCHEMA,
    Place,
    in_memory,
    plan_of,
    row_of,
    shard_prompts,
    shard_rows,
    table_of,
    write_rows,
    write_run,
)

from rollmill.errors import ObjectMissingError, RollmillError
from rollmill.storage.log import VersionLog
from rollmill.storage.objects import Objects
from rollmill.storage.publish import publish_run
from rollmill.storage.runs import RunStore
from rollmill.storage.store import RolloutStore
from rollmill.storage.verify import VerifyReport, verify_store

PUBLISHED, SECOND, UNFINISHED = plan_of("published"), plan_of("second"), plan_of("unfinished")


def test_a_sound_store_has_no_problems(place: Place) -> None:
    _fill(place.objects())
    report = verify_store(place.store())
    assert report == VerifyReport(
        problems=(), num_versions=2, num_runs=3, num_markers=14, num_files=14, num_rows=30, num_groups=10
    )
    assert verify_store(place.store(), 1) == replace(
        report, num_runs=1, num_markers=6, num_files=6, num_rows=15, num_groups=5
    )


def test_nothing_there_is_a_problem(place: Place) -> None:
    [problem] = verify_store(place.store()).problems
    assert "there is no rollout store in" in problem.what


def test_a_version_that_does_not_exist_is_refused(place: Place) -> None:
    _fill(place.objects())
    with pytest.raises(ObjectMissingError, match="has no version 3"):
        verify_store(place.store(), 3)


@pytest.mark.parametrize("harm", ["gone", "short", "changed"])
@pytest.mark.parametrize("run_id", ["published", "unfinished"])
@pytest.mark.parametrize("stage", ["prompts", "generate"])
def test_a_damaged_file_is_named(place: Place, harm: str, run_id: str, stage: str) -> None:
    objects = place.objects()
    _fill(objects)
    marker = RunStore(objects, run_id).marker(stage, 0)
    assert marker is not None
    data = objects.get(marker.file)
    if harm == "gone":
        objects.delete(marker.file)
    else:
        objects.put(marker.file, data[:-1] if harm == "short" else data[:99] + bytes([data[99] ^ 1]) + data[100:])
    assert marker.file in {problem.where for problem in verify_store(place.store()).problems}


_MAY_BE_GONE = re.compile(r"runs/[^/]+/publish/.*|runs/unfinished/[^/]+/00000\.json|HEAD")
_SOUND = in_memory()
_EVERYTHING: dict[str, bytes] = {}


def _everything() -> dict[str, bytes]:
    """Return a sound store's objects, made once."""
    if not _EVERYTHING:
        _fill(_SOUND)
        _EVERYTHING.update({key: _SOUND.get(key) for key in _SOUND.list("")})
    return _EVERYTHING


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_damage_is_named_or_harmless_and_never_a_crash(data: st.DataObject) -> None:
    everything = _everything()
    key = data.draw(st.sampled_from(sorted(set(everything) - {"_format.json"})))
    place = data.draw(st.integers(0, len(everything[key]) - 1))
    harm = data.draw(st.sampled_from(["gone", "short", "changed"]))
    objects = in_memory()
    for name, content in everything.items():
        objects.put(name, content)
    if harm == "gone":
        objects.delete(key)
    else:
        content = everything[key]
        flipped = bytes([content[place] ^ data.draw(st.integers(1, 255))])
        objects.put(key, content[:place] + (flipped + content[place + 1 :] if harm == "changed" else b""))
    problems = verify_store(RolloutStore(objects.url)).problems
    if key.startswith("data/"):
        assert key in {problem.where for problem in problems}
    if harm == "gone" and key.startswith(("log/", "runs/")) and not _MAY_BE_GONE.fullmatch(key):
        assert problems
    if not problems:
        _expect_the_same_rows(objects)


def test_rows_that_the_log_does_not_describe_are_named() -> None:
    objects, plan = in_memory(), plan_of()
    write_run(objects, plan, policy_version=7)
    publish_run(objects, plan, "generate", policy_version=1)
    problems = verify_store(RolloutStore(objects.url)).problems
    assert len(problems) == 3
    assert all("policy_version [7], the log says 1" in problem.what for problem in problems)


def test_a_group_that_is_not_whole_is_named() -> None:
    objects = in_memory()
    _publish_past_the_ledger(objects, [row_of(0, sample) for sample in (0, 1, 1)])
    [problem] = verify_store(RolloutStore(objects.url)).problems
    assert re.search(r"shard 0 of version 1.*missing .*'p0', 2.*doubled .*'p0', 1", problem.what)


def test_a_file_of_another_schema_is_named() -> None:
    objects = in_memory()
    runs = RunStore(objects, "run")
    runs.open_plan(plan_of())
    runs.write_shard("generate", 0, shard_prompts(plan_of(), 0), schema=PROMPT_SCHEMA, file_metadata={}, stats={})
    [problem] = verify_store(RolloutStore(objects.url)).problems
    assert "has another schema than this format's" in problem.what


def test_a_gap_in_the_log_and_a_hint_beyond_its_end_are_named(place: Place) -> None:
    objects = place.objects()
    _fill(objects)
    objects.delete("log/000000000001.json")
    objects.put("HEAD", b"5")
    problems = {problem.where: problem.what for problem in verify_store(place.store()).problems}
    assert "version 1 is missing from the log" in problems["log/000000000001.json"]
    assert "HEAD names a version after the last" in problems["HEAD"]


def test_a_plan_that_was_replaced_is_named(place: Place) -> None:
    objects = place.objects()
    _fill(objects)
    objects.put("runs/second/plan.json", plan_of("second", seed=5).to_json().encode())
    [problem] = verify_store(place.store()).problems
    assert "run second was published under another plan" in problem.what


def test_a_file_lost_and_made_again_is_no_problem_once_published(place: Place) -> None:
    objects = place.objects()
    _fill(objects)
    lost = place.store().latest().files[0]
    objects.delete(lost.file)
    write_rows(RunStore(objects, "second"), 0, shard_rows(SECOND, 0))
    assert [problem.where for problem in verify_store(place.store()).problems] == [lost.file]
    publish_run(objects, SECOND, "generate", policy_version=1)
    assert verify_store(place.store()).problems == ()
    assert [problem.where for problem in verify_store(place.store(), 2).problems] == [lost.file]


def _fill(objects: Objects) -> None:
    """Publish two runs and leave a third unfinished."""
    for plan in (PUBLISHED, SECOND):
        write_run(objects, plan)
        publish_run(objects, plan, "generate", policy_version=1)
    runs = RunStore(objects, "unfinished")
    runs.open_plan(UNFINISHED)
    runs.write_shard("prompts", 0, shard_prompts(UNFINISHED, 0), schema=PROMPT_SCHEMA, file_metadata={}, stats={})
    write_rows(runs, 0, shard_rows(UNFINISHED, 0))


def _publish_past_the_ledger(objects: Objects, rows: list[dict[str, Any]]) -> None:
    """Publish a sound shard, then make the log and the marker agree on other rows."""
    plan = plan_of(num_prompts=1)
    runs = write_run(objects, plan, prompts=False)
    sound = publish_run(objects, plan, "generate", policy_version=1).entry
    objects.delete(sound.files[0].file)
    marker = write_rows(runs, 0, table_of(rows))
    files = (replace(sound.files[0], file=marker.file, bytes=marker.bytes, sha256=marker.sha256),)
    objects.put("log/000000000001.json", _signed(replace(sound, files=files)))
    assert VersionLog(objects).latest() is not None


def _signed(entry: Any) -> bytes:
    from rollmill.storage.log import operation_id_of

    operation_id = operation_id_of(entry.run_id, entry.stage, entry.policy_version, entry.files)
    text: str = replace(entry, operation_id=operation_id).to_json()
    return text.encode()


def _expect_the_same_rows(objects: Objects) -> None:
    """The damage that nothing names changes nothing that a reader gets."""
    sound = RolloutStore(_SOUND.url)
    try:
        versions = RolloutStore(objects.url).versions()
    except RollmillError as error:
        raise AssertionError(f"a reader fails where verify finds nothing: {error}") from error
    assert [version.number for version in versions] == [1, 2]
    for version in versions:
        assert version.read().equals(sound.version(version.number).read())
        assert version.read().schema.metadata[b"logprob_mode"].decode() == FILE_METADATA["logprob_mode"]
