"""Pins: which dataset versions are being read, so that nobody removes what a reader is about to open."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta

from rollmill.errors import CorruptDataError, InputError, ObjectMissingError
from rollmill.storage.layout import PINS_FOLDER, pin_key
from rollmill.storage.objects import Objects

_CONSUMER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,199}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """Consumer `consumer` reads versions `oldest` to `version` until `expires_at` (UTC, ISO 8601), or pins again."""

    consumer: str
    version: int
    expires_at: str
    oldest: int

    @property
    def expiry(self) -> datetime:
        return datetime.fromisoformat(self.expires_at)


def pin(objects: Objects, consumer: str, version: int, seconds: float, oldest: int | None = None) -> Pin:
    """Say that `consumer` reads `version` for `seconds` from now on; its earlier pin is replaced.

    With `oldest` it holds all versions from that one on, for a reader of several runs. One write, and no reading.
    Raises InputError for a consumer that cannot be a file name, a version below 1, or no time at all.
    """
    first = version if oldest is None else oldest
    if not _CONSUMER.fullmatch(consumer):
        raise InputError(f"a pin's consumer must hold letters, digits and . _ = - only, got {consumer!r}")
    if not 1 <= first <= version or not 0 < seconds < float("inf"):
        raise InputError(
            f"a pin needs versions and a time above 0, got version {first} to {version} for {seconds} seconds"
        )
    expires_at = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")
    made = Pin(consumer=consumer, version=version, expires_at=expires_at, oldest=first)
    objects.put(pin_key(consumer), json.dumps(asdict(made)).encode())
    return made


def unpin(objects: Objects, consumer: str) -> None:
    """Take back the consumer's pin; none there is no error."""
    objects.delete(pin_key(consumer))


def live_pins(objects: Objects, now: datetime | None = None) -> list[Pin]:
    """Return the pins that have not expired, by consumer. Lists the store, so it is not for readers.

    Raises CorruptDataError for a pin that cannot be read.
    """
    moment = now or datetime.now(UTC)
    found = [_read(objects, key) for key in objects.list(f"{PINS_FOLDER}/")]
    return [pin for pin in found if pin is not None and pin.expiry > moment]


def _read(objects: Objects, key: str) -> Pin | None:
    try:
        made = Pin(**json.loads(objects.get(key)))
        known = 1 <= made.oldest <= made.version and made.expiry.tzinfo is not None
    except ObjectMissingError:
        return None
    except (ValueError, TypeError) as error:
        raise CorruptDataError(f"{objects.where(key)} is not a pin: {error}; delete it") from error
    if not known:
        raise CorruptDataError(f"{objects.where(key)} is not a pin of a version; delete it")
    return made
