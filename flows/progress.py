"""How far a run is: a bar on a terminal, a line now and then elsewhere, and an artifact in the Prefect UI."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Iterable
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

from rollmill.flows.terminal import Terminal, say

_SECONDS_BETWEEN_TICKS = 0.5
_SECONDS_BETWEEN_LINES = 5.0
_SECONDS_BETWEEN_ARTIFACTS = 10.0


GENERATING, SCORING, FINISHED = "generating", "scoring", "finished"


@dataclass(frozen=True, slots=True)
class Pace:
    """Where a run stands: what it does, rows finished of all rows, tokens sampled a second, seconds left at this pace.

    Answers are scored while others are generated, so it is scoring only once nothing is left to generate; what is
    counted then are scored rows.
    """

    doing: str
    num_rows: int
    total_rows: int
    tokens_per_second: float | None
    seconds_left: float | None

    def __str__(self) -> str:
        left = "" if self.seconds_left is None else f", {clock(self.seconds_left)} left"
        speed = "" if self.tokens_per_second is None else f", {self.tokens_per_second:.0f} tokens/s"
        return f"{self.num_rows}/{self.total_rows} rows{speed}{left}"


class Progress:
    """Counts answered rows, sampled tokens and scored rows, from any thread, and shows them while its `with` block
    lasts."""

    def __init__(
        self,
        total_rows: int,
        *,
        answered_before: int,
        scored_before: int,
        to_answer: Iterable[int],
        console: Console | None = None,
    ) -> None:
        """Of the `total_rows`, so many were answered and scored by an earlier start of the run.

        `to_answer` are the indexes of the shards that are not answered yet.
        """
        self.total_rows = total_rows
        self._answered_before, self._scored_before = answered_before, scored_before
        self.num_rows, self.num_tokens = 0, 0
        self._to_answer = set(to_answer)
        self._scored: dict[int, int] = {}
        self._begin = self._end = time.monotonic()
        self._only_scoring_since = (self._begin, 0)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._console = console or Terminal()
        self._bar = Bar(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[pace]}"), console=self._console,
            disable=not self._console.is_terminal,
        )  # fmt: skip
        self._task = TaskID(0)
        self._artifact: UUID | None = None
        context = contextvars.copy_context()
        self._ticker = threading.Thread(target=context.run, args=(self._tick,), name="progress", daemon=True)

    def __enter__(self) -> Progress:
        self._begin = self._end = time.monotonic()
        self._only_scoring_since = (self._begin, 0)
        pace = self.pace()
        self._task = self._bar.add_task(pace.doing, total=self.total_rows, completed=pace.num_rows, pace=str(pace))
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
        """Count rows and tokens that an engine has finished since the last call."""
        with self._lock:
            self.num_rows += num_rows
            self.num_tokens += num_tokens
            self._end = time.monotonic()

    def answered(self, shard: int) -> None:
        """Take in that all answers of a shard are stored."""
        with self._lock:
            if shard in self._to_answer:
                self._to_answer.remove(shard)
                self._only_scoring_since = (time.monotonic(), sum(self._scored.values()))

    def scored(self, shard: int, num_rows: int) -> None:
        """Take in that a shard of so many rows is scored."""
        with self._lock:
            self._scored[shard] = num_rows

    @property
    def seconds(self) -> float:
        """Seconds from the start until the last token."""
        return self._end - self._begin

    def pace(self) -> Pace:
        """Return where the run stands now."""
        with self._lock:
            return self._generating() if self._to_answer else self._scoring()

    def _generating(self) -> Pace:
        seconds = max(time.monotonic() - self._begin, 1e-9)
        done = min(self._answered_before + self.num_rows, self.total_rows)
        left = seconds * (self.total_rows - done) / self.num_rows if self.num_rows else None
        return Pace(GENERATING, done, self.total_rows, self.num_tokens / seconds, left)

    def _scoring(self) -> Pace:
        since, scored_then = self._only_scoring_since
        scored = sum(self._scored.values())
        done = min(self._scored_before + scored, self.total_rows)
        if done == self.total_rows:
            speed = self.num_tokens / max(self.seconds, 1e-9) if self.num_tokens else None
            return Pace(FINISHED, done, self.total_rows, speed, None)
        new, seconds = scored - scored_then, time.monotonic() - since
        return Pace(SCORING, done, self.total_rows, None, seconds * (self.total_rows - done) / new if new else None)

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
        self._bar.update(self._task, description=pace.doing, completed=pace.num_rows, pace=str(pace))

    def _show_line(self) -> None:
        if not self._console.is_terminal:
            pace = self.pace()
            self._console.print(f"{pace.doing}: {pace}", highlight=False, soft_wrap=True)

    def _show_artifact(self) -> None:
        """Show progress in the UI; a server that cannot be reached now gets it the next time."""
        if FlowRunContext.get() is None:
            return
        pace = self.pace()
        percent = 100.0 * pace.num_rows / max(pace.total_rows, 1)
        try:
            if self._artifact is None:
                created = create_progress_artifact(percent, key="rollout-progress", description=f"{pace.doing}: {pace}")
                assert isinstance(created, UUID)
                self._artifact = created
            else:
                update_progress_artifact(self._artifact, percent, description=f"{pace.doing}: {pace}")
        except (httpx.HTTPError, PrefectException) as error:
            say(f"progress could not be sent to Prefect: {error}")


def clock(seconds: float) -> str:
    """Return seconds as 42 s, 3:05 min or 2:03 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"
