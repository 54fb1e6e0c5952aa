"""Spooled prompts, the cut into shards, and what identifies a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_builders import in_memory

from rollmill.storage.ledger import PROMPTS_STAGE
from rollmill.storage.plan import Plan
from rollmill.storage.runs import RunStore
from rollmill.tasks.generation.config import PolicyConfig, SamplingConfig
from rollmill.tasks.planning import cut, identity_of, spooled, store_prompts
from rollmill.tasks.prompts.config import PromptsConfig
from rollmill.tasks.prompts.prompt import Prompt, prompts_from_table
from rollmill.tasks.prompts.rendering import RenderingFingerprint


def prompt(index: int) -> Prompt:
    return Prompt(prompt_id=f"p{index}", content=f"question {index}", columns={"answer": index})


@given(st.integers(0, 200), st.integers(1, 50))
def test_shards_cover_every_prompt_once_and_none_is_larger_than_asked(num_prompts: int, per_shard: int) -> None:
    shards = cut(num_prompts, per_shard)
    assert [place for shard in shards for place in range(shard.start, shard.stop)] == list(range(num_prompts))
    assert all(1 <= shard.num_prompts <= per_shard for shard in shards)


def test_spooled_prompts_are_read_once_and_come_back_as_they_were() -> None:
    prompts = [prompt(index) for index in range(2500)]
    read = iter(prompts)
    with spooled(read) as kept:
        assert list(prompts_from_table(kept.table)) == prompts
        assert kept.num_prompts == 2500
    assert next(read, None) is None


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
    with spooled(prompts) as before, spooled(iter(prompts)) as again:
        assert before.fingerprint == again.fingerprint
    prompts[3] = replace(prompts[3], **changed)  # type: ignore[arg-type]
    with spooled(prompts) as after:
        assert after.fingerprint != before.fingerprint


def test_the_prompts_of_every_shard_are_kept_with_the_run_and_only_once() -> None:
    run = RunStore(in_memory(), "run")
    with spooled(prompt(index) for index in range(7)) as prompts:
        plan = run.open_plan(Plan("run", {}, cut(7, 3), 2))
        store_prompts(run, plan, prompts)
        first = run.markers(PROMPTS_STAGE, range(3))
        store_prompts(run, plan, prompts)
    assert run.markers(PROMPTS_STAGE, range(3)) == first
    kept = [asked for index in range(3) for asked in prompts_from_table(run.read_shard(PROMPTS_STAGE, index))]
    assert kept == [prompt(index) for index in range(7)]


def test_prompts_are_stored_in_the_shards_of_the_plan_that_was_there_first() -> None:
    run = RunStore(in_memory(), "run")
    run.open_plan(Plan("run", {}, cut(7, 2), 2))
    with spooled(prompt(index) for index in range(7)) as prompts:
        plan = run.open_plan(Plan("run", {}, cut(7, 5), 2))
        store_prompts(run, plan, prompts)
    assert [run.read_shard(PROMPTS_STAGE, index).num_rows for index in range(4)] == [2, 2, 2, 1]


def test_a_large_dataset_is_spooled_in_bounded_memory() -> None:
    import resource

    def many() -> Iterator[Prompt]:
        for index in range(60_000):
            yield replace(prompt(index), content="x" * 2000)

    with spooled(iter([prompt(0)])):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with spooled(many()) as prompts:
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert prompts.num_prompts == 60_000
    assert kilobytes < 60_000  # the prompts are 120 MB


def test_the_identity_of_a_run_holds_no_credentials() -> None:
    prompts = PromptsConfig(source="s3://bucket/prompts.jsonl", storage_options={"secret": "s3cr3t"})
    rendering = RenderingFingerprint(tokenizer="t", template="c")
    identity = identity_of(PolicyConfig(model="m"), "w", prompts, "p", rendering, SamplingConfig())
    assert "s3cr3t" not in str(identity)
    assert identity["policy"]["fingerprint"] == "w"
    assert identity["prompts"]["content"] == "p"
