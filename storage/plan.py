"""What a run is going to do: its identity, its shards, and how it is compared with the plan that is stored."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rollmill.errors import CorruptDataError, JobError, PlanMismatchError

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,199}")
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class ShardRange:
    """Shard `index` holds the prompts `start` to `stop`, without `stop`, of the run."""

    index: int
    start: int
    stop: int

    @property
    def num_prompts(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Plan:
    """A run's plan.

    `identity` is everything that changes the answers: policy, prompts, sampling, seed, tokenizer, template. `tuning`
    is what only changes the speed, and may differ each time. Both hold JSON values. Raises JobError for a run id that
    cannot be a part of a file name, and ValueError for shards that do not cover 0 to the last prompt in order.
    """

    run_id: str
    identity: dict[str, Any]
    shards: tuple[ShardRange, ...]
    group_size: int
    tuning: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_run_id(self.run_id)
        if self.group_size < 1:
            raise JobError(f"group_size must be at least 1, got {self.group_size}")
        stop = 0
        for index, shard in enumerate(self.shards):
            if (shard.index, shard.start) != (index, stop) or shard.stop < shard.start:
                raise ValueError(f"shard {index} of {self.run_id} must begin at prompt {stop}, got {shard}")
            stop = shard.stop
        for name in ("identity", "tuning"):
            object.__setattr__(self, name, json.loads(canonical_json(getattr(self, name))))

    @property
    def num_prompts(self) -> int:
        return self.shards[-1].stop if self.shards else 0

    @property
    def fingerprint(self) -> str:
        """sha256 of identity, shard table and group size; the same in every process."""
        return hashlib.sha256(canonical_json(self._essence()).encode()).hexdigest()

    def to_json(self) -> str:
        stored = {"run_id": self.run_id, "fingerprint": self.fingerprint, **self._essence(), "tuning": self.tuning}
        return json.dumps(stored, indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> Plan:
        """Read a plan back. Raises CorruptDataError, naming `where`, when it is not what was written."""
        try:
            stored = json.loads(text)
            plan = cls(
                run_id=stored["run_id"],
                identity=stored["identity"],
                shards=tuple(ShardRange(index, *limits) for index, limits in enumerate(stored["shards"])),
                group_size=stored["group_size"],
                tuning=stored["tuning"],
            )
        except (ValueError, KeyError, TypeError, JobError) as error:
            raise CorruptDataError(f"{where} is not a plan: {error!r}") from error
        if plan.fingerprint != stored.get("fingerprint"):
            raise CorruptDataError(f"{where} was changed after it was written: its fingerprint does not fit")
        return plan

    def _essence(self) -> dict[str, Any]:
        shards = [[shard.start, shard.stop] for shard in self.shards]
        return {"identity": self.identity, "shards": shards, "group_size": self.group_size}


def check_run_id(run_id: str) -> None:
    """Raise JobError when `run_id` cannot be a part of a key."""
    if not _RUN_ID.fullmatch(run_id):
        raise JobError(
            f"run_id must begin with a letter or digit and hold only those and . _ = -, at most 200, got {run_id!r}"
        )


def refuse_mismatch(existing: Plan, wanted: Plan, where: str) -> None:
    """Raise PlanMismatchError, naming each field, when the two plans would not give the same rows.

    A shard table that cuts the same prompts elsewhere gives the same rows, so it is no mismatch.
    """
    old, new = _comparable(existing), _comparable(wanted)
    names = [name for name in {**old, **new} if old.get(name, _ABSENT) != new.get(name, _ABSENT)]
    if not names:
        return
    changes = "; ".join(f"{name} was {_shown(old, name)}, now {_shown(new, name)}" for name in names)
    raise PlanMismatchError(
        f"run {wanted.run_id} already exists with another job ({where}): {changes}. "
        "Give this job another run_id (or name), or set these fields back to continue the run"
    )


def canonical_json(value: Any) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces, NaN refused with ValueError."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _comparable(plan: Plan) -> dict[str, Any]:
    leaves = dict(_leaves(plan.identity, ""))
    return {**leaves, "group_size": plan.group_size, "number of prompts": plan.num_prompts}


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield (dotted path, leaf) of nested objects and lists; an empty one is a leaf."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{index}]")
    else:
        yield path, value


def _shown(leaves: dict[str, Any], name: str) -> str:
    return json.dumps(leaves[name], ensure_ascii=False) if name in leaves else "not set"
