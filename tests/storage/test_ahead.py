from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Generator
from threading import Event

import pytest

from rollmill.storage.ahead import Ahead


class Source:
    """Counts up to a limit, and tells how far it has come and when it ended."""

    def __init__(self, limit: int = 10**6) -> None:
        self.made = 0
        self.has_made = {number: Event() for number in range(1, 9)}
        self.ended = Event()
        self.limit = limit

    def items(self) -> Generator[int, None, None]:
        try:
            while self.made < self.limit:
                self.made += 1
                if self.made in self.has_made:
                    self.has_made[self.made].set()
                yield self.made
        finally:
            self.ended.set()


def test_all_items_come_in_order() -> None:
    source = Source(50)
    assert list(Ahead(source.items(), 3)) == list(range(1, 51))
    assert source.ended.wait(10)


@pytest.mark.parametrize("depth", [1, 2])
def test_no_more_than_depth_items_are_made_ahead(depth: int) -> None:
    source = Source()
    ahead = Ahead(source.items(), depth)
    assert source.has_made[depth].wait(10)
    assert next(ahead) == 1
    assert source.has_made[depth + 1].wait(10)
    assert source.made <= depth + 1
    ahead.close()


def test_an_error_is_raised_where_its_item_would_have_come() -> None:
    def items() -> Generator[int, None, None]:
        yield 1
        raise OSError("no more")

    ahead = Ahead(items(), 5)
    assert next(ahead) == 1
    with pytest.raises(OSError, match="no more"):
        next(ahead)
    assert next(ahead, None) is None


@pytest.mark.parametrize("how", ["close", "lose"])
def test_the_thread_ends_when_nobody_takes_any_more(how: str) -> None:
    source = Source()
    ahead: Ahead[int] | None = Ahead(source.items(), 1)
    assert ahead is not None
    next(ahead)
    if how == "close":
        ahead.close()
        assert next(ahead, None) is None
    ahead = None
    gc.collect()
    assert source.ended.wait(10)


def test_a_program_ends_though_items_are_still_being_made() -> None:
    program = (
        "import itertools\nfrom rollmill.storage.ahead import Ahead\n"
        "ahead = Ahead((number for number in itertools.count()), 2)\nprint(next(ahead))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


def test_a_program_ends_cleanly_while_the_thread_of_a_lost_reader_still_decodes() -> None:
    program = (
        "from reading_builders import published\nfrom rollmill import CachedRolloutRunner\n"
        "store = published(num_prompts=600, prompts_per_shard=300)\n"
        "def train():\n    CachedRolloutRunner(store)()\ntrain()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_child_can_drop_its_copy() -> None:
    ahead = Ahead(Source().items(), 1)
    next(ahead)
    child = os.fork() if threading.active_count() == 2 else None
    if child == 0:
        ahead.close()
        os._exit(0)
    if child is not None:
        assert os.waitpid(child, 0)[1] == 0
    ahead.close()
