"""The command line: one command a file. Heavy imports stay inside the commands, so that --help answers at once."""

from rollmill.cli.main import main

__all__ = ["main"]
