"""Rewards as they are typed on a command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from rollmill.errors import JobError
from rollmill.flows.job_file import read_yaml

_FILES = (".yaml", ".yml", ".json")


def read_rewards(options: Sequence[str]) -> list[Any]:
    """Return the plain values of rewards, each given as one of

    - a kind, with fields after a colon: `last_number`, `length:max=200,weight=0.1`, `function:path=ours.rewards:score`
    - a mapping in YAML or JSON: `{type: regex, pattern: "a,b"}`
    - a file that ends in .yaml, .yml or .json: a job, of which the rewards are taken, a list of rewards, or one

    What the values are is not checked here. Raises JobError for text that is none of these.
    """
    return [reward for option in options for reward in _read(option.strip())]


def _read(option: str) -> Iterator[Any]:
    if option.endswith(_FILES):
        yield from _of_file(Path(option))
    elif option.startswith("{"):
        yield _value(option, option)
    else:
        kind, _, fields = option.partition(":")
        yield {"type": kind, **dict(_field(field, option) for field in fields.split(",") if fields)}


def _of_file(path: Path) -> list[Any]:
    values = read_yaml(path)
    if isinstance(values, dict):
        values = values.get("rewards", [values] if "type" in values else None)
    if not isinstance(values, list):
        raise JobError(f"{path}: must hold a job, a list of rewards, or one reward with its type")
    return values


def _field(text: str, option: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise JobError(
            f"--reward {option}: {text!r} must look like name=value; values with commas need a mapping, as in "
            "'{type: regex, pattern: \"a,b\"}'"
        )
    return name.strip(), _value(value, option)


def _value(text: str, option: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise JobError(f"--reward {option}: not valid YAML: {' '.join(str(error).split())}") from error
