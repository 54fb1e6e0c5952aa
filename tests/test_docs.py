"""The docs explain every command, option, field of a job and public name; their links lead somewhere."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
import yaml

import rollmill
from rollmill.cli.main import app
from rollmill.flows.job import RolloutJob
from rollmill.flows.job_file import load_job
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


@pytest.mark.parametrize("page", ["jobs.md", "rewards.md", "cli.md", "python.md", "deployments.md"])
def test_the_reference_says_what_the_code_says(page: str) -> None:
    wanted = {path.name: text for path, text in reference().pages()}
    assert (ROOT / "docs" / page).read_text() == wanted[page], "run make docs"


def test_every_field_of_a_job_is_explained() -> None:
    jobs = "".join((ROOT / "docs" / page).read_text() for page in ("jobs.md", "rewards.md"))
    schema = RejectionSamplingJob.model_json_schema()
    for section in [schema, *schema["$defs"].values()]:
        for name, field in section.get("properties", {}).items():
            named = schema["$defs"].get(field.get("$ref", "").rpartition("/")[2], {})
            assert name == "type" or field.get("description") or named.get("description"), name
            assert f"`{name}`" in jobs


def test_every_command_and_option_is_explained_and_each_command_shows_an_example() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        section = page.split(f"### `rollmill {name}`\n")[1].split("\n### ")[0]
        assert f"Example: `rollmill {name} " in section
        assert [parameter.name for parameter in command.params if not parameter.help] == []


def test_every_public_name_and_each_of_its_members_is_explained() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    assert [name for name in rollmill.__all__ if f"### `{name}`\n\n`from rollmill import {name}`" not in page] == []
    assert [name for name in rollmill.__all__ if not inspect.getdoc(getattr(rollmill, name))] == []
    assert re.findall(r"^\| `(.*)` \|  \|$", page, re.MULTILINE) == []  # a member without a docstring


@pytest.mark.parametrize("path", sorted((ROOT / "deployments" / "jobs").glob("*.yaml")), ids=lambda path: path.name)
def test_every_shipped_job_is_a_job(path: Path) -> None:
    written = yaml.safe_load(path.read_text())
    job = load_job(path)
    assert (job.name, type(job) is RolloutJob) == (written["name"], "export" not in written)


def test_links_between_pages_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
