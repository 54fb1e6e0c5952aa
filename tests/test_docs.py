"""The docs name every command, every option and every field of a job, and their example job is a job."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from rollmill.flows.job import RolloutJob
from rollmill.flows.job_file import job_model, load_job
from rollmill.flows.rejection_sampling_job import RejectionSamplingJob

ROOT = Path(__file__).parents[1]


def reference() -> ModuleType:
    """Load the script that writes the generated parts."""
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["jobs.md", "rewards.md", "cli.md", "python.md"])
def test_the_reference_says_what_the_code_says(page: str) -> None:
    wanted = {path.name: text for path, text in reference().pages()}
    assert (ROOT / "docs" / page).read_text() == wanted[page], "run make docs"


def test_the_job_pages_name_every_field_and_the_command_page_every_option() -> None:
    jobs = "".join((ROOT / "docs" / page).read_text() for page in ("jobs.md", "rewards.md"))
    for definition in RejectionSamplingJob.model_json_schema()["$defs"].values():
        missing = [name for name in definition.get("properties", {}) if f"`{name}`" not in jobs]
        assert missing == []
    commands = (ROOT / "docs" / "cli.md").read_text()
    for name in ("run", "ls", "show", "verify"):
        assert f"### `rollmill {name}`" in commands
    assert "`--dry-run`" in commands


@pytest.mark.parametrize("page", ["docs/jobs.md", "docs/datasets.md", "README.md"])
def test_the_example_jobs_are_jobs(page: str) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    jobs = [yaml.safe_load(block) for block in blocks]
    assert [job_model(job).model_validate(job) for job in jobs if "policy" in job]


@pytest.mark.parametrize("path", sorted((ROOT / "deployments" / "jobs").glob("*.yaml")), ids=lambda path: path.name)
def test_every_shipped_job_is_a_job(path: Path) -> None:
    written = yaml.safe_load(path.read_text())
    job = load_job(path)
    assert (job.name, type(job) is RolloutJob) == (written["name"], "export" not in written)


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
