"""`rollmill export`: a training set out of dataset versions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rollmill.tasks.export.exporting import Exported

Format = Annotated[str, typer.Option("--format", metavar="FORMAT", help="What a record is: sft, dpo, kto or table.")]


def export(
    context: typer.Context,
    store: Annotated[str, typer.Argument(help="A local folder or s3://bucket/prefix.")],
    training_format: Format,
    out: Annotated[str, typer.Option(metavar="URL", help="Where the set goes: a local folder or s3://bucket/prefix.")],
    version: Annotated[
        list[int] | None, typer.Option(help="The dataset version; the latest when not given. Again for several.")
    ] = None,
    window: Annotated[int, typer.Option(help="Take the so many newest runs of the version together.")] = 1,
    best_of: Annotated[int | None, typer.Option(help="Look only at the first so many answers to each prompt.")] = None,
    top: Annotated[
        int | None, typer.Option(help="Keep so many of the best answers to each prompt; 1 for sft, all for table.")
    ] = None,
    min_reward: Annotated[float | None, typer.Option(help="Leave out answers with a smaller reward.")] = None,
    max_reward: Annotated[float | None, typer.Option(help="Leave out answers with a greater reward.")] = None,
    min_pass_rate: Annotated[
        float | None, typer.Option(help="Leave out prompts of which a smaller share of the scored answers pass.")
    ] = None,
    max_pass_rate: Annotated[
        float | None, typer.Option(help="Leave out prompts of which a greater share of the scored answers pass.")
    ] = None,
    pass_reward: Annotated[float | None, typer.Option(help="An answer passes with at least this reward; 1.")] = None,
    zero_variance: Annotated[
        float | None,
        typer.Option(metavar="TOLERANCE", help="Leave out prompts whose rewards all lie within this of each other."),
    ] = None,
    keep_truncated: Annotated[
        bool, typer.Option("--keep-truncated", help="Keep answers that were cut at the token limit.")
    ] = False,
    min_tokens: Annotated[int | None, typer.Option(help="Leave out answers of fewer tokens.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Leave out answers of more tokens.")] = None,
    match: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Keep answers in which this is found (RE2 syntax).")
    ] = None,
    no_match: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Leave out answers in which this is found (RE2 syntax).")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(metavar="CONDITION", help="Keep rows of which this holds, as in 'policy_version >= 3'."),
    ] = None,
    keep_duplicates: Annotated[bool, typer.Option("--keep-duplicates", help="Keep answers of the same text.")] = False,
    near_duplicates: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Leave out answers that share this much of their words with a kept one."),
    ] = None,
    duplicate_scope: Annotated[
        str | None,
        typer.Option(metavar="SCOPE", help="Look for duplicates among the answers to a prompt (prompt), or to all."),
    ] = None,
    pairs: Annotated[
        str | None,
        typer.Option(metavar="STRATEGY", help="For dpo: max_min, max_random or adjacent answers make a pair."),
    ] = None,
    min_margin: Annotated[float | None, typer.Option(help="For dpo: least difference of the two rewards.")] = None,
    max_length_ratio: Annotated[
        float | None, typer.Option(help="For dpo: most times that one of the two may have as many tokens.")
    ] = None,
    desirable: Annotated[
        float | None, typer.Option(help="For kto: answers with at least this reward are desirable; 1.")
    ] = None,
    undesirable: Annotated[
        float | None, typer.Option(help="For kto: answers with a smaller reward are undesirable; as desirable.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Another seed draws other pairs for max_random.")] = None,
    test_fraction: Annotated[
        float | None, typer.Option(help="About this share of the prompts goes to the test split; 0.05.")
    ] = None,
    split_seed: Annotated[int | None, typer.Option(help="Another seed sends other prompts to the test split.")] = None,
    min_records: Annotated[int | None, typer.Option(help="With fewer records nothing is written; 1.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another set that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the set's manifest as JSON.")] = False,
) -> None:
    """Write a training set that TRL and datasets read: Parquet in two splits, a card and a manifest.

    Whole or not at all; the same command again finds it there, and leaves it as it is.

    Example: rollmill export ./rollouts --format sft --min-reward 1 --out ./sft
    """
    config = _config(training_format, context.params)
    exported = _export(store, out, config, version or [], window, overwrite)
    if as_json:
        summary = {"url": exported.url, "is_new": exported.is_new, **exported.manifest.to_json()}
        print(json.dumps(summary, ensure_ascii=False))
    else:
        _print(exported)


def _config(training_format: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given, by the models' fields of these names, which have the other defaults."""
    from rollmill.tasks.export.config import ExportConfig
    from rollmill.tasks.selection.config import SelectionConfig

    given = {name: value for name, value in options.items() if value is not None}
    selection = {name: value for name, value in given.items() if name in SelectionConfig.model_fields}
    own = {name: value for name, value in given.items() if name in ExportConfig.model_fields}
    return {**own, "format": training_format, "selection": selection}


def _export(
    store: str, out: str, config: dict[str, Any], versions: list[int], window: int, overwrite: bool
) -> Exported:
    from rollmill.flows.job_file import check_values
    from rollmill.storage.objects import open_objects
    from rollmill.storage.store import RolloutStore
    from rollmill.tasks.export.config import ExportConfig
    from rollmill.tasks.export.exporting import export_training_set

    return export_training_set(
        RolloutStore(store),
        open_objects(out),
        check_values(ExportConfig, config, "export"),
        versions=versions,
        window=window,
        overwrite=overwrite,
    )


def _print(exported: Exported) -> None:
    from rollmill.cli.table import print_table
    from rollmill.tasks.selection.reasons import MEANINGS

    manifest = exported.manifest
    state = "wrote" if exported.is_new else "already there:"
    print(f"{state} {manifest.records} {manifest.format} records of {manifest.rows} answers in {exported.url}\n")
    print_table(
        [
            {"split": name, "records": split.records, "prompts": split.prompts, **_means(split.mean)}
            for name, split in manifest.splits.items()
        ]
    )
    print()
    print_table(
        [
            {"version": source.version, "run": source.run_id, "policy version": source.policy_version,
             "answers": source.rows, "kept": source.kept, "records": source.records}
            for source in manifest.sources
        ]
    )  # fmt: skip
    print()
    dropped = [
        {"answers": number, "why": f"{reason}: {MEANINGS[reason]}"} for reason, number in manifest.dropped.items()
    ]
    print_table([*dropped, {"answers": manifest.kept, "why": "kept"}, {"answers": manifest.rows, "why": "all"}])


def _means(means: Mapping[str, float | None]) -> dict[str, float | None]:
    return {f"mean {name}": value for name, value in means.items()}
