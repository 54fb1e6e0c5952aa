"""Progress in numbers, on a terminal and in a file."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from rollmill.flows.progress import Progress, clock


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.4, "59 s"), (60, "1:00 min"), (185, "3:05 min"), (7384, "2:03 h")]
)
def test_a_clock_reads_as_people_say_it(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_the_pace_counts_rows_of_an_earlier_start_but_not_its_tokens() -> None:
    progress = Progress(total_rows=100, rows_before=40)
    assert progress.pace().seconds_left is None
    progress.add(30, 600)
    pace = progress.pace()
    assert (pace.num_rows, pace.total_rows) == (70, 100)
    assert pace.seconds_left is not None
    assert (progress.num_rows, progress.num_tokens) == (30, 600)


def test_rows_that_were_made_twice_never_count_as_more_than_there_are() -> None:
    progress = Progress(total_rows=10, rows_before=8)
    progress.add(5, 5)
    assert progress.pace().num_rows == 10


def test_a_terminal_gets_a_bar_and_a_file_gets_none() -> None:
    terminal = io.StringIO()
    with Progress(8, 0, Console(file=terminal, force_terminal=True, width=100)) as progress:
        progress.add(8, 80)
    assert "8/8 rows" in terminal.getvalue()
    plain = io.StringIO()
    with Progress(8, 0, Console(file=plain, force_terminal=False)) as progress:
        progress.add(8, 80)
    assert "\x1b" not in plain.getvalue()
