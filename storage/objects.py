"""Bytes under keys: the few operations that the protocol stands on, the same on local disk, S3 and in memory."""

from __future__ import annotations

import re
import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rollmill.errors import ObjectExistsError, ObjectMissingError, StoreAccessError

PROBE_FOLDER = "_probe"
_URL = re.compile(r"^(?P<protocol>[a-z0-9+.-]+)://(?P<path>.*)$")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """What a listing says of an object; `modified` is in UTC, by the clock of the store."""

    key: str
    bytes: int
    modified: datetime


class Objects(ABC):
    """Objects of one store, under slash-separated keys relative to its `url`.

    An object is there whole or not at all: no reader ever sees a part of one. What is created is visible to every
    process at once. An instance may be shared by threads, pickled, and used after a fork.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    @abstractmethod
    def get(self, key: str) -> bytes:
        """Return the object's bytes. Raises ObjectMissingError when it is not there."""

    @abstractmethod
    def create(self, key: str, data: bytes) -> None:
        """Write an object that must not be there yet: of several that race, one succeeds.

        Raises ObjectExistsError when the key holds other bytes. The same bytes count as our own write whose reply
        was lost, so what must have one winner holds something unique to its writer.
        """

    @abstractmethod
    def put(self, key: str, data: bytes) -> None:
        """Write an object, in place of the one that may be there."""

    @abstractmethod
    def size(self, key: str) -> int | None:
        """Return the object's size in bytes, or None when it is not there."""

    @abstractmethod
    def scan(self, prefix: str) -> list[StoredObject]:
        """Return what is stored under keys that begin with `prefix`, sorted by key. Readers never list."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is no error."""

    def scan_leftovers(self) -> list[StoredObject]:
        """Return what killed writers left of writes that never became objects; `delete` removes it."""
        return self.scan(f"{PROBE_FOLDER}/")

    def tidy(self) -> None:
        """Remove the empty folders that finished writes leave; only a local disk has any."""
        return

    def list(self, prefix: str) -> list[str]:
        """Return the sorted keys that begin with `prefix`."""
        return [stored.key for stored in self.scan(prefix)]

    def impatient(self) -> Objects:
        """Return these objects with faults reported within seconds, for checks that a person waits for."""
        return self

    def patient(self) -> Objects:
        """Return these objects with faults waited out for minutes, for runs, which lose more by ending."""
        return self

    def check_reachable(self) -> None:
        """Raise StoreAccessError, with the reason and what to do, when the store is not even there."""
        self.size(PROBE_FOLDER)

    def check_access(self) -> None:
        """Prove within seconds that this store can be written, read back and honours create-only writes.

        Nothing of the proof stays. Raises StoreAccessError with the reason and what to do.
        """
        quick = self.impatient()
        quick.check_reachable()
        try:
            prove_create_only(quick)
        finally:
            quick.tidy()

    def where(self, key: str) -> str:
        """Return the full address of `key`, for messages."""
        return f"{self.url}/{key}"


def open_objects(url: str, storage_options: dict[str, Any] | None = None) -> Objects:
    """Open the objects under a local folder, `s3://bucket/prefix` or `memory://name`.

    `storage_options` are those of s3fs (key, secret, token, endpoint_url, client_kwargs, config_kwargs, …); what they
    leave out comes from the usual AWS_* environment variables, AWS_ENDPOINT_URL among them. Nothing is opened yet.
    Raises StoreAccessError for an address of another kind.
    """
    match = _URL.match(url)
    protocol = match["protocol"] if match else "file"
    path = match["path"] if match else url
    if protocol in ("s3", "s3a"):
        from rollmill.storage.s3_objects import S3Objects  # s3fs takes a second to import; local stores do not need it

        return S3Objects(f"s3://{path}", storage_options)
    if storage_options:
        raise StoreAccessError(f"store {url}: storage options are only for s3:// stores; leave them out")
    if protocol == "memory":
        from rollmill.storage.memory_objects import MemoryObjects

        return MemoryObjects(url)
    if protocol == "file":
        from rollmill.storage.local_objects import LocalObjects

        return LocalObjects(path)
    raise StoreAccessError(f"store {url}: {protocol}:// is not supported; use a local folder or s3://bucket/prefix")


def prove_create_only(objects: Objects) -> None:
    """Write a probe object, read it back, and see a second create of it refused."""
    key = f"{PROBE_FOLDER}/{uuid.uuid4().hex}"
    objects.create(key, b"first")
    try:
        _expect_refusal(objects, key)
    finally:
        objects.delete(key)


def _expect_refusal(objects: Objects, key: str) -> None:
    if objects.get(key) != b"first":
        raise StoreAccessError(f"store {objects.url} returns other bytes than were written; do not use it")
    try:
        objects.create(key, b"second")
    except ObjectExistsError:
        return
    raise StoreAccessError(
        f"store {objects.url} ignores If-None-Match on PUT, so two workers could overwrite each other; "
        "use a store that honours conditional writes"
    )


def missing(objects: Objects, key: str) -> ObjectMissingError:
    """Return the error for an object that should be there."""
    return ObjectMissingError(f"{objects.where(key)} is missing")


def exists(objects: Objects, key: str) -> ObjectExistsError:
    """Return the error for a create-only object that is there already."""
    return ObjectExistsError(f"{objects.where(key)} is there already")
