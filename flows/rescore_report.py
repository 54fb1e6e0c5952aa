"""What came of a rescoring, for people and programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rollmill.tasks.figures import Figures
from rollmill.tasks.rewards.reasons import commonest


@dataclass(frozen=True, slots=True, kw_only=True)
class RescoreReport:
    """The dataset version that a rescoring made, beside the one whose answers it has.

    `before` is None where that cannot be told without reading all of the old version.
    """

    run_id: str
    store: str
    version: int
    from_version: int
    policy_version: int
    num_shards: int
    figures: Figures
    before: Figures | None

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        values = asdict(self)
        for name in ("figures", "before"):
            if values[name] is not None:
                values[name].pop("passes")
        return values

    def lines(self) -> list[tuple[str, str]]:
        """Return (name, value) pairs of what people look at first."""
        figures = self.figures
        return [
            ("rows", f"{figures.rows} in {figures.groups} groups, {self.num_shards} shards"),
            ("mean reward", f"{_mean(figures)}{f', was {_mean(self.before)}' if self.before else ''}"),
            ("not scored", f"{figures.unscored}{f', was {self.before.unscored}' if self.before else ''}"),
            *(("not scored", reason) for reason in commonest(figures.reasons)),
            ("dataset version", f"{self.version} of {self.store}, with the answers of version {self.from_version}"),
        ]

    def to_text(self) -> str:
        """Return the report for a terminal."""
        width = max(len(name) for name, _ in self.lines())
        figures = "\n".join(f"{name:<{width}}  {value}" for name, value in self.lines())
        return f"{figures}\n\nnext\n  rollmill show {self.store}      the rows, as a table and samples"

    def to_markdown(self) -> str:
        """Return the report for the Prefect UI."""
        rows = "\n".join(f"| {name} | {value} |" for name, value in self.lines())
        return f"# {self.run_id}, scored again\n\n| | |\n|---|---|\n{rows}\n"


def _mean(figures: Figures) -> str:
    return "-" if figures.mean_reward is None else f"{figures.mean_reward:.3f}"
