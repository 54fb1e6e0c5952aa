"""How fast a run was generated, as far as its shard markers tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rollmill.storage.ledger import GENERATE_STAGE
from rollmill.storage.log import LogEntry
from rollmill.storage.objects import Objects
from rollmill.storage.runs import RunStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Sampled tokens, and the seconds in which at least one of their shards was being generated."""

    tokens: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


def throughput_of(objects: Objects, entry: LogEntry) -> Throughput | None:
    """Return the throughput of a published run, or None when its markers do not tell.

    Pauses between two starts of a run do not count, and neither does what a killed start lost.
    """
    shards = [file.shard for file in entry.files]
    markers = RunStore(objects, entry.run_id).markers(GENERATE_STAGE, shards)
    return throughput(marker.stats for marker in markers.values()) if len(markers) == len(shards) else None


def throughput(shards: Iterable[Mapping[str, Any]]) -> Throughput | None:
    """Add up shards' `response_tokens`, and the time that their spans cover together.

    A span has `seconds` and ends at `ended_at`, by the clock of the machine that generated the shard. Returns None
    when a shard does not say, or nothing was generated.
    """
    tokens, spans = 0, []
    for stats in shards:
        if "ended_at" not in stats:
            return None
        end = datetime.fromisoformat(stats["ended_at"]).timestamp()
        spans.append((end - stats["seconds"], end))
        tokens += stats["response_tokens"]
    seconds = covered(spans)
    return Throughput(tokens=tokens, seconds=seconds) if tokens and seconds > 0 else None


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of what spans of (begin, end) cover, each moment counted once."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
