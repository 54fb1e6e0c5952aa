"""Finding an id that comes twice among very many, in little memory."""

from __future__ import annotations

from array import array
from hashlib import blake2b

_DIGEST_BYTES = 16


class UniqueIds:
    """Remembers ids as 16-byte digests in an open hash table: 24 to 40 bytes an id, however long the ids are."""

    def __init__(self) -> None:
        self._digests = bytearray()
        self._slots = _empty_slots(1 << 10)
        self._count = 0

    def add(self, prompt_id: str) -> int | None:
        """Remember `prompt_id` as the next one; return how many came before its first use, or None when it is new."""
        digest = blake2b(prompt_id.encode(), digest_size=_DIGEST_BYTES).digest()
        slot = self._find(digest)
        if self._slots[slot]:
            return self._slots[slot] - 1
        self._digests += digest
        self._count += 1
        self._slots[slot] = self._count
        if self._count * 2 > len(self._slots):
            self._grow()
        return None

    def _find(self, digest: bytes) -> int:
        last = len(self._slots) - 1
        slot = int.from_bytes(digest[:8], "little") & last
        while (entry := self._slots[slot]) and self._digest(entry - 1) != digest:
            slot = (slot + 1) & last
        return slot

    def _digest(self, index: int) -> bytearray:
        return self._digests[index * _DIGEST_BYTES : (index + 1) * _DIGEST_BYTES]

    def _grow(self) -> None:
        self._slots = _empty_slots(len(self._slots) * 2)
        for index in range(self._count):
            self._slots[self._find(bytes(self._digest(index)))] = index + 1


def _empty_slots(count: int) -> array[int]:
    return array("I", bytes(4 * count))
