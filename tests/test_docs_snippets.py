"""Every snippet of README and docs: Python runs, YAML is what it is meant to be, commands are those that there are."""

from __future__ import annotations

import doctest
import importlib
import json
import re
import shutil
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer
import yaml
from builders import save_policy
from docs_snippets import PAGES, ROOT, Command, Snippet, commands, mentions, snippets
from export_builders import publish_answers
from generated_builders import logits_of, publish_generated

import rollmill
from rollmill.cli.main import app
from rollmill.flows.job_file import job_model
from rollmill.flows.rejection_sampling_job import RejectionSamplingJob
from rollmill.storage.cached_runner import CachedRolloutRunner
from rollmill.storage.objects import open_objects
from rollmill.storage.store import RolloutStore
from rollmill.tasks.prompts.config import PromptsConfig

RUN_ELSEWHERE = {
    "README.md: import sys": "tests/test_trainer.py::test_the_printed_trainer_trains",
    "rewards.md: # ours/rewards.py": "tests/tasks/rewards/test_docs.py::test_ones_own_rewards_in_ten_lines_score",
}
"""Python snippets that a test of their own runs."""

NOT_RUN = {
    "datasets.md: from datasets import load_dataset": "needs TRL, which has an environment of its own: make test-trl",
}
"""Python snippets that cannot run here, each with the reason."""

NOT_OURS = {
    ".": "a builtin of the shell",
    "cd": "a builtin of the shell",
    "export": "a builtin of the shell",
    "docker": "needs Docker",
    "kubectl": "needs a Kubernetes cluster",
    "ray": "starts or asks a Ray cluster",
    "prefect": "starts or asks a Prefect server",
}
"""Programs of others whose commands are not tried, each with the reason."""

CHEAP = ("ls", "show", "verify", "report", "export", "probe")
"""Commands that are run, on a small store; `run` and `vacuum` are with --dry-run, all others are only parsed."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the pages speak of: a store, a policy, prompts, a job, rewards of one's own."""
    folder = tmp_path_factory.mktemp("world")
    save_policy(folder / "checkpoints" / "step-400")
    objects = open_objects(str(folder / "rollouts"))
    for version in (399, 400):
        publish_answers(objects, run_id=f"earlier-v{version}", policy_version=version)
    (folder / "prompts.jsonl").write_text(json.dumps({"prompt": "1 + 1 =", "answer": "2"}))
    (folder / "my_rewards.py").write_text("def brevity(completions, **_):\n    return [0.0 for _ in completions]\n")
    (job,) = (snippet.code for snippet in snippets("yaml") if snippet.page == "README.md")
    (folder / "job.yaml").write_text(localised(job))
    return folder


@pytest.fixture
def here(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the world for this test alone, as the working folder."""
    folder = shutil.copytree(world, tmp_path / "world")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def localised(text: str) -> str:
    """Return a snippet or word with its bucket replaced by this folder."""
    return re.sub(r"s3://bucket/(\w+)", r"./\1", text.replace("s3://bucket/prefix", "./rollouts"))


def test_every_block_names_its_language_and_commands_are_in_shell_blocks() -> None:
    known = {"python", "yaml", "bash", "json", "toml", "text"}
    assert [str(snippet) for snippet in snippets() if snippet.language not in known] == []
    commanding = re.compile(r"^(rollmill|make|pip|python|prefect|docker|kubectl) ", re.MULTILINE)
    assert [str(snippet) for snippet in snippets("text") if commanding.search(snippet.code)] == []


def test_what_is_not_run_here_is_there_and_has_a_test_or_a_reason() -> None:
    all_python = {str(snippet) for snippet in snippets("python")}
    assert set(RUN_ELSEWHERE) | set(NOT_RUN) <= all_python
    for test in RUN_ELSEWHERE.values():
        path, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text()
    programs = {command.words[0] for command in commands()}
    assert all(NOT_RUN.values())
    assert {"rollmill", "make", "pip"} <= programs
    assert len(NOT_RUN) == 1
    assert len(all_python) >= 15


@pytest.mark.parametrize(
    "snippet", [s for s in snippets("python") if str(s) not in {*RUN_ELSEWHERE, *NOT_RUN}], ids=str
)
def test_python_runs(snippet: Snippet, here: Path) -> None:
    names = given(snippet, here)
    exec(compile(localised(snippet.code), str(snippet), "exec"), names)
    check = CHECKS.get(str(snippet))
    if check is not None:
        check(SimpleNamespace(**names), here)


def given(snippet: Snippet, here: Path) -> dict[str, Any]:
    """Return the names that a snippet takes for granted."""
    if snippet.page != "generation.md":
        imported = {name: getattr(rollmill, name) for name in rollmill.__all__} if snippet.page == "trainers.md" else {}
        return {"__name__": "snippet", **imported}
    objects = open_objects(str(here / "kept"))
    publish_generated(objects, temperature=0.7, top_p=0.8, kept_token_ids=True)
    runner = CachedRolloutRunner(RolloutStore(here / "kept"), further_columns=["kept_token_ids"])
    return {"runner": runner, "policy_logits": logits_of, "temperature": 0.7}


def _ratio_is_one(names: SimpleNamespace, here: Path) -> None:
    mask = names.result.response_mask
    torch.testing.assert_close(names.ratio[mask], torch.ones(int(mask.sum())), atol=1e-3, rtol=0)


def _sampling_logprobs_are_those_that_were_stored(names: SimpleNamespace, here: Path) -> None:
    drawn = {"temperature": 0.7, "frequency_penalty": 1.5, "rep_window": 3}
    for number, further in enumerate(
        [{}, {"top_p": 0.8, "kept_token_ids": True}, {"top_k": 5, "kept_token_ids": True}]
    ):
        objects = open_objects(str(here / f"store-{number}"))
        version = publish_generated(objects, max_tokens=12, **drawn, **further)
        result = version.result(further_columns=["kept_token_ids"] if further else [])
        logprobs = names.sampling_logprobs(logits_of(result), result, **drawn)
        mask = result.response_mask
        torch.testing.assert_close(logprobs[mask], result.logprobs_old[mask], atol=1e-3, rtol=0)
        plain = names.sampling_logprobs(logits_of(result), result)
        assert (plain - result.logprobs_old)[mask].abs().max() > 0.1


def _resumed_goes_on(names: SimpleNamespace, here: Path) -> None:
    assert names.result.prompt_ids == names.runner()[0].prompt_ids


def _reward_gives_what_it_shows(names: SimpleNamespace, here: Path) -> None:
    runner = doctest.DocTestRunner()
    for example in doctest.DocTestFinder().find(names.Palindrome, "Palindrome", module=False, globs=vars(names)):
        runner.run(example)
    assert runner.summarize(verbose=False) == (0, 1)
    assert names.Palindrome().score(["Say a word."], [["Level ", "up"]]).tolist() == [[1.0, 0.0]]


def _source_yields_lines(names: SimpleNamespace, here: Path) -> None:
    (here / "prompts.txt").write_bytes(b"one\n\xff\nthree\n")
    rows = list(names.rows(PromptsConfig(source=str(here / "prompts.txt"))))
    assert [row.values and row.values["prompt"] for row in rows] == ["one", None, "three"]
    assert rows[1].error == "it is not UTF-8"


_KEPT = 'generation.md: result, is_fresh = runner()  # CachedRolloutRunner(store, further_columns=["kept_token_ids"])'
CHECKS: dict[str, Callable[[SimpleNamespace, Path], None]] = {
    _KEPT: _ratio_is_one,
    "trainers.md: import torch": _sampling_logprobs_are_those_that_were_stored,
    "trainers.md: import json": _resumed_goes_on,
    "contributing.md: # tasks/rewards/palindrome.py": _reward_gives_what_it_shows,
    "contributing.md: # tasks/prompts/sources/text_file.py": _source_yields_lines,
}
"""What must hold after a snippet has run."""


def test_every_check_is_of_a_snippet() -> None:
    assert set(CHECKS) <= {str(snippet) for snippet in snippets("python")}


@pytest.mark.parametrize("snippet", snippets("yaml"), ids=str)
def test_yaml_is_a_job_a_part_of_one_or_a_trigger(snippet: Snippet) -> None:
    values = yaml.safe_load(snippet.code)
    if values.get("type") == "event":
        from prefect.events.schemas.automations import EventTrigger

        EventTrigger.model_validate(values)
        return
    whole = {"name": "whole", "store": "./rollouts", "policy": {"model": "a"}, "rewards": [{"type": "last_number"}]}
    job = values if "policy" in values else {**whole, "prompts": {"source": "prompts.jsonl"}, **values}
    assert set(values) <= set(RejectionSamplingJob.model_fields)
    job_model(job).model_validate(job)


@pytest.mark.parametrize("snippet", snippets("json", "toml"), ids=str)
def test_json_and_toml_can_be_read(snippet: Snippet) -> None:
    if snippet.language == "toml":
        assert tomllib.loads(snippet.code)
    else:
        assert [json.loads(line) for line in snippet.code.splitlines()]


@pytest.mark.parametrize("command", commands(), ids=str)
def test_commands_are_those_that_there_are(command: Command) -> None:
    program, *words = command.words
    if program == "rollmill":
        parse(words)
    elif program == "make":
        makefile = (ROOT / "Makefile").read_text()
        targets = [word for word in words if "=" not in word]
        assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        asked = [
            name for word in words for found in re.findall(r"rollmill\[(.*?)\]", word) for name in found.split(",")
        ]
        assert set(asked) <= set(extras)
    elif program == "python" and words[0].startswith(("examples/", "benchmarks/", "deployments/")):
        source = (ROOT / words[0]).read_text()
        assert all(f'"{word}"' in source for word in words if word.startswith("--"))
    elif program == "python":
        assert words[0] in ("-m", "-c", "trainer.py")
    else:
        assert NOT_OURS[program]


def parse(words: list[str]) -> None:
    """Parse a command line of rollmill's as the command would, without doing what it says."""
    group: Any = typer.main.get_command(app)
    name, *arguments = words
    context = group.commands[name].make_context(name, [localised(word) for word in arguments])
    assert context.params


def test_the_text_names_commands_and_options_that_there_are() -> None:
    there_are: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert len(mentions()) > 20
    for mention in mentions():
        assert mention.words[1] in there_are, mention
        options = {name for parameter in there_are[mention.words[1]].params for name in parameter.opts}
        assert {word.partition("=")[0] for word in mention.words if word.startswith("--")} <= options, mention


def is_cheap(words: tuple[str, ...]) -> bool:
    """Whether a command can be run here: it is quick, changes little, and names no STORE or RUN to be filled in."""
    if words[0] != "rollmill" or "--logprobs" in words or any(word.isupper() for word in words):
        return False
    return words[1] in CHEAP or (words[1] in ("run", "vacuum") and "--dry-run" in words)


@pytest.mark.parametrize("command", [found for found in commands() if is_cheap(found.words)], ids=str)
def test_cheap_commands_run(
    command: Command, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "deployments/" in " ".join(command.words):
        (here / "deployments").symlink_to(ROOT / "deployments")
    monkeypatch.setattr(sys, "argv", [localised(word) for word in command.words])
    main = importlib.import_module("rollmill.cli").main
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0, capsys.readouterr().err


def test_every_page_is_looked_at() -> None:
    assert {path.name for path in PAGES} >= {"README.md", "get-started.md", "trainers.md", "contributing.md"}
