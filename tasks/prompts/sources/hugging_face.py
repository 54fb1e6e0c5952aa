"""Prompt rows of a Hugging Face dataset, streamed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rollmill.errors import PromptSourceError
from rollmill.tasks.prompts.config import PromptsConfig
from rollmill.tasks.prompts.rows import SourceRow

OPTIONS = ("split", "name", "revision", "data_dir", "data_files")
_SECONDS_TO_ANSWER = 10.0


def rows(config: PromptsConfig) -> Iterator[SourceRow]:
    """Yield the rows of one split (train unless asked otherwise), reading no more of it than is used."""
    unknown = sorted(set(config.options) - set(OPTIONS))
    if unknown:
        raise PromptSourceError(f"prompts.options: hf: has no option {unknown[0]}; it has {', '.join(OPTIONS)}")
    try:
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise PromptSourceError(
            f"prompts.source {config.source} needs the datasets package; pip install 'rollmill[hf]'"
        ) from error
    try:
        _check_hub(config)
        for number, values in enumerate(_load(config), start=1):
            yield SourceRow(place=f"row {number}", values=values)
    except (OSError, ValueError, RuntimeError, DatasetsError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise PromptSourceError(f"prompts.source {config.source} cannot be read: {reason}") from error


def _check_hub(config: PromptsConfig) -> None:
    """Ask the hub once for a dataset that is not a local folder, for loading it would ask many times, at length."""
    from httpx2 import HTTPError
    from huggingface_hub import HfApi

    name = config.source.partition(":")[2]
    if Path(name).expanduser().is_dir():
        return
    try:
        HfApi().dataset_info(name, revision=config.options.get("revision"), timeout=_SECONDS_TO_ANSWER)
    except HTTPError as error:
        raise OSError(f"it is no local folder, and the Hugging Face hub does not answer ({error})") from error


def _load(config: PromptsConfig) -> Iterable[Mapping[str, Any]]:
    import datasets

    name = config.source.partition(":")[2]
    options = {"split": "train", **config.options}
    folder = Path(name).expanduser()
    if any((folder / file).is_file() for file in ("state.json", "dataset_dict.json")):
        return _saved_split(datasets.load_from_disk(str(folder)), options)
    rows: Iterable[Mapping[str, Any]]
    rows = datasets.load_dataset(str(folder) if folder.is_dir() else name, streaming=True, **options)
    return rows


def _saved_split(saved: Any, options: dict[str, Any]) -> Iterable[Mapping[str, Any]]:
    """Return the asked split of what `save_to_disk` wrote: a dictionary of splits, or one dataset without a name."""
    if not isinstance(saved, dict):
        rows: Iterable[Mapping[str, Any]] = saved
        return rows
    if options["split"] not in saved:
        raise ValueError(f"it has no split {options['split']}; it has {', '.join(saved)}")
    split: Iterable[Mapping[str, Any]] = saved[options["split"]]
    return split
