"""What people see of a job and its runs in Prefect's UI: a real server, a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest
from chromium import headless_chromium
from flow_builders import job_values
from playwright.sync_api import Browser, Page, expect
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.flows import EntrypointType
from prefect_stack import POOL, PrefectStack

from rollmill.flows.job import RolloutJob
from rollmill.flows.report import RunReport
from rollmill.flows.rollout import rollout

pytestmark = pytest.mark.slow

_MILLISECONDS_TO_SHOW = 30_000


@dataclass(frozen=True, slots=True)
class InTheUI:
    """A deployment, a run of its job that has ended, that run's report, and its artifacts by key."""

    deployment: UUID
    flow_run: UUID
    report: RunReport
    artifacts: dict[str, UUID]


@pytest.fixture(scope="module")
def shown(stack: PrefectStack, policy: Path, prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> InTheUI:
    folder = tmp_path_factory.mktemp("ui")
    values = job_values(
        policy, prompts, str(folder / "store"), name="arithmetic", engine__price_per_device_hour=2.5,
        report={"page": str(folder / "{run_id}.html")},
    )  # fmt: skip
    deployment = rollout.to_deployment(
        "nightly", work_pool_name=POOL, entrypoint_type=EntrypointType.MODULE_PATH, parameters={"job": values}
    ).apply()
    assert isinstance(deployment, UUID)
    state = rollout(RolloutJob.model_validate(values), return_state=True)
    report, flow_run = state.result(), state.state_details.flow_run_id
    assert isinstance(report, RunReport)
    assert flow_run is not None
    of_this_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run]))
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=of_this_run)
    return InTheUI(deployment, flow_run, report, {artifact.key: artifact.id for artifact in found if artifact.key})


@pytest.fixture(scope="module")
def browser(shown: InTheUI) -> Iterator[Browser]:
    """A browser that starts when all else is done: in its thread Prefect's own calls would wait for it."""
    with headless_chromium() as chromium:
        yield chromium


@pytest.fixture
def visit(stack: PrefectStack, browser: Browser, tmp_path: Path) -> Iterator[Callable[[str], Page]]:
    """Open a page of the UI; at the end of the test a picture of each is in `tmp_path`."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    context.set_default_timeout(_MILLISECONDS_TO_SHOW)
    pages: list[Page] = []

    def opened(path: str) -> Page:
        pages.append(context.new_page())
        pages[-1].goto(f"{stack.api_url.removesuffix('/api')}/v2{path}")
        return pages[-1]

    yield opened
    for number, page in enumerate(pages):
        page.screenshot(path=tmp_path / f"{number}.png", full_page=True)
    context.close()


def expect_texts(page: Page, *texts: str) -> None:
    """Wait until the page shows each of these texts."""
    for text in texts:
        expect(page.get_by_text(text).first).to_be_visible(timeout=_MILLISECONDS_TO_SHOW)


def test_the_form_of_a_job_explains_and_bounds_its_fields_and_offers_choices(
    visit: Callable[[str], Page], shown: InTheUI
) -> None:
    form = visit(f"/deployments/deployment/{shown.deployment}/run")
    expect_texts(
        form,
        "Which model answers.",
        "Answers drawn for each prompt (G).",
        "What the answers are worth: the weighted sum of these.",
        "What an hour of a device costs",
    )
    for section in ("Policy", "Sampling", "Rewards", "Engine"):
        expect(form.get_by_text(re.compile(rf"^{section}( \(Optional\))?$")).first).to_be_visible()
    for kind in ("last_number", "regex", "judge"):
        expect(form.get_by_role("tab", name=kind, exact=True)).to_be_visible()
    group_size = form.get_by_label("Group Size")
    expect(group_size).to_have_value("4")
    assert [group_size.get_attribute(bound) for bound in ("type", "min", "max")] == ["number", "1", "4096"]
    form.get_by_label("Select Dtype").click()
    for choice in ("auto", "float32", "bfloat16", "float16"):
        expect(form.get_by_role("option", name=choice, exact=True)).to_be_visible()


def test_the_page_of_a_run_names_it_its_tasks_and_its_tags(visit: Callable[[str], Page], shown: InTheUI) -> None:
    run = visit(f"/runs/flow-run/{shown.flow_run}")
    expect_texts(run, "rollout-arithmetic-v3", "Completed", "policy-version:3", "dataset:", "policy:")
    tasks = visit(f"/runs/flow-run/{shown.flow_run}?tab=TaskRuns")
    expect_texts(tasks, "plan", "shard-00000", "shard-00000-score", "publish", "report-page")


def test_progress_shard_table_report_and_links_are_artifacts_that_read(
    visit: Callable[[str], Page], shown: InTheUI
) -> None:
    report = shown.report
    rows = report.figures.rows
    progress = visit(f"/artifacts/artifact/{shown.artifacts['rollout-progress']}")
    expect_texts(progress, f"finished: {rows}/{rows} rows", "Progress: 100%")
    table = visit(f"/artifacts/artifact/{shown.artifacts['rollout-shards']}")
    expect_texts(table, "Shards of arithmetic-v3", "mean reward", "tokens")
    text = visit(f"/artifacts/artifact/{shown.artifacts['rollout-report']}")
    expect_texts(text, "arithmetic-v3", *(value for _, value in report.lines()))
    assert "CPU engine-seconds" in text.inner_text("body")
    link = visit(f"/artifacts/artifact/{shown.artifacts['rollout-version']}")
    expect_texts(link, f"version 1 of {report.store}")
