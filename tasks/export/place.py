"""Putting a finished training set where readers look for it: data under names of its own, then manifest, then card.

`datasets.load_dataset` takes what the card's `data_files` name, and without a card whatever Parquet it finds. So a card
that names nothing is there before the first file, and the one that names the files takes its place with a single put.
The first card is created only if there is none, and says whose it is: so of two exports to one new place one goes on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rollmill.errors import CorruptDataError, JobError, ObjectExistsError, ObjectMissingError
from rollmill.storage.layout import FORMAT_KEY
from rollmill.storage.objects import Objects
from rollmill.tasks.export.card import card_of
from rollmill.tasks.export.manifest import MANIFEST_KEY, Manifest
from rollmill.tasks.export.spool import SpooledFile

CARD_KEY = "README.md"
_UNFINISHED_CARD = """---
configs:
- config_name: default
  data_files: unfinished/*.parquet
---
Training set {} is being written, or its writer was stopped. The same `rollmill export` again finishes it.
"""
_UNFINISHED = re.compile(re.escape(_UNFINISHED_CARD).replace(r"\{\}", "(?P<input_id>[0-9a-f]+)"))


def unfinished_card(input_id: str) -> bytes:
    """Return the card of a set that is not whole yet, which names no files."""
    return _UNFINISHED_CARD.format(input_id).encode()


def data_path(export_id: str, name: str) -> str:
    """Return where a file of a set lies: no two sets share a file."""
    return f"data/{export_id}/{name}"


def existing(place: Objects) -> Manifest | None:
    """Return the manifest of the set that is there, or None. Raises CorruptDataError for one that cannot be read."""
    text = _get(place, MANIFEST_KEY)
    return None if text is None else Manifest.from_bytes(text, place.where(MANIFEST_KEY))


def finished(place: Objects, input_id: str) -> Manifest | None:
    """Return the manifest of a set that was made of this very input and is there with all of its files, or None."""
    there = existing(place)
    if there is None or there.input_id != input_id or _get(place, CARD_KEY) != card_of(there):
        return None
    return there if all(place.size(file.path) == file.bytes for file in there.files) else None


def refuse_others(place: Objects, input_id: str, overwrite: bool) -> None:
    """Raise JobError when the place is a store, or holds another set or a card of somebody else's.

    The last two may be replaced with `overwrite`.
    """
    if holds_store(place):
        raise JobError(f"{place.url} is a rollout store; give another --out for the training set")
    if overwrite:
        return
    there, begun = existing(place), _begun(place)
    if begun not in (None, input_id):
        raise JobError(
            f"another training set is being written to {place.url}, or its writer was stopped; the same export as "
            "before finishes it, --overwrite puts this one in its place, or give another --out"
        )
    if there is not None and there.input_id != input_id:
        raise JobError(
            f"{place.url} holds another training set ({there.records} {there.format} records of version "
            f"{', '.join(str(source.version) for source in there.sources)}); give --overwrite to replace it, or "
            "another --out"
        )
    if there is None and holds_other_card(place):
        raise JobError(f"{place.url} holds a README.md of something else; give --overwrite, or another --out")


def holds_store(place: Objects) -> bool:
    """Say whether the place is a rollout store."""
    return place.size(FORMAT_KEY) is not None


def holds_other_card(place: Objects) -> bool:
    """Say whether a card is there that no export has begun with; a place with a set has its own card."""
    return _get(place, CARD_KEY) is not None and _begun(place) is None


def put_in_place(place: Objects, manifest: Manifest, files: Sequence[SpooledFile], *, overwrite: bool) -> None:
    """Store the files, then the manifest, then the card; remove the files of a set that this one replaces.

    Killed at any moment, readers see either what was there before or all of the new set, and doing it again ends the
    same. Raises JobError when another export has begun there in the meantime, unless `overwrite`, and CorruptDataError
    when a file is there with other bytes.
    """
    try:
        _claim(place, manifest.input_id, overwrite)
        _put(place, manifest, files)
    finally:
        place.tidy()


def _claim(place: Objects, input_id: str, overwrite: bool) -> None:
    """Begin this set at a place that is free, or may be taken over; the card of a whole set stays until its end."""
    try:
        place.create(CARD_KEY, unfinished_card(input_id))
    except ObjectExistsError:
        refuse_others(place, input_id, overwrite)
        if _begun(place) not in (None, input_id):
            place.put(CARD_KEY, unfinished_card(input_id))


def _begun(place: Objects) -> str | None:
    """Return the input_id of the set that is being written where none was before, or None."""
    match = _UNFINISHED.fullmatch((_get(place, CARD_KEY) or b"").decode(errors="replace"))
    return match["input_id"] if match else None


def _put(place: Objects, manifest: Manifest, files: Sequence[SpooledFile]) -> None:
    replaced = existing(place)
    for file in files:
        path = data_path(manifest.export_id, file.name)
        try:
            place.create(path, file.path.read_bytes())
        except ObjectExistsError as error:
            raise CorruptDataError(
                f"{place.where(path)} holds other bytes than this export makes; remove it and export again"
            ) from error
    place.put(MANIFEST_KEY, manifest.to_bytes())
    place.put(CARD_KEY, card_of(manifest))
    kept = {file.path for file in manifest.files}
    for old in replaced.files if replaced else []:
        if old.path not in kept:
            place.delete(old.path)


def _get(place: Objects, key: str) -> bytes | None:
    try:
        return place.get(key)
    except ObjectMissingError:
        return None
