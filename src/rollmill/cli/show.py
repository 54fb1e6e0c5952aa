"""`rollmill show`: a dataset version as a table and samples."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import pyarrow as pa

_COLUMNS = ["prompt_id", "sample_index", "prompt_text", "response_text", "response_token_ids", "finish_reason", "error",
            "reward", "reward_status", "reward_error"]  # fmt: skip


def show(
    store: Annotated[str, typer.Argument(help="A local folder or s3://bucket/prefix.")],
    version: Annotated[int | None, typer.Option(help="The dataset version; the latest when not given.")] = None,
    prompt: Annotated[str | None, typer.Option(metavar="PROMPT_ID", help="Show every answer to this prompt.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Show the answers that have no reward, and why.")] = False,
    groups: Annotated[int, typer.Option(min=1, help="How many prompts the table shows.")] = 10,
    price: Annotated[
        float | None,
        typer.Option(min=0, metavar="PER_HOUR", help="What a device cost an hour, if not what the run's job says."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures and shown rows as JSON.")] = False,
) -> None:
    """Show a dataset version: its figures, a table of prompts, and sample answers.

    Example: rollmill show ./rollouts --groups 20
    """
    from rollmill.cli.show_failed import show_failed
    from rollmill.errors import InputError
    from rollmill.storage.store import RolloutStore
    from rollmill.tasks.figures import reward_stats, total
    from rollmill.tasks.usage import usage_of_version

    stored = RolloutStore(store)
    chosen = stored.latest() if version is None else stored.version(version)
    rows = chosen.read(_COLUMNS)
    figures = total([reward_stats(rows)])
    shown = _of_prompt(rows, prompt) if prompt is not None else _first_groups(rows, groups)
    if not shown:
        raise InputError(f"version {chosen.number} of {store} has no prompt {prompt}")
    summary = {
        "version": chosen.number,
        "run": chosen.run_id,
        "policy_version": chosen.policy_version,
        "groups": figures.groups,
        "rows": figures.rows,
        "mean_reward": figures.mean_reward,
        "failed": figures.failed,
        "unscored": figures.unscored,
        "truncated": figures.truncated,
        "response_tokens": figures.response_tokens,
        **usage_of_version(chosen, price).to_json(),
    }
    if failed:
        show_failed(rows, summary, figures.reasons, groups, as_json)
        return
    if as_json:
        print(
            json.dumps(
                {**summary, "reasons": figures.reasons, "samples": [row for group in shown for row in group]},
                ensure_ascii=False,
            )
        )
        return
    print("\n".join(f"{name.replace('_', ' '):<21} {_number(value)}" for name, value in summary.items()) + "\n")
    if prompt is None:
        _print_groups(shown)
        shown = [_best_and_worst(shown[0])]
    for row in shown[0]:
        _print_answer(row)


def _first_groups(rows: pa.Table, count: int) -> list[list[dict[str, Any]]]:
    prompt_ids = rows["prompt_id"].unique().slice(0, count).to_pylist()
    return [group for prompt_id in prompt_ids for group in _of_prompt(rows, prompt_id)]


def _of_prompt(rows: pa.Table, prompt_id: str) -> list[list[dict[str, Any]]]:
    """Return the rows of a prompt as one group, or nothing when it is not there."""
    import pyarrow.compute as pc

    group = rows.filter(pc.equal(rows["prompt_id"], prompt_id)).to_pylist()
    return [[_row(row) for row in group]] if group else []


def _row(row: dict[str, Any]) -> dict[str, Any]:
    num_tokens = len(row.pop("response_token_ids"))
    return {**row, "num_tokens": num_tokens}


def _print_groups(groups: list[list[dict[str, Any]]]) -> None:
    from rollmill.cli.table import print_table

    print_table([_group_row(group) for group in groups])
    print()


def _group_row(group: list[dict[str, Any]]) -> dict[str, object]:
    rewards = [row["reward"] for row in group if row["reward"] is not None]
    return {
        "prompt": group[0]["prompt_id"][:24],
        "answers": len(group),
        "mean reward": sum(rewards) / len(rewards) if rewards else None,
        "best": max(rewards, default=None),
        "tokens": sum(row["num_tokens"] for row in group),
        "text": " ".join(group[0]["prompt_text"].split())[-60:],
    }


def _best_and_worst(group: list[dict[str, Any]]) -> list[dict[str, Any]]:
    ranked = sorted(group, key=lambda row: float("-inf") if row["reward"] is None else row["reward"], reverse=True)
    return ranked[:1] if len(ranked) == 1 else [ranked[0], ranked[-1]]


def _print_answer(row: dict[str, Any]) -> None:
    reward = f"reward {row['reward']:g}" if row["reward"] is not None else f"reward {row['reward_status']}"
    print(f"prompt {row['prompt_id']}, sample {row['sample_index']}: {reward}, {row['finish_reason']}")
    text = row["error"] or f"{row['prompt_text'].strip()}\n{row['response_text'].strip()}"
    print("\n".join(f"  {line}" for line in text.splitlines()) + "\n")


def _number(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
