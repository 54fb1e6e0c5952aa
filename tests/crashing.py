"""Workers of a run that crash at chosen moments, and a watcher who checks all the while what readers may see."""

from __future__ import annotations

import hashlib
import os
import random
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock, RLock
from typing import TypeVar

from store_builders import plan_of, shard_prompts, shard_rows, write_rows

from rollmill.storage.layout import parse_marker_key
from rollmill.storage.objects import Objects, StoredObject
from rollmill.storage.plan import Plan
from rollmill.storage.publish import publish_run
from rollmill.storage.runs import RunStore
from rollmill.storage.schema import PROMPT_SCHEMA
from rollmill.storage.store import RolloutStore
from rollmill.storage.version import DatasetVersion

Result = TypeVar("Result")
Hook = Callable[[str, str, str], None]
"""Called with the moment (before or after), the operation's name and its key."""


class Crashed(BaseException):
    """The end of a worker that lives in this process; no code of the product catches it."""


class HookedObjects(Objects):
    """The objects of a real store, with a hook around each operation."""

    def __init__(self, inner: Objects, hook: Hook) -> None:
        super().__init__(inner.url)
        self._inner, self._hook = inner, hook

    def get(self, key: str) -> bytes:
        return self._hooked("get", key, lambda: self._inner.get(key))

    def create(self, key: str, data: bytes) -> None:
        self._hooked("create", key, lambda: self._inner.create(key, data))

    def put(self, key: str, data: bytes) -> None:
        self._hooked("put", key, lambda: self._inner.put(key, data))

    def size(self, key: str) -> int | None:
        return self._hooked("size", key, lambda: self._inner.size(key))

    def scan(self, prefix: str) -> list[StoredObject]:
        return self._hooked("scan", prefix, lambda: self._inner.scan(prefix))

    def delete(self, key: str) -> None:
        self._hooked("delete", key, lambda: self._inner.delete(key))

    def _hooked(self, name: str, key: str, action: Callable[[], Result]) -> Result:
        self._hook("before", name, key)
        result = action()
        self._hook("after", name, key)
        return result


@dataclass(slots=True)
class Fate:
    """Ends its worker before or after operation number `number`; without a number the worker lives on.

    A text stands for the first write of a key that begins with it.
    Threads of the worker that come later find it dead. `end` is how: an exception, or the process's own SIGKILL.
    """

    number: int | str | None
    moment: str = "before"
    end: Callable[[], None] | None = None
    num_seen: int = 0
    dead: bool = False
    lock: Lock = field(default_factory=Lock)

    def __call__(self, moment: str, name: str, key: str) -> None:
        with self.lock:
            self.num_seen += moment == "before"
            self.dead = self.dead or (moment == self.moment and is_moment(self.number, self.num_seen, name, key))
        if self.dead:
            if self.end:
                self.end()
            raise Crashed(f"{moment} {name} {key}")


def is_moment(wanted: int | str | None, number: int, name: str, key: str) -> bool:
    """Whether this operation is the one wanted: by its number, or as a write of a key with that beginning."""
    if isinstance(wanted, str):
        return name in ("create", "put") and key.startswith(wanted)
    return wanted == number


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def work(objects: Objects, plan: Plan, order: Sequence[int], publish_parts: bool = False) -> DatasetVersion:
    """Do what a worker of a run does: plan, finish what is not finished, in `order`, and publish."""
    runs = RunStore(objects, plan.run_id)
    stored = runs.open_plan(plan)
    every = [shard.index for shard in stored.shards]
    prompts, answers = (set(runs.finished(stage, every)) for stage in ("prompts", "generate"))
    for index in [index for index in order if index not in prompts or index not in answers]:
        if index not in prompts:
            table = shard_prompts(stored, index)
            runs.write_shard("prompts", index, table, schema=PROMPT_SCHEMA, file_metadata={}, stats={})
        write_rows(runs, index, shard_rows(stored, index))
        if publish_parts:
            publish_run(objects, stored, "generate", policy_version=1, shards=[index])
    return publish_run(objects, stored, "generate", policy_version=1)


def live(objects: Objects, run_id: str, num_prompts: int, seed: int, deadly: bool) -> int:
    """Work as a process that kills itself at a random operation if `deadly`; return the version's number."""
    chance = random.Random(seed)
    fate = Fate(chance.randrange(1, 60) if deadly else None, chance.choice(["before", "after"]), kill_this_process)
    plan = plan_of(run_id, num_prompts)
    order = chance.sample(range(len(plan.shards)), len(plan.shards))
    return work(HookedObjects(objects, fate), plan, order, publish_parts=chance.random() < 0.5).number


class Watcher:
    """Checks at any moment that what was ever seen is still there and unchanged, and that what is new is sound."""

    def __init__(self, objects: Objects, plans: Sequence[Plan]) -> None:
        self.objects = objects
        self.plans = {plan.run_id: plan for plan in plans}
        self.markers: dict[str, bytes] = {}
        self.versions: dict[int, DatasetVersion] = {}
        self._lock = RLock()

    def __call__(self, moment: str, name: str, key: str) -> None:
        if moment == "after" and name in ("create", "put", "delete"):
            self.check()

    def check(self) -> None:
        with self._lock:
            self._check_markers()
            self._check_versions()

    def check_all_again(self) -> None:
        """Forget that anything was found sound, and look at all of it."""
        with self._lock:
            markers, versions = self.markers, self.versions
            self.markers, self.versions = {}, {}
            self.check()
            assert {key: self.markers[key] for key in markers} == markers
            assert {number: self.versions[number].entry for number in versions} == {
                number: version.entry for number, version in versions.items()
            }

    def _check_markers(self) -> None:
        listed = {key for key in self.objects.list("runs/") if parse_marker_key(key)}
        assert set(self.markers) <= listed, "a commit is gone"
        for key in listed - set(self.markers):
            found = parse_marker_key(key)
            assert found is not None
            run_id, stage, index, generation = found
            assert generation == 0, "a shard was committed twice"
            marker = RunStore(self.objects, run_id).read_marker(stage, index, generation)
            data = self.objects.get(marker.file)
            assert (len(data), hashlib.sha256(data).hexdigest()) == (marker.bytes, marker.sha256)
            self.markers[key] = self.objects.get(key)

    def _check_versions(self) -> None:
        latest = RolloutStore(self.objects.url).log  # a reader's own way, without a listing
        latest.objects = self.objects
        newest = latest.latest()
        last = newest.number if newest else 0
        assert last >= max(self.versions, default=0), "a version is gone"
        for number in range(len(self.versions) + 1, last + 1):
            entry = latest.read(number)
            assert entry is not None
            version = DatasetVersion(self.objects, entry)
            self._check_rows(version)
            earlier = [held for held in self.versions.values() if held.run_id == version.run_id]
            assert all(set(held.files) < set(version.files) for held in earlier), "a run has less than before"
            self.versions[number] = version

    def _check_rows(self, version: DatasetVersion) -> None:
        """A version holds each row of each of its shards once, and no other."""
        plan = self.plans[version.run_id]
        shards = [file.shard for file in version.files]
        assert shards == sorted(set(shards))
        assert len(shards) == len(plan.shards) or not version.entry.complete
        expected = [row for index in shards for row in shard_rows(plan, index).to_pylist()]
        assert version.read().to_pylist() == expected

    def orphans(self) -> set[str]:
        """Return the data files that neither a marker nor a version names."""
        named = {file.file for version in self.versions.values() for file in version.files}
        for key in self.markers:
            found = parse_marker_key(key)
            assert found is not None
            named.add(RunStore(self.objects, found[0]).read_marker(*found[1:]).file)
        assert named <= set(self.objects.list("data/"))
        return set(self.objects.list("data/")) - named
