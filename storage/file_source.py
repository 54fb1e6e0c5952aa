"""Where a reader gets the bytes of committed files from: the store, or a cache of it on the local disk."""

from __future__ import annotations

import os
from collections.abc import Iterable

from platformdirs import user_cache_path

from rollmill.storage.concurrency import MAX_REQUESTS_AT_ONCE, at_once
from rollmill.storage.file_cache import DEFAULT_MAX_CACHE_BYTES, FileCache
from rollmill.storage.objects import Objects
from rollmill.storage.parquet import CommittedFile, check_bytes

_MAX_AT_ONCE_FROM_DISK = 2


class FileSource:
    """Reads a store's committed files, each checked against its length and checksum.

    A store on S3 is read through a cache in `cache_dir`, by default in the user's cache folder; any other store only
    when `cache_dir` is given.
    """

    def __init__(
        self,
        objects: Objects,
        cache_dir: str | os.PathLike[str] | None = None,
        max_cache_bytes: int = DEFAULT_MAX_CACHE_BYTES,
    ) -> None:
        self.objects = objects
        folder = cache_dir
        if folder is None and objects.url.startswith("s3://"):
            folder = user_cache_path("rollmill") / "files"
        self._cache = None if folder is None else FileCache(folder, max_cache_bytes)

    @property
    def max_at_once(self) -> int:
        """How many files are best read and decoded at once: from a disk it is work, from a network mostly waiting."""
        return MAX_REQUESTS_AT_ONCE if self.objects.url.startswith("s3://") else _MAX_AT_ONCE_FROM_DISK

    def read(self, file: CommittedFile) -> bytes:
        """Return the file's bytes. Raises ObjectMissingError or CorruptDataError that name the file."""
        if self._cache is None:
            return check_bytes(self.objects, file)
        return self._cache.read(self.objects, file)

    def fetch(self, files: Iterable[CommittedFile]) -> None:
        """Bring the files into the cache, if there is one and it can hold all of them."""
        cache, wanted = self._cache, list(files)
        if cache is not None and sum(file.bytes for file in wanted) <= cache.max_bytes:
            at_once(lambda file: cache.fetch(self.objects, file), wanted)

    def where(self, file: CommittedFile) -> str:
        return self.objects.where(file.file)
