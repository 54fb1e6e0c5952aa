"""Finding an id that comes twice among very many, in little memory."""

from __future__ import annotations

from array import array
from hashlib import blake2b
from struct import Struct

_DIGEST = Struct("<QQ")


class UniqueIds:
    """Remembers ids as 16-byte digests in an open hash table: 24 to 40 bytes an id, however long the ids are."""

    def __init__(self) -> None:
        self._first, self._second = array("Q"), array("Q")
        self._slots = _empty_slots(1 << 10)

    def add(self, prompt_id: str) -> int | None:
        """Remember `prompt_id` as the next one; return how many came before its first use, or None when it is new."""
        first, second = _DIGEST.unpack(blake2b(prompt_id.encode(), digest_size=_DIGEST.size).digest())
        slots, last = self._slots, len(self._slots) - 1
        slot: int = first & last
        while entry := slots[slot]:
            if self._first[entry - 1] == first and self._second[entry - 1] == second:
                return entry - 1
            slot = (slot + 1) & last
        self._first.append(first)
        self._second.append(second)
        slots[slot] = len(self._first)
        if len(self._first) * 2 > len(slots):
            self._grow()
        return None

    def _grow(self) -> None:
        size = len(self._slots) * 2
        self._slots = slots = _empty_slots(size)
        for entry, first in enumerate(self._first, start=1):
            slot = first & (size - 1)
            while slots[slot]:
                slot = (slot + 1) & (size - 1)
            slots[slot] = entry


def _empty_slots(count: int) -> array[int]:
    return array("I", bytes(4)) * count
