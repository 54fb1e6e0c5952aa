"""Rewards that fail: a run with too many does not publish, and the next start computes only those again."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from flow_builders import answers

from rollmill.errors import RunFailedError
from rollmill.flows.failures import FailedRewards
from rollmill.flows.gate import Gate
from rollmill.flows.job import RolloutJob
from rollmill.flows.rollout import rollout
from rollmill.storage.cached_runner import CachedRolloutRunner
from rollmill.storage.verify import verify_store

if TYPE_CHECKING:
    from conftest import FinishedRun


@dataclass(frozen=True, slots=True)
class BrokenReward:
    """A user's function that has no reward for answers whose first letter is before `broken_below`, until repaired."""

    folder: Path
    config: dict[str, Any]

    @property
    def asked(self) -> list[str]:
        """The answers that it was asked about, in any order."""
        return [json.loads(line) for line in (self.folder / "asked").read_text().splitlines()]

    def repair(self) -> None:
        (self.folder / "repaired").touch()
        (self.folder / "asked").write_text("")

    def job(self, finished: FinishedRun, **changes: Any) -> RolloutJob:
        return RolloutJob.model_validate({**finished.job.model_dump(), "rewards": [self.config], **changes})


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BrokenReward:
    """A reward that fails for about half of the answers."""
    monkeypatch.syspath_prepend(str(tmp_path))
    source = """
        import json, pathlib

        def score(prompts, completions, folder, broken_below, **columns):
            folder = pathlib.Path(folder)
            with (folder / "asked").open("a") as asked:
                asked.writelines(json.dumps(text) + "\\n" for text in completions)
            repaired = (folder / "repaired").exists()
            return [1.0 if repaired or text[:1] >= broken_below else None for text in completions]
    """
    (tmp_path / "broken_rewards.py").write_text(textwrap.dedent(source))
    options = {"folder": str(tmp_path), "broken_below": "a"}
    return BrokenReward(
        tmp_path, {"type": "function", "path": "broken_rewards:score", "name": "broken", "options": options}
    )


def test_a_run_whose_rewards_fail_too_often_publishes_nothing_and_says_why_and_how_to_go_on(
    finished: FinishedRun, broken: BrokenReward
) -> None:
    with pytest.raises(RunFailedError) as caught:
        rollout(broken.job(finished))
    message = str(caught.value)
    assert "of 32 answers could not be scored, more than max_failed_fraction 0.1 allows" in message
    assert "× broken: the reward returned None" in message
    assert "the same command computes only these again" in message
    assert "\n" not in message
    assert [version.number for version in finished.store.versions()] == [1]


def test_the_next_start_computes_only_the_rewards_that_failed(finished: FinishedRun, broken: BrokenReward) -> None:
    first = rollout(broken.job(finished, max_failed_fraction=1))
    before = finished.store.latest().read()
    failed = [row["response_text"] for row in before.to_pylist() if row["reward_status"] == "failed"]
    assert (first.version, first.figures.unscored) == (2, len(failed))
    assert first.figures.reasons == {"broken: the reward returned None": len(failed)}
    assert 0 < len(failed) < 32
    broken.repair()
    second = rollout(broken.job(finished))
    assert sorted(broken.asked) == sorted(failed)
    assert (second.version, second.new_rows, second.figures.unscored, second.figures.reasons) == (3, 0, 0, {})
    after = finished.store.latest().read()
    assert finished.store.version(2).read().equals(before)
    for column in set(before.column_names) - {"reward", "reward_status", "reward_error", "reward_parts"}:
        assert after[column].equals(before[column]), column
    assert after["reward"].null_count == 0
    assert verify_store(finished.store).problems == ()


def test_rewards_that_fail_each_time_change_nothing(finished: FinishedRun, broken: BrokenReward) -> None:
    job = broken.job(finished, max_failed_fraction=1)
    first = rollout(job)
    files = sorted(finished.folder.rglob("*.parquet"))
    second = rollout(job)
    assert (second.version, second.figures) == (first.version, first.figures)
    assert sorted(finished.folder.rglob("*.parquet")) == files


def test_the_report_counts_failures_by_reason(finished: FinishedRun, broken: BrokenReward) -> None:
    report = rollout(broken.job(finished, max_failed_fraction=1))
    count = report.figures.unscored
    line = f"{count} × broken: the reward returned None"
    assert line in report.to_text()
    assert line in report.to_markdown()
    assert report.to_json()["figures"]["reasons"] == {"broken: the reward returned None": count}
    assert report.figures.scored + count == 32
    rows = finished.store.latest().read(["reward"])
    assert rows["reward"].null_count == count
    assert 0.0 not in rows["reward"].to_pylist()


def test_ids_and_log_probabilities_stay_those_of_the_run(finished: FinishedRun, broken: BrokenReward) -> None:
    generated = answers(finished.store)
    rollout(broken.job(finished, max_failed_fraction=1))
    assert answers(finished.store) == generated


def test_groups_with_failed_members_follow_the_policy_of_the_reader(
    finished: FinishedRun, broken: BrokenReward
) -> None:
    rollout(broken.job(finished, max_failed_fraction=1))
    rows = finished.store.latest().read(["prompt_id", "reward"]).to_pandas()
    scored = rows["reward"].notna().groupby(rows["prompt_id"]).sum()
    for policy, wanted in (
        ({"null_rewards": "keep"}, set(scored.index)),
        ({"null_rewards": "min_k", "min_k": 2}, set(scored.index[scored >= 2])),
    ):
        result, _ = CachedRolloutRunner(finished.store, prompts_per_batch=8, **policy)()
        assert set(result.prompt_ids) == wanted
        missing = result.rewards.isnan().sum(dim=1)
        assert missing.tolist() == [4 - scored[prompt_id] for prompt_id in result.prompt_ids]
    assert (scored < 4).any()


def stats(*, unscored: int, scored: int, failed: int = 0) -> dict[str, Any]:
    rows = unscored + scored + failed
    counts = dict.fromkeys(("groups", "ok", "truncated", "response_tokens", "reward_sum"), 0)
    reasons = {"timed out": unscored} if unscored else {}
    counts |= {"rows": rows, "failed": failed, "scored": scored, "unscored": unscored}
    return {**counts, "reasons": reasons, "passes": {}}


def limit(gate: Gate, max_fraction: float, total_rows: int) -> FailedRewards:
    return FailedRewards("run r", max_fraction=max_fraction, total_rows=total_rows, gate=gate, remedy="Go on.")


def test_the_gate_closes_as_soon_as_no_later_answer_could_help() -> None:
    gate = Gate()
    failed = limit(gate, 0.25, 100)
    failed.add(0, stats(unscored=25, scored=0))
    failed.check()
    gate.check()
    failed.add(1, stats(unscored=1, scored=9))
    with pytest.raises(RunFailedError, match=r"^run r: 26 of 100 answers .* 26 × timed out\. Go on\.$"):
        failed.check()
    with pytest.raises(RunFailedError, match="not begun"):
        gate.check()


def test_prompts_without_an_answer_count_neither_way() -> None:
    failed = limit(Gate(), 0.25, 100)
    failed.add(0, stats(unscored=10, scored=0, failed=60))
    failed.check()
    failed.add(1, stats(unscored=1, scored=0))
    with pytest.raises(RunFailedError, match="11 of 40 answers"):
        failed.check()


@pytest.mark.parametrize(("fraction", "stops"), [(0.0, True), (1.0, False)])
def test_the_bounds_allow_no_failure_and_any_number(fraction: float, stops: bool) -> None:
    failed = limit(Gate(), fraction, 4)
    failed.add(0, stats(unscored=4, scored=0) if fraction else stats(unscored=1, scored=3))
    if stops:
        with pytest.raises(RunFailedError):
            failed.check()
    else:
        failed.check()


def test_a_shard_that_is_scored_twice_counts_once() -> None:
    failed = limit(Gate(), 0.5, 10)
    failed.add(0, stats(unscored=5, scored=0))
    failed.add(0, stats(unscored=5, scored=0))
    failed.check()
