"""The version of the layout that a store has, and the keys of its objects."""

from __future__ import annotations

import json

from rollmill.errors import CorruptDataError, ObjectExistsError, ObjectMissingError, StoreAccessError
from rollmill.storage.objects import Objects
from rollmill.storage.schema import FORMAT_VERSION

FORMAT_KEY = "_format.json"
HEAD_KEY = "HEAD"
PINS_FOLDER = "pins"


def plan_key(run_id: str) -> str:
    return f"runs/{run_id}/plan.json"


def marker_key(run_id: str, stage: str, index: int, generation: int) -> str:
    """Return the key of a shard's commit; a generation above 0 stands for a file that was lost after its commit."""
    return f"runs/{run_id}/{stage}/{index:05d}" + (f"-{generation}.json" if generation else ".json")


def data_key(run_id: str, stage: str, index: int, attempt: str) -> str:
    return f"data/{run_id}/{stage}/{index:05d}-{attempt}.parquet"


def intent_key(run_id: str, operation_id: str) -> str:
    return f"runs/{run_id}/publish/{operation_id}.json"


def log_key(number: int) -> str:
    return f"log/{number:012d}.json"


def pin_key(consumer: str) -> str:
    return f"{PINS_FOLDER}/{consumer}.json"


def claim_format(objects: Objects) -> None:
    """Mark an empty store with this format. Raises StoreAccessError when a newer rollmill has marked it."""
    try:
        objects.create(FORMAT_KEY, json.dumps({"format_version": FORMAT_VERSION}).encode())
    except ObjectExistsError:
        check_format(objects)


def check_format(objects: Objects) -> bool:
    """Return whether the store is marked at all. Raises StoreAccessError for a format that this code cannot read."""
    try:
        text = objects.get(FORMAT_KEY)
    except ObjectMissingError:
        return False
    try:
        found = json.loads(text)["format_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(f"{objects.where(FORMAT_KEY)} does not name a format version: {error!r}") from error
    if found != FORMAT_VERSION:
        raise StoreAccessError(
            f"store {objects.url} has format {found}, this rollmill reads format {FORMAT_VERSION}; upgrade rollmill"
        )
    return True
