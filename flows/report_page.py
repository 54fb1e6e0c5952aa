"""The report page of a run: written where the job says, and shown in Prefect's UI as a link and its figures."""

from __future__ import annotations

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from rollmill.errors import JobError
from rollmill.flows.job import RolloutJob
from rollmill.flows.showing import show_link, show_markdown
from rollmill.flows.task_runs import RETRY_DELAYS, unvisited
from rollmill.storage.version import DatasetVersion
from rollmill.tasks.report.build import build_report
from rollmill.tasks.report.charts import check_charts
from rollmill.tasks.report.sections import Card
from rollmill.tasks.report.writing import check_address, write_page


def check_page(job: RolloutJob) -> None:
    """Raise InputError when the job asks for a page that could not be drawn, or not be put where it shall go."""
    if job.report.page is not None:
        address = _address(job, 0)
        check_address(address, "report.page")
        if not address.endswith(".html"):  # a job may come over the API, and must not replace any other file
            raise JobError(f"report.page must end with .html, got {address}")
        check_charts()


def make_page(job: RolloutJob, version: DatasetVersion) -> None:
    """Write the page that the job asks for, if it does, and show its link and its headline numbers."""
    if job.report.page is None:
        return
    address, cards = page_task(unvisited(job), unvisited(version))
    get_run_logger().info("the report of version %d is in %s", version.number, address)
    show_link("rollout-page", address, address, f"Report page of {version.run_id}, version {version.number}")
    show_markdown("rollout-figures", _figures(version, cards), f"Figures of the report page of {version.run_id}")


@task(name="report-page", task_run_name="report-page", retries=3, retry_delay_seconds=RETRY_DELAYS,
      cache_policy=NO_CACHE, persist_result=False)  # fmt: skip
def page_task(job: RolloutJob, version: DatasetVersion) -> tuple[str, list[Card]]:
    """Write the page of a version, and return its address and its headline numbers."""
    made = build_report(version, max_answers=job.report.max_answers, price=job.engine.price_per_device_hour)
    return write_page(_address(job, version.number), made.html.encode()), list(made.cards)


def _address(job: RolloutJob, version: int) -> str:
    assert job.report.page is not None
    return job.report.page.replace("{run_id}", job.resolved_run_id).replace("{version}", str(version))


def _figures(version: DatasetVersion, cards: list[Card]) -> str:
    rows = "\n".join(f"| {card.name} | {card.value} | {card.note} |" for card in cards)
    return f"# Version {version.number}, {version.run_id}\n\n| | | |\n|---|---|---|\n{rows}\n"
