"""What a run says when nobody reads it any more, because the worker that did was killed."""

from __future__ import annotations

import os
import subprocess
import sys

from prefect.settings import PREFECT_API_URL

_SAY_IT = """
import sys
from prefect import flow, get_run_logger
from rollmill.flows.terminal import Terminal, go_on_unread, say

@flow
def spoken():
    go_on_unread()
    print("begun", flush=True)
    sys.stdin.read()
    for _ in range(2):
        get_run_logger().info("a line")
        say("a line")
        Terminal().print("a line")

spoken()
print("went on")
"""


def test_a_run_whose_reader_is_gone_goes_on() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _SAY_IT],
        env={**os.environ, "PREFECT_API_URL": str(PREFECT_API_URL.value())},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "begun\n"
        process.stderr.close()
        process.stdin.close()
        assert process.stdout.read() == "went on\n"
    assert process.returncode == 0
