"""Progress in numbers, on a terminal and in a file."""

from __future__ import annotations

import io
from collections.abc import Iterable

import pytest
from rich.console import Console

from rollmill.flows.progress import Progress, clock


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.4, "59 s"), (60, "1:00 min"), (185, "3:05 min"), (7384, "2:03 h")]
)
def test_a_clock_reads_as_people_say_it(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def progress_of(
    total_rows: int, answered: int = 0, scored: int = 0, to_answer: Iterable[int] = (0,), console: Console | None = None
) -> Progress:
    return Progress(total_rows, answered_before=answered, scored_before=scored, to_answer=to_answer, console=console)


def test_the_pace_counts_rows_of_an_earlier_start_but_not_its_tokens() -> None:
    progress = progress_of(100, answered=40)
    assert progress.pace().seconds_left is None
    progress.add(30, 600)
    pace = progress.pace()
    assert (pace.doing, pace.num_rows, pace.total_rows) == ("generating", 70, 100)
    assert pace.seconds_left is not None
    assert (progress.num_rows, progress.num_tokens) == (30, 600)


def test_rows_that_were_made_twice_never_count_as_more_than_there_are() -> None:
    progress = progress_of(10, answered=8)
    progress.add(5, 5)
    assert progress.pace().num_rows == 10


def test_a_run_is_scoring_once_nothing_is_left_to_generate() -> None:
    progress = progress_of(100, answered=60, scored=20, to_answer=(3, 4))
    progress.add(40, 400)
    progress.answered(3)
    progress.scored(3, 20)
    assert str(progress.pace()).startswith("100/100 rows, ")
    progress.answered(4)
    pace = progress.pace()
    assert (pace.doing, str(pace)) == ("scoring", "40/100 rows")
    progress.scored(4, 20)
    pace = progress.pace()
    assert (pace.doing, pace.num_rows, pace.tokens_per_second) == ("scoring", 60, None)
    assert pace.seconds_left is not None
    progress.scored(0, 40)
    pace = progress.pace()
    assert (pace.doing, pace.num_rows, pace.seconds_left) == ("finished", 100, None)
    assert pace.tokens_per_second is not None


def test_a_start_that_has_only_to_score_says_so_from_the_beginning() -> None:
    progress = progress_of(100, answered=100, scored=40, to_answer=())
    assert (progress.pace().doing, str(progress.pace())) == ("scoring", "40/100 rows")
    for _ in range(2):  # a task that is tried again
        progress.scored(1, 30)
    assert progress.pace().num_rows == 70
    progress.scored(2, 30)
    assert (progress.pace().doing, str(progress.pace())) == ("finished", "100/100 rows")


def test_a_terminal_gets_a_bar_and_a_file_gets_none() -> None:
    terminal = io.StringIO()
    with progress_of(8, console=Console(file=terminal, force_terminal=True, width=100)) as progress:
        assert "generating" in terminal.getvalue()
        progress.add(8, 80)
        progress.answered(0)
    assert "scoring" in terminal.getvalue()
    assert "0/8 rows" in terminal.getvalue()
    plain = io.StringIO()
    with progress_of(8, console=Console(file=plain, force_terminal=False)) as progress:
        progress.add(8, 80)
    assert "\x1b" not in plain.getvalue()
