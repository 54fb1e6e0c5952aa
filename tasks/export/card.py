"""What a training set says of itself, for people: `README.md`, in the form of Hugging Face's dataset cards."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import yaml

from rollmill.tasks.export.manifest import Contribution, Manifest
from rollmill.tasks.export.tally import ANSWERS
from rollmill.tasks.selection.reasons import MEANINGS

_TITLES = {
    "sft": "Chosen answers for supervised fine-tuning",
    "dpo": "Preference pairs",
    "kto": "Labelled answers for KTO",
    "table": "Chosen answers, with everything that is known of them",
}
_USES = {
    "sft": "`messages` holds prompt and answer: what TRL's `SFTTrainer` reads.",
    "dpo": "`prompt`, `chosen` and `rejected` are lists of messages: what TRL's `DPOTrainer` reads.",
    "kto": "`prompt` and `completion` are lists of messages, `label` says whether the completion is desirable: what "
    "TRL's `KTOTrainer` reads.",
    "table": "One row per answer, in the columns in which rollmill stores rollouts.",
}
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
_SETTINGS_OF_ONE = {
    "dpo": ("pairs", "min_margin", "max_length_ratio", "seed"),
    "kto": ("desirable", "undesirable"),
}
_BAR = 32


def card_of(manifest: Manifest) -> bytes:
    """Return the card: where the data lies, what it is, where it comes from, what was left out and why."""
    parts = [
        _front_matter(manifest),
        f"# {_TITLES[manifest.format]}",
        _summary(manifest),
        "## Where it comes from",
        *(_source(source) for source in manifest.sources),
        "## What was chosen",
        _settings(manifest.config),
        "## What is in it",
        _splits(manifest),
        "## What was left out",
        _dropped(manifest),
        "## Rewards",
        _histogram(manifest),
    ]
    return "\n\n".join(parts).encode() + b"\n"


def _front_matter(manifest: Manifest) -> str:
    files = [
        {"split": split, "path": f"{summary.files[0].path.rpartition('/')[0]}/{split}-*.parquet"}
        for split, summary in manifest.splits.items()
    ]
    said = {
        "configs": [{"config_name": "default", "data_files": files}],
        "task_categories": ["text-generation"],
        "size_categories": [next((name for limit, name in _SIZES if manifest.records < limit), "n>1M")],
        "tags": ["rollmill", manifest.format],
    }
    return f"---\n{yaml.safe_dump(said, sort_keys=False, allow_unicode=True)}---"


def _summary(manifest: Manifest) -> str:
    policies = dict.fromkeys(_policy(source) for source in manifest.sources)
    return (
        f"{manifest.records} records, made by rollmill of {manifest.kept} of {manifest.rows} answers that "
        f"{_joined(policies)} gave. {_USES[manifest.format]}\n\n"
        '```python\nfrom datasets import load_dataset\n\ntrain = load_dataset("PATH", split="train")\n```'
    )


def _source(source: Contribution) -> str:
    part = "" if source.complete else ", a part of the run"
    rows = {
        "dataset version": f"{source.version}, published {source.created_at}{part}",
        "policy": _policy(source),
        "prompts": _said(source.facts.get("prompts"), ("source", "limit", "options", "system_prompt", "template")),
        "sampling": _said(source.facts.get("sampling"), None),
        "rewards": _said(source.facts.get("rewards"), None),
        "rescored from version": source.facts.get("rescored_from"),
        "answers": f"{source.rows} looked at, {source.kept} kept, in {source.records} records",
    }
    lines = [(name, value) for name, value in rows.items() if value is not None]
    return f"### Run {source.run_id}\n\n" + _table(("", ""), lines)


def _policy(source: Contribution) -> str:
    policy = source.facts.get("policy")
    named = policy.get("model") if isinstance(policy, dict) else None
    return f"{named or 'policy'}, version {source.policy_version}"


def _said(value: Any, fields: Sequence[str] | None) -> str | None:
    """Return a part of a run's identity as JSON, or some of its fields, without those that are not set."""
    if not isinstance(value, dict):
        return None if value is None else f"`{json.dumps(value, ensure_ascii=False)}`"
    chosen = {name: value[name] for name in (fields or value) if value.get(name) not in (None, {}, [])}
    return f"`{json.dumps(chosen, ensure_ascii=False)}`"


def _settings(config: Any) -> str:
    own = {"format": config["format"], "test_fraction": config["test_fraction"], "split_seed": config["split_seed"]}
    others = {name for other, names in _SETTINGS_OF_ONE.items() if other != config["format"] for name in names}
    settings = {name: value for name, value in {**own, **config["selection"]}.items() if name not in others}
    lines = [(name, f"`{json.dumps(value)}`") for name, value in settings.items() if value is not None]
    return _table(("setting", "value"), lines)


def _splits(manifest: Manifest) -> str:
    columns = [name for name in manifest.histogram["counts"] if name != ANSWERS]
    rows = [
        (split, summary.records, summary.prompts, *(_number(summary.mean[name]) for name in columns))
        for split, summary in manifest.splits.items()
    ]
    told = "A prompt's records are all in the same split, which depends on its prompt_id alone."
    return f"{_table(('split', 'records', 'prompts', *(f'mean {name}' for name in columns)), rows)}\n\n{told}"


def _dropped(manifest: Manifest) -> str:
    rows = [(f"`{reason}`", number, MEANINGS[reason]) for reason, number in manifest.dropped.items()]
    rows.append(("kept", manifest.kept, "in the records above"))
    rows.append(("all", manifest.rows, "answers looked at"))
    return "An answer counts under the first reason that applies.\n\n" + _table(("reason", "answers", "meaning"), rows)


def _histogram(manifest: Manifest) -> str:
    edges, counts = manifest.histogram["edges"], manifest.histogram["counts"]
    mean = f"The mean of all scored answers is {_number(manifest.mean_reward)}."
    if not edges:
        return "No answer has a reward."
    names = list(counts)
    most = max(max(counts[name]) for name in names)
    lines = []
    for place, (low, high) in enumerate(pairwise(edges)):
        numbers = [counts[name][place] for name in names]
        bar = "█" * round(_BAR * counts[ANSWERS][place] / most) if most else ""
        lines.append((f"{low:.3g} to {high:.3g}", *numbers, bar))
    return f"{mean}\n\n" + _table(("reward", *names, ""), lines)


def _table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(_cell(value) for value in line)} |" for line in lines)


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")


def _joined(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
