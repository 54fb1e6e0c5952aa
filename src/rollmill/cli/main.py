"""`rollmill`: from arguments to a command, and from an error to one line and an exit status."""

from __future__ import annotations

import logging
import sys

import typer

from rollmill.cli.announce import announce
from rollmill.cli.deploy import deploy
from rollmill.cli.export import export
from rollmill.cli.follow import follow
from rollmill.cli.ls import ls
from rollmill.cli.probe import probe
from rollmill.cli.report import report
from rollmill.cli.rescore import rescore
from rollmill.cli.run import run
from rollmill.cli.show import show
from rollmill.cli.vacuum import vacuum
from rollmill.cli.verify import verify
from rollmill.errors import RollmillError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Batch rollout jobs: prompts in, scored answers out, as versioned Parquet files that a trainer reads.",
)
for command in (run, rescore, export, ls, show, report, verify, vacuum, probe, deploy, announce, follow):
    app.command()(command)


def main() -> None:
    """Run the command line; a RollmillError is one line on standard error, only our own faults show a traceback."""
    logging.raiseExceptions = False  # a log line that Prefect's server does not take is no reason for a traceback
    try:
        app()
    except RollmillError as error:
        sys.stderr.write(f"rollmill: {error}\n")
        sys.exit(error.exit_status)
