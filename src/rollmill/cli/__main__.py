"""`python -m rollmill.cli` is `rollmill`."""

from rollmill.cli.main import main

main()
