from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_builders import Place, in_memory

from rollmill.errors import CorruptDataError, InputError
from rollmill.storage.pins import live_pins, pin, unpin


def test_a_pin_holds_until_it_expires_or_is_taken_back(place: Place) -> None:
    objects = place.objects()
    pin(objects, "trainer", 3, seconds=60)
    pin(objects, "other", 4, seconds=3600)
    assert {made.consumer: made.version for made in live_pins(objects)} == {"trainer": 3, "other": 4}
    soon = datetime.now(UTC) + timedelta(minutes=30)
    assert [made.consumer for made in live_pins(objects, soon)] == ["other"]
    unpin(objects, "other")
    unpin(objects, "other")
    assert [made.consumer for made in live_pins(objects)] == ["trainer"]


def test_a_pin_holds_all_versions_from_the_oldest_on() -> None:
    objects = in_memory()
    made = pin(objects, "trainer", 5, seconds=60, oldest=3)
    assert live_pins(objects) == [made]
    assert (made.oldest, made.version) == (3, 5)
    with pytest.raises(InputError, match="got version 6 to 5"):
        pin(objects, "trainer", 5, seconds=60, oldest=6)


def test_pinning_again_moves_the_pin(place: Place) -> None:
    objects = place.objects()
    for version in (1, 2, 5):
        made = pin(objects, "trainer", version, seconds=60)
        assert live_pins(objects) == [made]


@pytest.mark.parametrize(
    ("consumer", "version", "seconds"),
    [("", 1, 60), ("../up", 1, 60), ("a/b", 1, 60), ("c", 0, 60), ("c", 1, 0), ("c", 1, float("inf"))],
)
def test_a_pin_that_makes_no_sense_is_refused_and_not_written(consumer: str, version: int, seconds: float) -> None:
    objects = in_memory()
    with pytest.raises(InputError):
        pin(objects, consumer, version, seconds)
    assert objects.list("") == []


@given(
    garbage=st.binary(max_size=60)
    | st.sampled_from([b"{}", b'{"consumer": "c", "version": 0, "expires_at": "1", "oldest": 0}'])
)
def test_a_damaged_pin_is_named(garbage: bytes) -> None:
    objects = in_memory()
    objects.put("pins/trainer.json", garbage)
    with pytest.raises(CorruptDataError, match=r"pins/trainer\.json is not a pin.*delete it"):
        live_pins(objects)
