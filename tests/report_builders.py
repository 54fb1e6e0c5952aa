"""Published stores for tests of the report, and the page's parts as a browser without scripts sees them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from typing import Any

from store_builders import FILE_METADATA, row_of, table_of

from rollmill.storage.objects import Objects
from rollmill.storage.plan import Plan, ShardRange
from rollmill.storage.publish import publish_run
from rollmill.storage.runs import RunStore
from rollmill.storage.schema import RESPONSE_SCHEMA
from rollmill.storage.store import RolloutStore
from rollmill.storage.version import DatasetVersion

Group = Sequence[Mapping[str, Any]]

FAILED: Mapping[str, Any] = {"reward": None, "reward_status": "failed", "reward_error": "judge: timed out"}
ERROR: Mapping[str, Any] = {
    "reward": None, "reward_status": "skipped", "finish_reason": "error", "error": "the prompt is too long",
    "response_text": "", "response_token_ids": [], "logprobs": [],
}  # fmt: skip


def rewarded(reward: float | None) -> Mapping[str, Any]:
    """Return the changes of a row with this reward; None stands for one that could not be computed."""
    return FAILED if reward is None else {"reward": reward}


def publish(
    objects: Objects, groups: Sequence[Group], run_id: str = "run", policy_version: int = 1,
    prompts_per_shard: int = 4, stats: Sequence[Mapping[str, Any]] = (), metadata: Mapping[str, Any] | None = None,
) -> DatasetVersion:  # fmt: skip
    """Publish a run whose rows are sound rows with these changes, and return its version.

    `stats` are those of the shards' generation; `metadata` is what the files say beside their logprob_mode, as JSON.
    """
    starts = range(0, len(groups), prompts_per_shard)
    shards = tuple(
        ShardRange(index, start, min(start + prompts_per_shard, len(groups))) for index, start in enumerate(starts)
    )
    plan = Plan(run_id, {"policy": {"model": "tiny", "version": policy_version}}, shards, len(groups[0]))
    runs = RunStore(objects, run_id)
    runs.open_plan(plan)
    said = {**FILE_METADATA, **{name: json.dumps(value) for name, value in (metadata or {}).items()}}
    for shard in shards:
        rows = [
            row_of(prompt, sample, run_id, **{"policy_version": policy_version, **changes})
            for prompt in range(shard.start, shard.stop)
            for sample, changes in enumerate(groups[prompt])
        ]
        for stage, shard_stats in (("generate", dict(stats[shard.index]) if stats else {}), ("score", {})):
            runs.write_shard(
                stage, shard.index, table_of(rows), schema=RESPONSE_SCHEMA, file_metadata=said, stats=shard_stats
            )
    number = publish_run(objects, plan, "score", policy_version=policy_version).number
    return RolloutStore(objects.url).version(number)


class Page(HTMLParser):
    """A page's elements, its text outside of scripts, and the JSON that its scripts hold by id."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[tuple[str | None, str]] = []
        self._open: str | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = tag
        self.text += " "
        if tag == "script":
            self.scripts.append((dict(attrs).get("id"), ""))

    def handle_data(self, data: str) -> None:
        if self._open == "script":
            identifier, before = self.scripts[-1]
            self.scripts[-1] = (identifier, before + data)
        elif self._open != "style":
            self.text += data

    def handle_endtag(self, tag: str) -> None:
        self._open = None

    def data(self, identifier: str) -> Any:
        """Return the JSON of the script with this id."""
        return json.loads(dict(self.scripts)[identifier])

    @property
    def words(self) -> str:
        """The text with single spaces."""
        return " ".join(self.text.split())
