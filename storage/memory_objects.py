"""Objects in this process's memory, for tests and notebooks; gone when the process ends."""

from __future__ import annotations

from datetime import UTC, datetime
from threading import Lock

from rollmill.storage.objects import Objects, StoredObject, exists, missing

_LOCK = Lock()
_STORES: dict[str, dict[str, tuple[bytes, datetime]]] = {}


class MemoryObjects(Objects):
    """Objects of `memory://name`; every instance of the same address in this process shares them."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        with _LOCK:
            self._objects = _STORES.setdefault(self.url, {})

    def __reduce__(self) -> tuple[type[MemoryObjects], tuple[str]]:
        return MemoryObjects, (self.url,)

    def get(self, key: str) -> bytes:
        with _LOCK:
            found = self._objects.get(key)
        if found is None:
            raise missing(self, key)
        return found[0]

    def create(self, key: str, data: bytes) -> None:
        with _LOCK:
            winner, _ = self._objects.setdefault(key, (bytes(data), datetime.now(UTC)))
        if winner != data:
            raise exists(self, key)

    def put(self, key: str, data: bytes) -> None:
        with _LOCK:
            self._objects[key] = (bytes(data), datetime.now(UTC))

    def size(self, key: str) -> int | None:
        with _LOCK:
            found = self._objects.get(key)
        return None if found is None else len(found[0])

    def scan(self, prefix: str) -> list[StoredObject]:
        with _LOCK:
            found = sorted(item for item in self._objects.items() if item[0].startswith(prefix))
        return [StoredObject(key, len(data), modified) for key, (data, modified) in found]

    def delete(self, key: str) -> None:
        with _LOCK:
            self._objects.pop(key, None)
