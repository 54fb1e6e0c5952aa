"""`rollmill report`: a dataset version as one page to look at."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def report(
    store: Annotated[str, typer.Argument(help="A local folder or s3://bucket/prefix.")],
    version: Annotated[int | None, typer.Option(help="The dataset version; the latest when not given.")] = None,
    compare: Annotated[int | None, typer.Option(metavar="M", help="Another version to compare it with.")] = None,
    out: Annotated[
        str, typer.Option(metavar="URL", help="The page to write: a file or an s3:// address.")
    ] = "report.html",
    window: Annotated[int, typer.Option(min=1, help="How many of the version's newest runs count.")] = 1,
    max_answers: Annotated[int, typer.Option(min=1, help="How many answers' texts the page holds at most.")] = 2000,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="POLICY", help="Where the tokenizer is, if not where the run had it.")
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(min=0, metavar="PER_HOUR", help="What a device cost an hour, if not what the run's job says."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Write one HTML page that shows a dataset version: figures, charts, prompts, and its answers to browse.

    The page holds everything it needs and asks no server for anything.

    Example: rollmill report ./rollouts --out report.html
    """
    from rollmill.storage.store import RolloutStore
    from rollmill.tasks.report.build import build_report
    from rollmill.tasks.report.writing import check_address, write_page

    check_address(out)
    stored = RolloutStore(store)
    chosen = stored.latest() if version is None else stored.version(version)
    before = None if compare is None else stored.version(compare)
    made = build_report(chosen, before=before, window=window, max_answers=max_answers, tokenizer=tokenizer, price=price)
    page = made.html.encode()
    address = write_page(out, page)
    if as_json:
        print(json.dumps({**made.figures, "page": address, "page_bytes": len(page)}, ensure_ascii=False))
    else:
        print(f"wrote {address}, {len(page):,} bytes: version {chosen.number} of {store}")
