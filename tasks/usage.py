"""What generating a run took, as its shards' markers tell: seconds, devices, and what these cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from rollmill.storage.ledger import GENERATE_STAGE
from rollmill.storage.runs import RunStore
from rollmill.storage.version import DatasetVersion

_SECONDS_AN_HOUR = 3600.0
GPU_SECONDS, CPU_ENGINE_SECONDS = "gpu_seconds", "cpu_engine_seconds"
"""What a shard's marker calls the seconds in which engines sampled its answers: those of GPUs, a part of a GPU for its
part, and those of engines on CPUs, each with however many cores it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the answers of a run took to generate; None where the shards' markers do not tell.

    tokens                 sampled
    seconds                in which at least one shard was being generated, by the clocks of those who did
    gpu_seconds            in which engines sampled, summed over GPUs; loading and waiting are not in it
    cpu_engine_seconds     the same of engines on CPUs, whatever number of cores each had
    price_per_device_hour  of a GPU, or of a CPU's engine; None when nobody said
    """

    tokens: int = 0
    seconds: float | None = None
    gpu_seconds: float | None = None
    cpu_engine_seconds: float | None = None
    price_per_device_hour: float | None = None

    @property
    def tokens_per_second(self) -> float | None:
        return self.tokens / self.seconds if self.tokens and self.seconds else None

    @property
    def cost(self) -> float | None:
        """The price of all device-seconds, in whatever the price is in."""
        if self.price_per_device_hour is None or self.gpu_seconds is None or self.cpu_engine_seconds is None:
            return None
        return (self.gpu_seconds + self.cpu_engine_seconds) / _SECONDS_AN_HOUR * self.price_per_device_hour

    def to_json(self) -> dict[str, float | None]:
        """Return what the figures of a version say of it, as JSON values."""
        return {
            "tokens_per_second": self.tokens_per_second,
            "gpu_seconds": self.gpu_seconds,
            "cpu_engine_seconds": self.cpu_engine_seconds,
            "price_per_device_hour": self.price_per_device_hour,
            "cost": self.cost,
        }

    def devices(self) -> list[tuple[str, float | None, str]]:
        """Return (name, value, remark) of the device-seconds there are, and of the cost where there is a price."""
        kinds = [("GPU-seconds", self.gpu_seconds), ("CPU engine-seconds", self.cpu_engine_seconds)]
        used: list[tuple[str, float | None, str]] = [
            (name, seconds, f"{self.tokens / seconds:,.1f} tokens each") for name, seconds in kinds if seconds
        ]
        if self.gpu_seconds is None:
            used = [("device-seconds", None, "not known: the shards' markers do not say")]
        if self.price_per_device_hour is not None:
            used.append(("cost", self.cost, f"at {self.price_per_device_hour:g} a device hour"))
        return used


def device_seconds(seconds: float, device: str, share: float = 1.0) -> dict[str, float]:
    """Return the part of a shard's stats that says how long an engine sampled for it, on a torch device.

    `share` is how much of a GPU the engine has.
    """
    on_gpu = device.startswith("cuda")
    return {
        GPU_SECONDS: round(seconds * share, 6) if on_gpu else 0.0,
        CPU_ENGINE_SECONDS: 0.0 if on_gpu else round(seconds, 6),
    }


def usage_of_version(version: DatasetVersion, price: float | None = None) -> Usage:
    """Return what a version's newest run took, at a price, or else at that of the job which began the run."""
    run = RunStore(version.objects, version.run_id)
    known = usage_of_run(run, [file.shard for file in version.entry.files])
    return replace(known, price_per_device_hour=_price_at_first(run) if price is None else price)


def usage_of_run(run: RunStore, shards: Sequence[int], price: float | None = None) -> Usage:
    """Return what shards of a run took.

    Pauses between two starts of a run do not count, and neither does what a killed start lost or what was made twice.
    """
    markers = run.markers(GENERATE_STAGE, shards)
    known = usage(marker.stats for marker in markers.values()) if len(markers) == len(shards) else Usage()
    return replace(known, price_per_device_hour=price)


def usage(shards: Iterable[Mapping[str, Any]]) -> Usage:
    """Add up the stats of shards, and the time that their spans cover together.

    A span has `seconds` and ends at `ended_at`, by the clock of the machine that generated the shard. What one shard
    does not say is not known of all.
    """
    stats = list(shards)
    return Usage(
        tokens=sum(each.get("response_tokens", 0) for each in stats),
        seconds=covered(_span(each) for each in stats) if all("ended_at" in each for each in stats) else None,
        gpu_seconds=_total(stats, GPU_SECONDS),
        cpu_engine_seconds=_total(stats, CPU_ENGINE_SECONDS),
    )


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of what spans of (begin, end) cover, each moment counted once."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def _span(stats: Mapping[str, Any]) -> tuple[float, float]:
    end = datetime.fromisoformat(stats["ended_at"]).timestamp()
    return end - stats["seconds"], end


def _total(shards: Sequence[Mapping[str, Any]], name: str) -> float | None:
    return float(sum(stats[name] for stats in shards)) if all(name in stats for stats in shards) else None


def _price_at_first(run: RunStore) -> float | None:
    plan = run.load_plan()
    engine = plan.tuning.get("engine", {}) if plan else {}
    price: float | None = engine.get("price_per_device_hour")
    return price
