"""Which source reads what `prompts.source` names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

from rollmill.errors import PromptSourceError
from rollmill.tasks.prompts.config import PromptsConfig
from rollmill.tasks.prompts.rows import SourceRow
from rollmill.tasks.prompts.sources import csv_file, hugging_face, jsonl_file, parquet_file, reasoning_gym_task

Source = Callable[[PromptsConfig], Iterator[SourceRow]]

FILES: dict[str, Source] = {".jsonl": jsonl_file.rows, ".parquet": parquet_file.rows, ".csv": csv_file.rows}
SCHEMES: dict[str, Source] = {"hf": hugging_face.rows, "reasoning_gym": reasoning_gym_task.rows}


def open_rows(config: PromptsConfig) -> Iterator[SourceRow]:
    """Yield the rows of the source that the config names; raises PromptSourceError when there is no such source."""
    scheme = config.source.partition(":")[0]
    if scheme in SCHEMES:
        _refuse("storage_options", config.storage_options, "is for files behind a URL")
        return SCHEMES[scheme](config)
    suffix = PurePosixPath(config.source).suffix.lower()
    if suffix in FILES:
        _refuse("options", config.options, f"is not for {suffix} files")
        if "://" not in config.source:
            _refuse("storage_options", config.storage_options, "is for files behind a URL")
        return FILES[suffix](config)
    kinds = ", ".join(f"*{name}" for name in FILES) + ", " + ", ".join(f"{name}:<name>" for name in SCHEMES)
    raise PromptSourceError(f"prompts.source {config.source!r} is of no known kind; use one of {kinds}")


def _refuse(name: str, given: dict[str, object], reason: str) -> None:
    if given:
        raise PromptSourceError(f"prompts.{name} {reason}; remove {', '.join(given)}")
