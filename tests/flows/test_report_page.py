"""One run, and the same numbers wherever they are said: report, show, artifact, and DuckDB over the files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from flow_builders import job_of
from prefect.artifacts import Artifact
from report_builders import Page

from rollmill.cli import main
from rollmill.errors import InputError
from rollmill.flows.job import ReportConfig, Share
from rollmill.flows.preflight import check_job
from rollmill.flows.rollout import rollout
from rollmill.tasks.figures import shown

if TYPE_CHECKING:
    from conftest import FinishedRun

_QUERY = """
with answers as (select * from read_parquet($files)),
prompts as (select prompt_id, count(reward) scored, count(*) filter (reward >= 1) passed from answers group by all)
select
    (select count(*) from answers), (select count(*) from prompts),
    (select count(*) filter (finish_reason = 'length') from answers),
    (select count(*) filter (finish_reason = 'error') from answers),
    (select count(*) filter (reward_status = 'failed') from answers),
    (select avg(reward) from answers),
    (select sum(len(response_token_ids)) from answers),
    (select sum(list_sum(logprobs)) / sum(len(logprobs)) from answers),
    (select avg(passed / scored) filter (scored > 0) from prompts)
"""
_NAMES = (
    "rows",
    "groups",
    "truncated",
    "failed",
    "unscored",
    "mean_reward",
    "response_tokens",
    "mean_logprob",
    "pass@1",
)


def said_by_files(run: FinishedRun) -> dict[str, Any]:
    """Return the numbers that DuckDB makes of the version's files."""
    files = [str(run.folder / file.file) for file in run.store.latest().files]
    row = duckdb.execute(_QUERY, {"files": files}).fetchone()
    assert row is not None
    return dict(zip(_NAMES, row, strict=True))


def stats_of(store: Path, shard: int) -> Any:
    return json.loads((store / "runs" / "tiny-v3" / "generate" / f"{shard:05d}.json").read_text())["stats"]


def said_by_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["rollmill", *arguments])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (None, 0)
    return json.loads(capsys.readouterr().out)


def test_page_and_command_and_artifact_and_files_say_the_same_numbers(
    finished: FinishedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, out = finished.job.store, tmp_path / "report.html"
    reported = said_by_command(capsys, monkeypatch, "report", store, "--out", str(out), "--json")
    page = Page(out.read_text())
    embedded = page.data("figures")
    of_run = finished.report.to_json()["figures"]
    said = {
        "report --json": {**reported, "pass@1": reported["pass_at"]["1"]},
        "data of the page": {**embedded, "pass@1": embedded["pass_at"]["1"]},
        "show --json": said_by_command(capsys, monkeypatch, "show", store, "--json"),
        "the run": {**of_run, "pass@1": of_run["pass_at"]["1"]},
    }
    files = said_by_files(finished)
    for source, numbers in said.items():
        shared = {name: numbers[name] for name in files if name in numbers}
        assert len(shared) >= 6, source
        assert shared == pytest.approx({name: files[name] for name in shared}), source
    for name, digits in (("mean reward", f"{files['mean_reward']:.3f}"), ("pass@1", f"{files['pass@1']:.3f}"),
                         ("rows", f"{files['rows']:,}"), ("tokens", f"{files['response_tokens']:,}"),
                         ("truncated rows", f"{files['truncated']:,}")):  # fmt: skip
        assert f"{name} {digits} " in page.words
    assert f"{-files['mean_logprob']:.4f} nats a token" in page.words


def test_the_card_of_an_export_says_the_numbers_that_the_files_say(
    finished: FinishedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "set")
    export = said_by_command(
        capsys, monkeypatch, "export", finished.job.store, "--format", "table", "--out", out, "--min-reward", "0.0001",
        "--keep-truncated", "--json",
    )  # fmt: skip
    files = said_by_files(finished)
    card = (tmp_path / "set" / "README.md").read_text()
    splits = {split: [str(Path(out, file["path"])) for file in of["files"]] for split, of in export["splits"].items()}
    query = "select count(*), avg(reward) from read_parquet($files)"
    kept = {split: duckdb.execute(query, {"files": paths}).fetchone() for split, paths in splits.items()}
    total = sum(row[0] for row in kept.values() if row)
    assert total == export["kept"] > 0
    assert f"{total} records, made by rollmill of {total} of {files['rows']} answers" in card
    assert f"The mean of all scored answers is {files['mean_reward']:.4f}." in card
    assert f"| all | {files['rows']} | answers looked at |" in card
    assert f"| kept | {total} |" in card
    for split, row in kept.items():
        assert row is not None
        assert f"| {split} | {row[0]} |" in card
        assert f"| {row[1]:.4f} |" in card


def test_the_artifact_of_the_run_holds_the_page_s_headline_numbers(finished: FinishedRun) -> None:
    rollout(finished.job)
    artifact = Artifact.get("rollout-report")
    assert artifact is not None
    files = said_by_files(finished)
    for said in (f"| mean reward | {files['mean_reward']:.3f} |", f"| pass@1 | {files['pass@1']:.3f} |",
                 f"| tokens | {files['response_tokens']:,}, ", f"{files['truncated']} ended at max_tokens",
                 f"rollmill report {finished.job.store} --version 1 --out report.html"):  # fmt: skip
        assert said in str(artifact.data)


def test_the_page_says_how_fast_the_run_was(finished: FinishedRun, tmp_path: Path) -> None:
    from rollmill.tasks.report.figures import version_figures

    found = version_figures(finished.store.latest()).usage
    assert found == finished.report.usage
    assert found.tokens == finished.report.figures.response_tokens
    assert found.seconds is not None
    assert 0 < found.seconds <= finished.report.seconds + 60
    assert found.gpu_seconds == 0
    assert found.cpu_engine_seconds is not None
    assert 0 < found.cpu_engine_seconds <= found.seconds


def test_a_resumed_run_tells_the_seconds_and_the_cost_of_all_its_shards_the_same_everywhere(
    policy: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(policy, prompts, str(tmp_path / "store"), engine__price_per_device_hour=36_000)
    rollout(job, Share(index=1, of=2, shards=[0, 2]))
    by_others = [stats_of(Path(job.store), shard)["cpu_engine_seconds"] for shard in (0, 2)]
    report = rollout(job)
    assert report is not None
    seconds = sum(by_others) + stats_of(Path(job.store), 1)["cpu_engine_seconds"]
    assert report.usage.cpu_engine_seconds == pytest.approx(seconds)
    assert report.usage.cost == pytest.approx(10 * seconds)
    assert report.new_tokens < report.usage.tokens
    out = str(tmp_path / "report.html")
    said = [
        report.to_json(),
        said_by_command(capsys, monkeypatch, "report", job.store, "--out", out, "--json"),
        said_by_command(capsys, monkeypatch, "show", job.store, "--json"),
        Page(Path(out).read_text()).data("figures"),
    ]
    for numbers in said:
        assert {name: numbers[name] for name in report.usage.to_json()} == pytest.approx(report.usage.to_json())
    artifact = Artifact.get("rollout-report")
    assert artifact is not None
    words = Page(Path(out).read_text()).words
    for name, value, remark in report.usage.devices():
        assert f"| {name} | {shown(value)}, {remark} |" in str(artifact.data)
        assert f"{name} {shown(value)} {remark}" in words
    twice = said_by_command(capsys, monkeypatch, "show", job.store, "--price", "72000", "--json")
    assert twice["cost"] == pytest.approx(20 * seconds)


def test_a_job_that_asks_for_a_page_gets_it_and_links_to_it_with_its_figures(
    finished: FinishedRun, tmp_path: Path
) -> None:
    page = str(tmp_path / "pages" / "{run_id}-{version}.html")
    rollout(finished.job.model_copy(update={"report": ReportConfig(page=page, max_answers=8)}))
    written = tmp_path / "pages" / "tiny-v3-1.html"
    link, figures = Artifact.get("rollout-page"), Artifact.get("rollout-figures")
    assert link is not None
    assert figures is not None
    assert f"(file://{written})" in str(link.data)
    words = Page(written.read_text()).words
    rows = [line.strip("| ").split(" | ") for line in str(figures.data).splitlines()[4:]]
    assert {"mean reward", "pass@1", "rows", "tokens", "truncated rows"} <= {name for name, _, _ in rows}
    for name, value, _ in rows:
        assert f"{name} {value} " in words


@pytest.mark.parametrize(
    ("page", "message"), [("", "must name a file, as in report.html"), ("/HEAD", "must end with .html, got ")]
)
def test_a_page_in_a_place_that_is_none_is_refused_before_anything_starts(
    finished: FinishedRun, page: str, message: str
) -> None:
    job = finished.job.model_copy(update={"report": ReportConfig(page=f"{finished.folder}{page}")})
    with pytest.raises(InputError, match=f"report.page {message}"):
        check_job(job)
