"""What generating took: added up from the shards' markers, whoever wrote them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_builders import publish, rewarded
from store_builders import in_memory

from rollmill.storage.version import DatasetVersion
from rollmill.tasks.report.figures import version_figures
from rollmill.tasks.usage import Usage, covered, device_seconds, usage, usage_of_version

SECONDS = st.integers(0, 10**6).map(lambda thousandths: thousandths / 1000)


def shard_stats(tokens: int, seconds: float, ended_at: str, **devices: float) -> dict[str, Any]:
    span = {"seconds": seconds, "ended_at": f"2026-01-01T00:{ended_at}.000+00:00"}
    return {"response_tokens": tokens, **span, **devices}


def version_with(*stats: dict[str, Any]) -> DatasetVersion:
    """Return a version with a shard of one answer for each of these stats."""
    return publish(in_memory(), [[rewarded(1.0)]] * max(1, len(stats)), prompts_per_shard=1, stats=stats)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20))))
def test_what_spans_cover_is_counted_once(spans: list[tuple[int, int]]) -> None:
    moments = {moment for begin, length in spans for moment in range(begin, begin + length)}
    assert covered([(begin, begin + length) for begin, length in spans]) == len(moments)


def test_shards_that_were_generated_together_count_once_and_pauses_not_at_all() -> None:
    version = version_with(shard_stats(100, 10, "00:10"), shard_stats(100, 10, "00:15"), shard_stats(50, 10, "30:00"))
    found = usage_of_version(version)
    assert (found.tokens, found.seconds, found.tokens_per_second) == (250, 25.0, 10.0)
    assert version_figures(version).usage == found


@given(st.lists(st.tuples(st.sampled_from(["cpu", "cuda:0", "cuda:1"]), SECONDS), min_size=1, max_size=9), SECONDS)
def test_device_seconds_and_cost_are_sums_over_shards(shards: list[tuple[str, float]], price: float) -> None:
    found = usage({"response_tokens": 1, **device_seconds(seconds, device)} for device, seconds in shards)
    on_gpus = sum(seconds for device, seconds in shards if device != "cpu")
    everywhere = sum(seconds for _, seconds in shards)
    assert found.gpu_seconds == pytest.approx(on_gpus)
    assert found.cpu_engine_seconds == pytest.approx(everywhere - on_gpus)
    assert found.cost is None
    priced = Usage(
        gpu_seconds=found.gpu_seconds, cpu_engine_seconds=found.cpu_engine_seconds, price_per_device_hour=price
    )
    assert priced.cost == pytest.approx(everywhere * price / 3600)


def test_an_engine_that_has_a_quarter_of_a_gpu_takes_a_quarter_of_its_seconds() -> None:
    assert device_seconds(60.0, "cuda", 0.25) == {"gpu_seconds": 15.0, "cpu_engine_seconds": 0.0}
    assert device_seconds(60.0, "cpu", 0.25) == {"gpu_seconds": 0.0, "cpu_engine_seconds": 60.0}


def test_what_one_shard_does_not_say_is_not_known_of_the_run() -> None:
    told = shard_stats(1, 1, "00:01", **device_seconds(3.0, "cuda"))
    known, half = usage([told, told]), usage([told, {"response_tokens": 5, "seconds": 1.0}])
    assert (known.gpu_seconds, known.tokens_per_second) == (6.0, 2.0)
    assert (half.gpu_seconds, half.cpu_engine_seconds, half.tokens_per_second, half.tokens) == (None, None, None, 6)
    assert Usage(price_per_device_hour=2.0).cost is None
    assert half.devices() == [("device-seconds", None, "not known: the shards' markers do not say")]
    assert usage_of_version(version_with()).tokens_per_second is None


def test_each_kind_of_device_that_was_used_is_named_and_the_cost_with_its_price() -> None:
    both = Usage(tokens=720, seconds=60.0, gpu_seconds=1800.0, cpu_engine_seconds=360.0, price_per_device_hour=2.5)
    assert both.devices() == [
        ("GPU-seconds", 1800.0, "0.4 tokens each"),
        ("CPU engine-seconds", 360.0, "2.0 tokens each"),
        ("cost", 1.5, "at 2.5 a device hour"),
    ]
