"""Reading the answers of dataset versions, a shard at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rollmill.errors import JobError
from rollmill.storage.ledger import PROMPTS_STAGE
from rollmill.storage.log import DatasetFile, LogEntry
from rollmill.storage.objects import Objects
from rollmill.storage.parquet import check_bytes, decode
from rollmill.storage.runs import RunStore
from rollmill.storage.store import RolloutStore
from rollmill.tasks.prompts.prompt import prompts_from_table
from rollmill.tasks.selection.conversations import Conversation, Conversations, conversation_of

FACTS = ("policy", "prompts", "sampling", "rewards", "other_rewards", "rescored_from", "rescored_where")
"""What a file's own metadata tells of where its answers come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The rows of one shard, whole groups, with the prompts as conversations and what the file says of itself."""

    table: pa.Table
    conversations: Conversations
    facts: Mapping[str, Any]


def choose_entries(store: RolloutStore, versions: Sequence[int], window: int) -> list[LogEntry]:
    """Return the log entries to read, newest first, each run once.

    They are the `window` newest runs of the one version given, by default the latest, or the newest run of each of
    several. Raises JobError for several versions with a window, ObjectMissingError for a version that is not there.
    """
    if len(versions) > 1 and window > 1:
        raise JobError("give several versions or a window, not both")
    if len(versions) < 2:
        version = store.version(versions[0]) if versions else store.latest()
        return version.runs(window)
    newest: dict[str, LogEntry] = {}
    for number in sorted(set(versions), reverse=True):
        entry = store.version(number).entry
        newest.setdefault(entry.run_id, entry)
    return list(newest.values())


def read_answers(
    objects: Objects, entry: LogEntry, columns: Sequence[str] | None, *, conversations: bool
) -> Iterator[Answers]:
    """Yield the shards of a run, in their order, one in memory at a time.

    Without `conversations`, which cost a read of the shard's prompts, there are none. Raises ObjectMissingError or
    CorruptDataError that name the file.
    """
    for file in entry.files:
        table = _rows(objects, file, columns)
        facts = _facts(table.schema.metadata or {})
        told = _conversations(objects, file, table, facts) if conversations else {}
        yield Answers(table=table.replace_schema_metadata(None), conversations=told, facts=facts)


def _rows(objects: Objects, file: DatasetFile, columns: Sequence[str] | None) -> pa.Table:
    return decode(check_bytes(objects, file), objects.where(file.file), file.rows, columns)


def _facts(metadata: Mapping[bytes, bytes]) -> dict[str, Any]:
    said = {name: metadata[name.encode()].decode() for name in FACTS if name.encode() in metadata}
    return {name: _value(text) for name, text in said.items()}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _conversations(
    objects: Objects, file: DatasetFile, table: pa.Table, facts: Mapping[str, Any]
) -> dict[str, Conversation | None]:
    """Return the prompts of a shard as they were before they were rendered; nothing where the run did not keep them."""
    runs = RunStore(objects, file.run_id)
    if runs.marker(PROMPTS_STAGE, file.shard) is None:
        return {}
    prompts = facts.get("prompts")
    system_prompt = prompts.get("system_prompt") if isinstance(prompts, dict) else None
    texts = dict(zip(table["prompt_id"].to_pylist(), table["prompt_text"].to_pylist(), strict=True))
    return {
        prompt.prompt_id: conversation_of(prompt.content, texts[prompt.prompt_id], system_prompt)
        for prompt in prompts_from_table(runs.read_shard(PROMPTS_STAGE, file.shard))
        if prompt.prompt_id in texts
    }
