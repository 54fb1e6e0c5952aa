"""`rollmill probe`: what a store honours of what rollmill needs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer


def probe(
    url: Annotated[str, typer.Argument(metavar="URL", help="A local folder or s3://bucket/prefix.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Try what a store must honour, a line each; exit status 1 when it must not be used.

    Example: rollmill probe s3://bucket/prefix
    """
    from rollmill.storage.objects import open_objects
    from rollmill.storage.probe import probe_store

    findings = probe_store(open_objects(url))
    fit = all(finding.honoured for finding in findings)
    if as_json:
        print(json.dumps({"fit": fit, "findings": [asdict(finding) for finding in findings]}, ensure_ascii=False))
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            print(f"{'ok  ' if finding.honoured else 'FAIL'}  {finding.name:<{width}}  {finding.detail}")
        print(f"{url} {'can be used' if fit else 'must not be used'}")
    if not fit:
        raise typer.Exit(1)
