"""Opening prompt files, local or behind a URL, with errors of one line."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rollmill.errors import PromptSourceError
from rollmill.tasks.prompts.config import PromptsConfig

READ_BYTES = 1 << 20
"""How much is read at a time."""


@contextmanager
def open_source(config: PromptsConfig) -> Iterator[BinaryIO]:
    """Open the config's file for reading bytes; failures to reach or read it raise PromptSourceError."""
    from botocore.exceptions import BotoCoreError

    try:
        with _open(config) as handle:
            yield handle
    except FileNotFoundError as error:
        raise PromptSourceError(f"prompts.source {config.source}: no such file or bucket") from error
    except PermissionError as error:
        raise PromptSourceError(f"prompts.source {config.source}: access is denied ({error})") from error
    except (OSError, BotoCoreError) as error:
        raise PromptSourceError(f"prompts.source {config.source} cannot be read: {_one_line(error)}") from error


def _open(config: PromptsConfig) -> BinaryIO:
    if "://" not in config.source:
        return Path(config.source).expanduser().open("rb", buffering=READ_BYTES)
    from fsspec.core import url_to_fs

    try:
        # Its own connection: a cached one would keep the keys that the environment held when it was made.
        filesystem, path = url_to_fs(
            config.source, use_listings_cache=False, skip_instance_cache=True, **config.storage_options
        )
    except (ImportError, ValueError, TypeError) as error:
        raise PromptSourceError(f"prompts.source {config.source} cannot be opened: {_one_line(error)}") from error
    # The reader adds what fsspec's own file lacks: lines of bounded length.
    return io.BufferedReader(filesystem.open(path, "rb", block_size=READ_BYTES), READ_BYTES)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
