"""What a store honours of what the protocol needs, one finding each."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from rollmill.errors import ObjectExistsError, ObjectMissingError, RollmillError, StorageError
from rollmill.storage.concurrency import at_once
from rollmill.storage.layout import check_format
from rollmill.storage.objects import PROBE_FOLDER, Objects

_NUM_RACERS = 8
_NUM_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether the store honours one thing; `detail` says what was seen."""

    name: str
    honoured: bool
    detail: str


def probe_store(objects: Objects) -> list[Finding]:
    """Try everything that the protocol stands on, and leave the store as it was.

    A store is fit for use when every finding is honoured. What comes after a store that cannot be reached or written
    is not tried.
    """
    return list(_findings(objects.impatient(), f"{PROBE_FOLDER}/{uuid.uuid4().hex}-"))


def store_time(objects: Objects) -> datetime:
    """Return the time by the store's own clock, which its ages are counted by."""
    key = f"{PROBE_FOLDER}/{uuid.uuid4().hex}"
    objects.create(key, b"now")
    try:
        return objects.scan(key)[0].modified
    finally:
        objects.delete(key)


def _findings(objects: Objects, prefix: str) -> Iterator[Finding]:
    for name, check in _NEEDED_FIRST:
        finding = _finding(name, partial(check, objects, prefix))
        yield finding
        if not finding.honoured:
            return
    for name, check in _CHECKS:
        yield _finding(name, partial(check, objects, prefix))


def _finding(name: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, check())
    except RollmillError as error:
        return Finding(name, False, str(error))


def _reachable(objects: Objects, _: str) -> str:
    objects.check_reachable()
    return objects.url


def _format(objects: Objects, _: str) -> str:
    return "a rollout store of this format" if check_format(objects) else "no rollout store yet"


def _read_after_write(objects: Objects, prefix: str) -> str:
    objects.create(f"{prefix}written", b"first")
    _expect(objects.get(f"{prefix}written") == b"first", "it returns other bytes than were written")
    return "what was created is read at once"


def _create_only(objects: Objects, prefix: str) -> str:
    objects.create(f"{prefix}once", b"first")
    _expect(
        _created(objects, f"{prefix}once", b"second") is None,
        "it ignores If-None-Match on PUT, so two workers could overwrite each other",
    )
    _expect(objects.get(f"{prefix}once") == b"first", "a refused write changed the object")
    return "a second create is refused"


def _one_winner(objects: Objects, prefix: str) -> str:
    key = f"{prefix}race"
    results = at_once(lambda racer: _created(objects, key, b"%d" % racer), range(_NUM_RACERS))
    winners = [result for result in results if result is not None]
    _expect(winners == [objects.get(key)], f"{len(winners)} of {_NUM_RACERS} creates at once succeeded")
    return f"of {_NUM_RACERS} creates at once one succeeded"


def _seen_after_missing(objects: Objects, prefix: str) -> str:
    key = f"{prefix}late"
    for read in (objects.get, objects.size):
        _expect(_absent(read, key), "it returns an object that was never written")
    objects.create(key, b"late")
    _expect(objects.get(key) == b"late", "it returns other bytes than were written")
    return "an object is seen at once by who asked for it before it was there"


def _overwrite(objects: Objects, prefix: str) -> str:
    for text in (b"one", b"three"):
        objects.put(f"{prefix}hint", text)
        _expect(objects.get(f"{prefix}hint") == text, "it returns old bytes after an overwrite")
        _expect(objects.size(f"{prefix}hint") == len(text), "it gives an old size after an overwrite")
    return "an overwritten object is new at once"


def _whole_bodies(objects: Objects, prefix: str) -> str:
    data = hashlib.shake_256(prefix.encode()).digest(_NUM_BYTES)
    objects.put(f"{prefix}body", data)
    _expect(objects.get(f"{prefix}body") == data, "a body comes back changed or cut")
    return f"{_NUM_BYTES} bytes come back unchanged"


def _listing(objects: Objects, prefix: str) -> str:
    objects.create(f"{prefix}listed", b"12")
    found = objects.scan(f"{prefix}listed")
    _expect([(stored.key, stored.bytes) for stored in found] == [(f"{prefix}listed", 2)], "a listing is behind")
    seconds = abs((found[0].modified - datetime.now(UTC)).total_seconds())
    return f"a new object is listed at once, with its size; the clocks differ by {seconds:.0f} s"


def _deletion(objects: Objects, prefix: str) -> str:
    objects.create(f"{prefix}removed", b"x")
    objects.delete(f"{prefix}removed")
    _expect(_absent(objects.get, f"{prefix}removed"), "a removed object is still there")
    return "a removed object is gone at once"


def _left_clean(objects: Objects, prefix: str) -> str:
    for key in objects.list(prefix):
        objects.delete(key)
    _expect(not objects.list(prefix), "removed objects are still listed")
    return "nothing of this probe is left"


def _created(objects: Objects, key: str, data: bytes) -> bytes | None:
    try:
        objects.create(key, data)
    except ObjectExistsError:
        return None
    return data


def _absent(read: Callable[[str], bytes | int | None], key: str) -> bool:
    try:
        return read(key) is None
    except ObjectMissingError:
        return True


def _expect(fact: bool, otherwise: str) -> None:
    if not fact:
        raise StorageError(otherwise)


_NEEDED_FIRST: tuple[tuple[str, Callable[[Objects, str], str]], ...] = (
    ("reachable", _reachable),
    ("format", _format),
    ("read after write", _read_after_write),
)
_CHECKS: tuple[tuple[str, Callable[[Objects, str], str]], ...] = (
    ("create only", _create_only),
    ("one winner", _one_winner),
    ("no memory of missing", _seen_after_missing),
    ("overwrite", _overwrite),
    ("whole bodies", _whole_bodies),
    ("listing", _listing),
    ("deletion", _deletion),
    ("left clean", _left_clean),
)
