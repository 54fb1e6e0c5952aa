"""Copies of a store's files on the local disk, by checksum, shared by all processes of one host."""

from __future__ import annotations

import hashlib
import logging
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from rollmill.errors import InputError, StoreAccessError
from rollmill.storage.objects import Objects
from rollmill.storage.parquet import CommittedFile, check_bytes

logger = logging.getLogger(__name__)

_SECONDS_A_WRITE_MAY_TAKE = 3600.0
DEFAULT_MAX_CACHE_BYTES = 20 * 2**30


class FileCache:
    """A folder of at most `max_bytes` of files, each under its sha256.

    Several processes may share the folder: a file is fetched by one of them while the others wait for it. What is read
    has been checked: a copy that differs from its checksum is fetched again. When the folder is full, the files that
    were read longest ago go first; a file larger than the folder may be is passed on without being kept.
    Raises InputError for a limit below 0, StoreAccessError when the folder cannot be used.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int = DEFAULT_MAX_CACHE_BYTES) -> None:
        if max_bytes < 0:
            raise InputError(f"max_cache_bytes must be at least 0, got {max_bytes}")
        self.folder = Path(folder).expanduser().absolute()
        self.max_bytes = max_bytes

    def read(self, objects: Objects, file: CommittedFile) -> bytes:
        """Return the bytes of a committed file, from the disk or, the first time, from the store.

        Raises ObjectMissingError or CorruptDataError, naming the file, when the store does not have what was committed.
        """
        data = self._checked_copy(file)
        if data is None:
            with self._lock(file.sha256[:2]):
                data = self._checked_copy(file)
                if data is None:
                    data = check_bytes(objects, file)
                    self._keep(file, data)
        return data

    def fetch(self, objects: Objects, file: CommittedFile) -> None:
        """Make sure that a copy of the file's size is there; the copy is checked when it is read."""
        if self._copy_size(file) != file.bytes:
            self.read(objects, file)

    def path_of(self, file: CommittedFile) -> Path:
        return self.folder / file.sha256[:2] / f"{file.sha256}.parquet"

    def _copy_size(self, file: CommittedFile) -> int | None:
        try:
            return self.path_of(file).stat().st_size
        except FileNotFoundError:
            return None

    def _checked_copy(self, file: CommittedFile) -> bytes | None:
        path = self.path_of(file)
        try:
            data = path.read_bytes()
            os.utime(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(error) from error
        if hashlib.sha256(data).hexdigest() == file.sha256:
            return data
        logger.warning("%s does not have the bytes of its checksum; it is fetched again", path)
        return None

    def _keep(self, file: CommittedFile, data: bytes) -> None:
        if len(data) > self.max_bytes:
            return
        temporary = self.folder / "_tmp" / uuid.uuid4().hex
        try:
            temporary.parent.mkdir(parents=True, exist_ok=True)
            self.path_of(file).parent.mkdir(exist_ok=True)
            try:
                temporary.write_bytes(data)
                with self._lock("room"):
                    self._make_room(len(data))
                    os.replace(temporary, self.path_of(file))
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise self._unusable(error) from error

    def _make_room(self, num_bytes: int) -> None:
        """Remove what was read longest ago until `num_bytes` more fit, and what died processes have left behind."""
        copies = sorted(_files_of(self.folder.glob("??/*.parquet")), key=lambda copy: copy.used_at)
        total = sum(copy.num_bytes for copy in copies) + num_bytes
        for copy in copies:
            if total <= self.max_bytes:
                break
            copy.path.unlink(missing_ok=True)
            total -= copy.num_bytes
        for left in _files_of((self.folder / "_tmp").glob("*")):
            if time.time() - left.used_at > _SECONDS_A_WRITE_MAY_TAKE:
                left.path.unlink(missing_ok=True)

    def _lock(self, name: str) -> FileLock:
        folder = self.folder / "_locks"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from error
        return FileLock(folder / f"{name}.lock")

    def _unusable(self, error: OSError) -> StoreAccessError:
        return StoreAccessError(
            f"cache folder {self.folder} cannot be used: {error.strerror or error} at {error.filename}; "
            "choose another cache_dir, or make room"
        )


@dataclass(frozen=True, slots=True)
class _Copy:
    path: Path
    num_bytes: int
    used_at: float


def _files_of(paths: Iterator[Path]) -> Iterator[_Copy]:
    """Yield the files that are still there; other processes remove some at the same time."""
    for path in paths:
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        yield _Copy(path, status.st_size, status.st_mtime)
