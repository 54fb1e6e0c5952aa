"""Writing a page to where it was asked for: whole, or not at all."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from rollmill.errors import InputError, StoreAccessError
from rollmill.storage.objects import open_objects


def check_address(address: str, option: str = "--out") -> None:
    """Raise InputError, which names the option, before any work is done, for an address that cannot be a page's."""
    if address.endswith("/") or not address or (_is_local(address) and _path(address).is_dir()):
        raise InputError(
            f"{option} must name a file, as in report.html or s3://bucket/reports/1.html, got {address or 'nothing'}"
        )
    open_objects(address)


def write_page(address: str, page: bytes) -> str:
    """Write the page in place of what is at a local path or an s3:// address, and return the full address.

    Whoever reads meanwhile sees the old page or the new one. Raises StoreAccessError.
    """
    if not _is_local(address):
        folder, _, name = address.rpartition("/")
        objects = open_objects(folder)
        objects.put(name, page)
        return objects.where(name)
    path = _path(address)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(page)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StoreAccessError(f"the page cannot be written to {path}: {error.strerror or error}") from error
    return str(path)


def _is_local(address: str) -> bool:
    return "://" not in address or address.startswith("file://")


def _path(address: str) -> Path:
    return Path(address.removeprefix("file://")).expanduser().absolute()
