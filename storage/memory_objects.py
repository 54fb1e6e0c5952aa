"""Objects in this process's memory, for tests and notebooks; gone when the process ends."""

from __future__ import annotations

from threading import Lock

from rollmill.storage.objects import Objects, exists, missing

_LOCK = Lock()
_STORES: dict[str, dict[str, bytes]] = {}


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
            data = self._objects.get(key)
        if data is None:
            raise missing(self, key)
        return data

    def create(self, key: str, data: bytes) -> None:
        with _LOCK:
            winner = self._objects.setdefault(key, bytes(data))
        if winner != data:
            raise exists(self, key)

    def put(self, key: str, data: bytes) -> None:
        with _LOCK:
            self._objects[key] = bytes(data)

    def size(self, key: str) -> int | None:
        with _LOCK:
            data = self._objects.get(key)
        return None if data is None else len(data)

    def list(self, prefix: str) -> list[str]:
        with _LOCK:
            return sorted(key for key in self._objects if key.startswith(prefix))

    def delete(self, key: str) -> None:
        with _LOCK:
            self._objects.pop(key, None)
