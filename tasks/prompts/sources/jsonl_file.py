"""Prompt rows of a file with one JSON object a line."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import BinaryIO

from rollmill.tasks.prompts.config import PromptsConfig
from rollmill.tasks.prompts.rows import SourceRow
from rollmill.tasks.prompts.sources.files import READ_BYTES, open_source

MAX_LINE_BYTES = 64 << 20
"""A longer line becomes an error row, so that a file without line ends cannot fill the memory."""


def rows(config: PromptsConfig) -> Iterator[SourceRow]:
    """Yield one row a line; blank lines are no rows."""
    with open_source(config) as handle:
        for number, line in enumerate(_lines(handle), start=1):
            if line is None:
                yield SourceRow(place=f"line {number}", error=f"it is longer than {MAX_LINE_BYTES >> 20} MiB")
            elif line.strip():
                yield _row(line.removeprefix(codecs.BOM_UTF8) if number == 1 else line, f"line {number}")


def _lines(handle: BinaryIO) -> Iterator[bytes | None]:
    """Yield each line, or None in place of one that is too long to hold."""
    while line := handle.readline(MAX_LINE_BYTES):
        if len(line) < MAX_LINE_BYTES or line.endswith(b"\n"):
            yield line
            continue
        del line
        _skip_line(handle)
        yield None


def _skip_line(handle: BinaryIO) -> None:
    while (piece := handle.readline(READ_BYTES)) and not piece.endswith(b"\n"):
        pass


def _row(line: bytes, place: str) -> SourceRow:
    try:
        values = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return SourceRow(place=place, error=f"it is not UTF-8 text at byte {error.start}")
    except RecursionError:
        return SourceRow(place=place, error="it is nested too deeply")
    except ValueError as error:
        return SourceRow(place=place, error=f"it is not valid JSON: {error}")
    if not isinstance(values, dict):
        return SourceRow(place=place, error=f"it is a JSON {type(values).__name__}, not an object")
    return SourceRow(place=place, values=values)
