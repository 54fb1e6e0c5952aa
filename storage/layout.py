"""The version of the layout that a store has, and the keys of its objects."""

from __future__ import annotations

import json
import re

from rollmill.errors import CorruptDataError, ObjectExistsError, ObjectMissingError, StoreAccessError
from rollmill.storage.objects import Objects
from rollmill.storage.schema import FORMAT_VERSION

FORMAT_KEY = "_format.json"
HEAD_KEY = "HEAD"
PINS_FOLDER = "pins"

_MARKER = re.compile(r"runs/(?P<run_id>[^/]+)/(?P<stage>[^/]+)/(?P<index>\d{5,})(-(?P<generation>\d+))?\.json")
_LOG_ENTRY = re.compile(r"log/(?P<number>\d{12})\.json")
_DATA = re.compile(r"data/(?P<run_id>[^/]+)/(?P<stage>[^/]+)/(?P<index>\d{5,})-[0-9a-f]+\.parquet")


def plan_key(run_id: str) -> str:
    return f"runs/{run_id}/plan.json"


def marker_key(run_id: str, stage: str, index: int, generation: int) -> str:
    """Return the key of a shard's commit; a generation above 0 stands for a file that was lost after its commit."""
    return f"runs/{run_id}/{stage}/{index:05d}" + (f"-{generation}.json" if generation else ".json")


def retired_key(run_id: str) -> str:
    return f"runs/{run_id}/retired.json"


def run_prefix(run_id: str) -> str:
    return f"runs/{run_id}/"


def markers_prefix(run_id: str, stage: str) -> str:
    return f"runs/{run_id}/{stage}/"


def parse_marker_key(key: str) -> tuple[str, str, int, int] | None:
    """Return (run id, stage, shard, generation) of a marker's key, or None for another object's key."""
    match = _MARKER.fullmatch(key)
    return match and (match["run_id"], match["stage"], int(match["index"]), int(match["generation"] or 0))


def data_prefix(run_id: str, stage: str) -> str:
    return f"data/{run_id}/{stage}/"


def data_prefix_of_run(run_id: str) -> str:
    return f"data/{run_id}/"


def parse_data_key(key: str) -> tuple[str, str, int] | None:
    """Return (run id, stage, shard) of a data file's key, or None for another object's key."""
    match = _DATA.fullmatch(key)
    return match and (match["run_id"], match["stage"], int(match["index"]))


def data_key(run_id: str, stage: str, index: int, attempt: str) -> str:
    return f"data/{run_id}/{stage}/{index:05d}-{attempt}.parquet"


def intent_key(run_id: str, operation_id: str) -> str:
    return f"runs/{run_id}/publish/{operation_id}.json"


def log_key(number: int) -> str:
    return f"log/{number:012d}.json"


def pin_key(consumer: str) -> str:
    return f"{PINS_FOLDER}/{consumer}.json"


def parse_log_key(key: str) -> int | None:
    """Return the number of a log entry's key, or None for another object's key."""
    match = _LOG_ENTRY.fullmatch(key)
    return int(match["number"]) if match else None


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
