"""`RolloutStore`: where readers begin."""

from __future__ import annotations

from os import PathLike, fspath
from typing import Any

from rollmill.errors import ObjectMissingError
from rollmill.storage.layout import check_format
from rollmill.storage.log import LogEntry, VersionLog
from rollmill.storage.objects import open_objects
from rollmill.storage.version import DatasetVersion


class RolloutStore:
    """The published dataset versions under a local folder, `s3://bucket/prefix` or `memory://name`.

    `storage_options` are those of s3fs; what they leave out comes from the AWS_* environment variables. Opening does
    no I/O. A store may be shared by threads, pickled, and used after a fork. Every method raises StoreAccessError
    when the store cannot be read or has a newer format.
    """

    def __init__(self, url: str | PathLike[str], storage_options: dict[str, Any] | None = None) -> None:
        self.objects = open_objects(fspath(url), storage_options)
        self.log = VersionLog(self.objects)

    @property
    def url(self) -> str:
        """The store's address."""
        return self.objects.url

    def latest(self) -> DatasetVersion:
        """Return the newest version. Raises ObjectMissingError when nothing was published yet."""
        return DatasetVersion(self.objects, self._latest_entry())

    def version(self, number: int) -> DatasetVersion:
        """Return version `number`, which never changes. Raises ObjectMissingError when there is none."""
        entry = self.log.read(number) if check_format(self.objects) else None
        if entry is None:
            latest = self._latest_entry().number
            raise ObjectMissingError(f"store {self.url} has no version {number}; its versions are 1 to {latest}")
        return DatasetVersion(self.objects, entry)

    def versions(self) -> list[DatasetVersion]:
        """Return all versions, oldest first; an empty list when nothing was published yet."""
        entries = self.log.read_all() if check_format(self.objects) else []
        return [DatasetVersion(self.objects, entry) for entry in entries]

    def _latest_entry(self) -> LogEntry:
        entry = self.log.latest() if check_format(self.objects) else None
        if entry is None:
            raise ObjectMissingError(
                f"store {self.url} has no published version yet; check the address, or run a job that writes there"
            )
        return entry
