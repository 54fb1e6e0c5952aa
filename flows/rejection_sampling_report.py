"""What came of a rejection-sampling job, for people and programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rollmill.flows.report import RunReport
from rollmill.tasks.export.exporting import Exported
from rollmill.tasks.selection.reasons import MEANINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectionSamplingReport:
    """The rollouts of a run, and the training set that is in place."""

    rollouts: RunReport
    training_set: Exported

    def to_json(self) -> dict[str, Any]:
        """Return the report of the rollouts as JSON values, with the set's manifest under `training_set`."""
        exported = self.training_set
        summary = {"url": exported.url, "is_new": exported.is_new, **exported.manifest.to_json()}
        return {**self.rollouts.to_json(), "training_set": summary}

    def lines(self) -> list[tuple[str, str]]:
        """Return (name, value) pairs of what people look at first: what is in the set, from which runs, and why the
        other answers are not."""
        manifest = self.training_set.manifest
        return [
            ("training set", f"{manifest.records} {manifest.format} records in {self.training_set.url}"),
            *((f"{name} split", f"{split.records} records, {split.prompts} prompts, {_means(split.mean)}")
              for name, split in manifest.splits.items()),
            *((f"run {source.run_id}", f"{source.kept} of {source.rows} answers kept, in {source.records} records")
              for source in manifest.sources),
            ("kept", f"{manifest.kept} of {manifest.rows} answers"),
            *(("left out", f"{number} {reason}: {MEANINGS[reason]}") for reason, number in manifest.dropped.items()),
        ]  # fmt: skip

    def to_text(self) -> str:
        """Return the report for a terminal."""
        width = max(len(name) for name, _ in self.lines())
        figures = "\n".join(f"{name:<{width}}  {value}" for name, value in self.lines())
        steps = "\n".join(f"  {line}" for line in self._next_steps())
        return f"{self.rollouts.to_text()}\n\n{figures}\n\nnext\n{steps}"

    def to_markdown(self) -> str:
        """Return what concerns the set for the Prefect UI."""
        rows = "\n".join(f"| {name} | {value} |" for name, value in self.lines())
        steps = "\n".join(self._next_steps())
        return f"# Training set of {self.rollouts.run_id}\n\n| | |\n|---|---|\n{rows}\n\n```\n{steps}\n```\n"

    def _next_steps(self) -> Iterator[str]:
        url = self.training_set.url
        yield f"{url}/README.md      the set's card"
        if "://" not in url:
            yield f"python -c 'from datasets import load_dataset; print(load_dataset(\"{url}\"))'"


def _means(means: Any) -> str:
    return ", ".join(f"mean {name} {'-' if value is None else f'{value:.4f}'}" for name, value in means.items())
