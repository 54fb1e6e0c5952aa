"""What a run says to whoever watches: on a terminal, or through the worker that started it.

A worker may end before its run does; then nobody reads any more, and what is said is lost without harm.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from functools import partial

from prefect.logging.handlers import PrefectConsoleHandler
from rich.console import Console


class Terminal(Console):
    """Standard error, as rich writes to it."""

    def __init__(self) -> None:
        super().__init__(stderr=True)

    def on_broken_pipe(self) -> None:
        """Say nothing from here on; rich itself would end the thread."""
        self.quiet = True


def say(line: str) -> None:
    """Write a line to standard error."""
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.write(f"{line}\n")


def go_on_unread() -> None:
    """Let Prefect's log lines be lost, too, where nobody reads them; its server gets them all the same."""
    for handler in logging.root.handlers:
        if isinstance(handler, PrefectConsoleHandler):
            be_quiet = partial(setattr, handler.console, "quiet", True)
            handler.console.on_broken_pipe = be_quiet  # type: ignore[method-assign]
