"""What a training set says of itself, for programs: `manifest.json`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rollmill.errors import CorruptDataError
from rollmill.storage.plan import canonical_json

MANIFEST_KEY = "manifest.json"
MANIFEST_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """One run's part: how many rows were read and kept and how many records they became, and where they come from.

    `complete` is whether the version holds the whole run; `facts` are what its files say: policy, prompts, sampling,
    rewards.
    """

    version: int
    run_id: str
    stage: str
    policy_version: int
    operation_id: str
    created_at: str
    complete: bool
    rows: int
    kept: int
    records: int
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedFile:
    """One Parquet file of a split, by its path within the set."""

    path: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSummary:
    """One split; `mean` is the mean of each column of rewards."""

    records: int
    prompts: int
    mean: Mapping[str, float | None]
    files: tuple[PlacedFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A whole training set.

    input_id     a hash of what was read and asked for: the same for the same input
    export_id    a hash of the input and of every file
    rows         rows that were looked at: `kept` and all of `dropped` together
    mean_reward  of all scored answers that were looked at
    histogram    rewards of these answers, and of each column of rewards of the records
    """

    input_id: str
    export_id: str
    format: str
    store: str
    config: Mapping[str, Any]
    sources: tuple[Contribution, ...]
    rows: int
    kept: int
    records: int
    dropped: Mapping[str, int]
    mean_reward: float | None
    histogram: Mapping[str, Any]
    splits: Mapping[str, SplitSummary]
    manifest_version: int = MANIFEST_VERSION

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as JSON values."""
        return asdict(self)

    def to_bytes(self) -> bytes:
        return json.dumps(self.to_json(), indent=1, ensure_ascii=False).encode() + b"\n"

    @property
    def files(self) -> list[PlacedFile]:
        return [file for split in self.splits.values() for file in split.files]

    @classmethod
    def from_bytes(cls, text: bytes, where: str) -> Manifest:
        """Read a manifest back. Raises CorruptDataError, naming `where`, when it is none."""
        try:
            stored = json.loads(text)
            splits = {
                name: SplitSummary(**{**split, "files": tuple(PlacedFile(**file) for file in split["files"])})
                for name, split in stored["splits"].items()
            }
            sources = tuple(Contribution(**source) for source in stored["sources"])
            return cls(**{**stored, "splits": splits, "sources": sources})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptDataError(f"{where} is not the manifest of a training set: {error!r}") from error


def input_id_of(store: str, operation_ids: Sequence[str], config: Mapping[str, Any]) -> str:
    """Return the hash that the same input always gets."""
    return _digest([MANIFEST_VERSION, store, list(operation_ids), config])


def export_id_of(input_id: str, sha256s: Sequence[str]) -> str:
    """Return the hash that names a set of exactly these files."""
    return _digest([input_id, list(sha256s)])


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:20]
