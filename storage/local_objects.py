"""Objects as files of a local folder, or of a shared one that supports hard links."""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from rollmill.errors import StoreAccessError
from rollmill.storage.objects import PROBE_FOLDER, Objects, StoredObject, exists, missing

Result = TypeVar("Result")

_TEMPORARY = "_tmp"
_MAX_TRIES = 100
_NO_HARD_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)

_ADVICE = {
    errno.ENOSPC: "; free some space, then run the job again: what is committed stays",
    errno.EDQUOT: "; raise the quota or free some space, then run the job again: what is committed stays",
    errno.EFBIG: "; raise the limit on file sizes (ulimit -f), or make shards smaller",
    errno.EROFS: "; mount it writable or choose another folder",
}


class LocalObjects(Objects):
    """Each object is a file below a folder.

    A file is written under another name in `_tmp`, flushed to the disk, and only then given its own name: by a hard
    link, which fails when the name is taken, or by a rename, which replaces.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser().absolute()
        super().__init__(str(self.folder))

    def get(self, key: str) -> bytes:
        with self._explained(key):
            try:
                return (self.folder / key).read_bytes()
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
                raise missing(self, key) from error

    def create(self, key: str, data: bytes) -> None:
        with self._explained(key), self._temporary(data) as temporary:
            target = self.folder / key
            try:
                _in_its_folder(target, lambda: os.link(temporary, target))
            except FileExistsError as error:
                if target.read_bytes() != data:
                    raise exists(self, key) from error
            except OSError as error:
                if error.errno not in _NO_HARD_LINKS:
                    raise
                raise StoreAccessError(
                    f"store {self.url} is on a file system without hard links ({error.strerror}), which create-only "
                    "writes need; choose another folder"
                ) from error
            _flush_folder(target.parent)

    def put(self, key: str, data: bytes) -> None:
        with self._explained(key), self._temporary(data) as temporary:
            target = self.folder / key
            _in_its_folder(target, lambda: os.replace(temporary, target))
            _flush_folder(target.parent)

    def size(self, key: str) -> int | None:
        with self._explained(key):
            try:
                status = (self.folder / key).stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
            return status.st_size if stat.S_ISREG(status.st_mode) else None

    def scan(self, prefix: str) -> list[StoredObject]:
        return [stored for stored in self._scan(prefix) if not stored.key.startswith(f"{_TEMPORARY}/")]

    def scan_leftovers(self) -> list[StoredObject]:
        return super().scan_leftovers() + self._scan(f"{_TEMPORARY}/")

    def delete(self, key: str) -> None:
        with self._explained(key):
            (self.folder / key).unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove the folders of temporary files and probes, unless there is something in them."""
        for name in (_TEMPORARY, PROBE_FOLDER):
            with self._explained(name):
                try:
                    (self.folder / name).rmdir()
                except OSError as error:
                    if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                        raise

    def check_reachable(self) -> None:
        there = next(folder for folder in (self.folder, *self.folder.parents) if folder.exists())
        if not there.is_dir():
            raise StoreAccessError(f"store {self.url}: {there} is a file; name a folder")
        if not os.access(there, os.W_OK | os.X_OK):
            raise StoreAccessError(
                f"store {self.url} cannot be used: {there} may not be written to; change its permissions or choose "
                "another folder"
            )

    def _scan(self, prefix: str) -> list[StoredObject]:
        with self._explained(prefix):
            found = (
                _stored(Path(parent) / name, self.folder)
                for parent, _, names in os.walk(self.folder / prefix.rpartition("/")[0])
                for name in names
            )
            return sorted((stored for stored in found if stored and stored.key.startswith(prefix)), key=_key)

    @contextmanager
    def _temporary(self, data: bytes) -> Iterator[Path]:
        path = self.folder / _TEMPORARY / uuid.uuid4().hex
        try:
            with _in_its_folder(path, lambda: path.open("xb")) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield path
        finally:
            path.unlink(missing_ok=True)

    @contextmanager
    def _explained(self, key: str) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            raise StoreAccessError(
                f"store {self.url} cannot be used: permission denied on {error.filename or key}; "
                "change its permissions or choose another folder"
            ) from error
        except (FileExistsError, NotADirectoryError) as error:
            raise StoreAccessError(f"store {self.url}: {error.filename or key} is a file, not a folder") from error
        except OSError as error:
            advice = _ADVICE.get(error.errno or 0, "")
            raise StoreAccessError(
                f"store {self.url}: {error.strerror or error} at {error.filename or key}{advice}"
            ) from error


def _in_its_folder(path: Path, action: Callable[[], Result]) -> Result:
    """Act in the path's folder, which is made; again when another process has tidied it away in between."""
    for _ in range(_MAX_TRIES - 1):
        try:
            _make_folder(path.parent)
            return action()
        except FileNotFoundError:
            continue
    _make_folder(path.parent)
    return action()


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:  # also for a folder that was there a moment ago
        if folder.exists() and not folder.is_dir():
            raise


def _stored(path: Path, folder: Path) -> StoredObject | None:
    """Return what is stored at `path`, or None when it was removed while the folder was read."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    modified = datetime.fromtimestamp(status.st_mtime, UTC)
    return StoredObject(path.relative_to(folder).as_posix(), status.st_size, modified)


def _key(stored: StoredObject) -> str:
    return stored.key


def _flush_folder(folder: Path) -> None:
    """Make a new name in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
