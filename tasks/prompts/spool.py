"""A prompt dataset that was read once, into a temporary file, so that any part of it can be had again."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import threading
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType

import pyarrow as pa

from rollmill.storage.schema import PROMPT_SCHEMA
from rollmill.tasks.prompts.prompt import Prompt, prompt_row, rows_to_table

_PROMPTS_AT_ONCE = 1024


class SpooledPrompts:
    """The prompts of a dataset, and a sha256 of their content; the file lasts as long as a `with` block, or until
    `close`. Any thread may read."""

    def __init__(self, prompts: Iterable[Prompt]) -> None:
        """Read `prompts` to their end, in bounded memory."""
        self.num_prompts, self.num_unusable = 0, 0
        """How many there are, and how many of them become error rows because the dataset's row could not be used."""
        with contextlib.ExitStack() as resources:
            folder = resources.enter_context(tempfile.TemporaryDirectory(prefix="rollmill-prompts-"))
            path = Path(folder) / "prompts.arrow"
            self.fingerprint = self._write(iter(prompts), path)
            self._file = pa.ipc.open_file(resources.enter_context(pa.OSFile(str(path))))
            self._lock = threading.Lock()
            self._resources = resources.pop_all()

    def __enter__(self) -> SpooledPrompts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the file."""
        self._resources.close()

    def table(self, start: int, stop: int) -> pa.Table:
        """Return the prompts `start` to `stop`, without `stop`, as rows of PROMPT_SCHEMA."""
        first, last = start // _PROMPTS_AT_ONCE, -(-stop // _PROMPTS_AT_ONCE)
        with self._lock:
            batches = [self._file.get_batch(number) for number in range(first, last)]
        return pa.Table.from_batches(batches, PROMPT_SCHEMA).slice(start - first * _PROMPTS_AT_ONCE, stop - start)

    def _write(self, prompts: Iterator[Prompt], path: Path) -> str:
        digest = hashlib.sha256()
        with pa.ipc.new_file(str(path), PROMPT_SCHEMA) as sink:
            while rows := [prompt_row(prompt) for prompt in islice(prompts, _PROMPTS_AT_ONCE)]:
                sink.write_table(rows_to_table(rows))
                digest.update("".join(map(repr, rows)).encode("utf-8", "surrogatepass"))
                self.num_prompts += len(rows)
                self.num_unusable += sum(row[2] is not None for row in rows)
        return digest.hexdigest()
