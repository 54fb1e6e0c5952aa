"""How far a run is: a bar on a terminal, a line now and then elsewhere, and an artifact in the Prefect UI."""

from __future__ import annotations

import contextvars
import sys
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from uuid import UUID

import httpx
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException
from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bar

_SECONDS_BETWEEN_TICKS = 0.5
_SECONDS_BETWEEN_LINES = 5.0
_SECONDS_BETWEEN_ARTIFACTS = 10.0


@dataclass(frozen=True, slots=True)
class Pace:
    """Where a run stands: rows finished of all rows, tokens sampled a second, and seconds left if it goes on so."""

    num_rows: int
    total_rows: int
    tokens_per_second: float | None
    seconds_left: float | None

    def __str__(self) -> str:
        left = "" if self.seconds_left is None else f", {clock(self.seconds_left)} left"
        speed = "" if self.tokens_per_second is None else f", {self.tokens_per_second:.0f} tokens/s"
        return f"{self.num_rows}/{self.total_rows} rows{speed}{left}"


class Progress:
    """Counts finished rows and sampled tokens, from any thread, and shows them while its `with` block lasts."""

    def __init__(
        self, total_rows: int, rows_before: int, console: Console | None = None, doing: str = "generating"
    ) -> None:
        """`rows_before` of the `total_rows` were finished by an earlier start of the run.

        `doing` is what is shown to be under way; only what generates has tokens a second.
        """
        self._doing = doing
        self.total_rows, self.rows_before = total_rows, rows_before
        self.num_rows, self.num_tokens = 0, 0
        self._begin = self._end = time.monotonic()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._console = console or Console(stderr=True)
        self._bar = Bar(
            TextColumn(doing), BarColumn(), TextColumn("{task.fields[pace]}"), console=self._console,
            disable=not self._console.is_terminal,
        )  # fmt: skip
        self._task = TaskID(0)
        self._artifact: UUID | None = None
        context = contextvars.copy_context()
        self._ticker = threading.Thread(target=context.run, args=(self._tick,), name="progress", daemon=True)

    def __enter__(self) -> Progress:
        self._begin = self._end = time.monotonic()
        self._task = self._bar.add_task("", total=self.total_rows, completed=self.rows_before, pace=str(self.pace()))
        self._bar.start()
        self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._ticker.join()
        self._show_bar()
        self._bar.stop()

    def add(self, num_rows: int, num_tokens: int) -> None:
        """Count rows and tokens that were finished since the last call."""
        with self._lock:
            self.num_rows += num_rows
            self.num_tokens += num_tokens
            self._end = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds from the start until the last token."""
        return self._end - self._begin

    def pace(self) -> Pace:
        """Return where the run stands now."""
        with self._lock:
            seconds = max(time.monotonic() - self._begin, 1e-9)
            done = min(self.rows_before + self.num_rows, self.total_rows)
            left = self.total_rows - done
            return Pace(
                num_rows=done,
                total_rows=self.total_rows,
                tokens_per_second=self.num_tokens / seconds if self._doing == "generating" else None,
                seconds_left=seconds * left / self.num_rows if self.num_rows else None,
            )

    def _tick(self) -> None:
        next_line, next_artifact = _SECONDS_BETWEEN_LINES, 0.0
        while not self._ended.wait(_SECONDS_BETWEEN_TICKS):
            seconds = time.monotonic() - self._begin
            self._show_bar()
            if seconds >= next_line:
                self._show_line()
                next_line = seconds + max(_SECONDS_BETWEEN_LINES, seconds / 20)
            if seconds >= next_artifact:
                self._show_artifact()
                next_artifact = seconds + _SECONDS_BETWEEN_ARTIFACTS
        self._show_artifact()

    def _show_bar(self) -> None:
        pace = self.pace()
        self._bar.update(self._task, completed=pace.num_rows, pace=str(pace))

    def _show_line(self) -> None:
        if not self._console.is_terminal:
            self._console.print(f"{self._doing}: {self.pace()}", highlight=False, soft_wrap=True)

    def _show_artifact(self) -> None:
        """Show progress in the UI; a server that cannot be reached now gets it the next time."""
        if FlowRunContext.get() is None:
            return
        pace = self.pace()
        percent = 100.0 * pace.num_rows / max(pace.total_rows, 1)
        try:
            if self._artifact is None:
                created = create_progress_artifact(percent, key="rollout-progress", description=str(pace))
                assert isinstance(created, UUID)
                self._artifact = created
            else:
                update_progress_artifact(self._artifact, percent, description=str(pace))
        except (httpx.HTTPError, PrefectException) as error:
            sys.stderr.write(f"progress could not be sent to Prefect: {error}\n")


def clock(seconds: float) -> str:
    """Return seconds as 42 s, 3:05 min or 2:03 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"
