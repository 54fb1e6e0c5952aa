"""Spooled prompts, the cut into shards, and what identifies a run."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_builders import in_memory

from rollmill.errors import PromptSourceError
from rollmill.storage.ledger import PROMPTS_STAGE
from rollmill.storage.plan import Plan
from rollmill.storage.runs import RunStore
from rollmill.tasks.generation.config import PolicyConfig, SamplingConfig
from rollmill.tasks.planning import ShardPrompts, cut, identity_of
from rollmill.tasks.prompts.config import PromptsConfig
from rollmill.tasks.prompts.prompt import Prompt, prompts_from_table, to_json
from rollmill.tasks.prompts.rendering import RenderingFingerprint
from rollmill.tasks.prompts.spool import SpooledPrompts


def prompt(index: int) -> Prompt:
    return Prompt(prompt_id=f"p{index}", content=f"question {index}", columns={"answer": index})


@given(st.integers(0, 200), st.integers(1, 50))
def test_shards_cover_every_prompt_once_and_none_is_larger_than_asked(num_prompts: int, per_shard: int) -> None:
    shards = cut(num_prompts, per_shard)
    assert [place for shard in shards for place in range(shard.start, shard.stop)] == list(range(num_prompts))
    assert all(1 <= shard.num_prompts <= per_shard for shard in shards)


def test_spooled_prompts_are_read_once_and_any_part_of_them_comes_back_as_it_was() -> None:
    prompts = [prompt(index) for index in range(2500)]
    read = iter(prompts)
    with SpooledPrompts(read) as kept:
        assert next(read, None) is None
        assert kept.num_prompts == 2500
        for start, stop in ((0, 2500), (0, 1), (1000, 1100), (1023, 1025), (1024, 2048), (2499, 2500), (7, 7)):
            assert list(prompts_from_table(kept.table(start, stop))) == prompts[start:stop]


def test_the_temporary_file_is_gone_when_the_prompts_are_closed_or_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with SpooledPrompts([prompt(0)]):
        assert len(list(tmp_path.iterdir())) == 1

    def broken() -> Iterator[Prompt]:
        yield prompt(0)
        raise PromptSourceError("prompts.source gone")

    with pytest.raises(PromptSourceError):
        SpooledPrompts(broken())
    assert list(tmp_path.iterdir()) == []


def test_the_fingerprint_is_the_one_that_stored_plans_have() -> None:
    prompts = [prompt(0), Prompt(prompt_id="bad", content=None, error="row 2: it is \u2028 empty")]
    rows = [(each.prompt_id, to_json(each.content), each.error, to_json(each.columns)) for each in prompts]
    with SpooledPrompts(prompts) as kept:
        assert kept.fingerprint == hashlib.sha256("".join(map(repr, rows)).encode()).hexdigest()
        assert (kept.num_prompts, kept.num_unusable) == (2, 1)


@pytest.mark.parametrize(
    "changed",
    [
        {"content": "another question"},
        {"prompt_id": "another"},
        {"columns": {"answer": -1}},
        {"content": None, "error": "empty"},
    ],
)
def test_the_fingerprint_changes_with_anything_in_any_prompt(changed: dict[str, object]) -> None:
    prompts = [prompt(index) for index in range(5)]
    with SpooledPrompts(prompts) as before, SpooledPrompts(iter(prompts)) as again:
        assert before.fingerprint == again.fingerprint
    prompts[3] = replace(prompts[3], **changed)  # type: ignore[arg-type]
    with SpooledPrompts(prompts) as after:
        assert after.fingerprint != before.fingerprint


def test_a_shard_s_prompts_are_kept_with_the_run_when_they_are_first_asked_for_and_only_once() -> None:
    run = RunStore(in_memory(), "run")
    with SpooledPrompts(prompt(index) for index in range(7)) as dataset:
        plan = run.open_plan(Plan("run", {}, cut(7, 3), 2))
        prompts = ShardPrompts(run, dataset)
        assert run.markers(PROMPTS_STAGE, range(3)) == {}
        asked = [prompts.of(shard) for shard in plan.shards]
        first = run.markers(PROMPTS_STAGE, range(3))
        assert [prompts.of(shard) for shard in plan.shards] == asked
        prompts.keep(plan.shards)
    assert [each for shard in asked for each in shard] == [prompt(index) for index in range(7)]
    assert run.markers(PROMPTS_STAGE, range(3)) == first
    kept = [each for index in range(3) for each in prompts_from_table(run.read_shard(PROMPTS_STAGE, index))]
    assert kept == [prompt(index) for index in range(7)]


def test_prompts_that_were_lost_are_kept_again() -> None:
    run = RunStore(in_memory(), "run")
    with SpooledPrompts(prompt(index) for index in range(7)) as dataset:
        plan = run.open_plan(Plan("run", {}, cut(7, 3), 2))
        prompts = ShardPrompts(run, dataset)
        prompts.keep(plan.shards)
        run.objects.delete(run.markers(PROMPTS_STAGE, [1])[1].file)
        prompts.keep(plan.shards)
    assert [run.read_shard(PROMPTS_STAGE, index).num_rows for index in range(3)] == [3, 3, 1]


def test_prompts_are_kept_in_the_shards_of_the_plan_that_was_there_first() -> None:
    run = RunStore(in_memory(), "run")
    run.open_plan(Plan("run", {}, cut(7, 2), 2))
    with SpooledPrompts(prompt(index) for index in range(7)) as dataset:
        plan = run.open_plan(Plan("run", {}, cut(7, 5), 2))
        ShardPrompts(run, dataset).keep(plan.shards)
    assert [run.read_shard(PROMPTS_STAGE, index).num_rows for index in range(4)] == [2, 2, 2, 1]


def test_a_large_dataset_is_spooled_in_bounded_memory() -> None:
    import resource

    def many() -> Iterator[Prompt]:
        for index in range(60_000):
            yield replace(prompt(index), content="x" * 2000)

    with SpooledPrompts(iter([prompt(0)])):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with SpooledPrompts(many()) as prompts:
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert prompts.num_prompts == 60_000
    assert kilobytes < 60_000  # the prompts are 120 MB


def test_the_identity_of_a_run_does_not_hold_how_its_prompts_are_reached() -> None:
    prompts = PromptsConfig(source="s3://bucket/prompts.jsonl", storage_options={"profile": "s3cr3t"})
    rendering = RenderingFingerprint(tokenizer="t", template="c")
    identity = identity_of(PolicyConfig(model="m"), "w", prompts, "p", rendering, SamplingConfig())
    assert "s3cr3t" not in str(identity)
    assert identity["policy"]["fingerprint"] == "w"
    assert identity["prompts"]["content"] == "p"
