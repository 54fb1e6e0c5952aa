"""`rollmill show --failed`: the answers that could not be scored, and why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rollmill.cli.table import print_table

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS = ["prompt_id", "sample_index", "reward_error", "response_text"]
_WIDEST = 60


def show_failed(
    rows: pa.Table, summary: Mapping[str, Any], reasons: Mapping[str, int], max_prompts: int, as_json: bool
) -> None:
    """Print how many answers have no reward for which reason, and the answers to up to `max_prompts` prompts.

    As JSON, print all of them.
    """
    from rollmill.tasks.row_filter import RowFilter
    from rollmill.tasks.scoring import FAILED_ROWS

    failed = rows.select(_COLUMNS).filter(RowFilter(FAILED_ROWS).chosen(rows)).to_pylist()
    if as_json:
        print(json.dumps({**summary, "reasons": reasons, "failed_answers": failed}, ensure_ascii=False))
        return
    if not failed:
        print(f"every answer of version {summary['version']} that could be scored has a reward")
        return
    print("\n".join(f"{times} × {reason}" for reason, times in reasons.items()) + "\n")
    prompts = list(dict.fromkeys(row["prompt_id"] for row in failed))
    shown = [row for row in failed if row["prompt_id"] in prompts[:max_prompts]]
    print_table([_row(row) for row in shown])
    if len(shown) < len(failed):
        print(f"and {len(failed) - len(shown)} more; --groups {len(prompts)} shows all")
    print("\nrollmill rescore STORE --failed scores only these again")


def _row(row: Mapping[str, Any]) -> dict[str, object]:
    return {
        "prompt": row["prompt_id"][:24],
        "sample": row["sample_index"],
        "answer": _short(row["response_text"]),
        "reason": row["reward_error"],
    }


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _WIDEST else f"{line[: _WIDEST - 1]}…"
