"""Prompt rows made by a task of reasoning-gym, each with what its own scorer needs."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from rollmill.errors import PromptSourceError
from rollmill.tasks.prompts.config import PromptsConfig
from rollmill.tasks.prompts.rows import SourceRow

COLUMN = "reasoning_gym"
"""The column that names the entry: `task`, `options` and `index`. `create_task(task, options)[index]` is exactly the
entry again; its JSON form is in the columns question, answer and metadata, where tuples have become lists."""


def rows(config: PromptsConfig) -> Iterator[SourceRow]:
    """Yield one row an entry. The seed is 0 unless the options say otherwise, so that a job asks the same again."""
    task = config.source.partition(":")[2]
    options: dict[str, Any] = {"seed": 0, **({"size": config.limit} if config.limit else {}), **config.options}
    dataset = create_task(task, options)
    for index in range(len(dataset)):
        yield _row(dataset, index, {"task": task, "options": options, "index": index})


def create_task(task: str, options: dict[str, Any]) -> Any:
    """Return reasoning-gym's dataset object of `task`; raises PromptSourceError for an unknown task or option."""
    try:
        from reasoning_gym.composite import DatasetSpec
        from reasoning_gym.factory import DATASETS, create_dataset
    except ImportError as error:
        raise PromptSourceError(
            "prompts.source reasoning_gym: needs the reasoning-gym package; pip install 'rollmill[demo]'"
        ) from error
    if task not in DATASETS:
        near = difflib.get_close_matches(task, DATASETS, n=5) or sorted(DATASETS)
        raise PromptSourceError(f"prompts.source: reasoning_gym has no task {task!r}; it has {', '.join(near)}")
    known = sorted(option.name for option in fields(DATASETS[task][1]))
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise PromptSourceError(f"prompts.options: {task} has no option {unknown[0]}; it has {', '.join(known)}")
    try:
        if task == "composite":
            options = {**options, "datasets": [DatasetSpec(**spec) for spec in options.get("datasets", [])]}
        return create_dataset(task, **options)
    except (AssertionError, TypeError, ValueError, KeyError) as error:
        raise PromptSourceError(
            f"prompts.options: {task} refuses {options}: {error or type(error).__name__}"
        ) from error


def _row(dataset: Any, index: int, origin: dict[str, Any]) -> SourceRow:
    place = f"entry {index}"
    try:
        entry = dataset[index]
    except Exception as error:  # noqa: BLE001 - a task's own code may fail in any way, and costs only its entry
        return SourceRow(place=place, error=f"the task failed: {type(error).__name__}: {error}")
    columns = {name: entry[name] for name in ("question", "answer", "metadata")}
    return SourceRow(place=place, values={"prompt": entry["question"], **columns, COLUMN: origin})
