"""What the child process runs first: it gives up what the program must not have, then becomes the program.

It is started by path in an isolated interpreter, so it imports nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from typing import Any

CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
PR_SET_PDEATHSIG = 1


def main() -> None:
    """Read the specification from the descriptor that the command line names, and run its program."""
    with os.fdopen(int(sys.argv[1])) as file:
        spec = json.load(file)
    if sys.platform == "linux":
        _leave_namespaces()
    _limit(spec["limits"])
    _run(spec["program"], spec["tests"], spec["token"], int(sys.argv[2]))


def _leave_namespaces() -> None:
    """Be alone in namespaces without a network, when the system lets an ordinary user do that.

    The first process in a namespace of process ids takes all others with it when it ends.
    """
    library = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if library.unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET) != 0:
        library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os._exit(status if status >= 0 else 128 - status)
    library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _limit(limits: dict[str, int]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name, limit in limits.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        lowered = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (lowered, lowered))


def _run(program: str, tests: str | None, token: str, verdict: int) -> None:
    """Run the program, then its tests in the same names; write the token only when both came to their end."""
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        exec(compile(program, "<answer>", "exec"), names)
    except SystemExit as end:
        # A program that only prints may end itself; one that is tested must leave that to its tests.
        if tests is not None or end.code not in (None, 0):
            raise
    if tests is not None:
        exec(compile(tests, "<tests>", "exec"), names)
    sys.stdout.flush()
    os.write(verdict, token.encode())


if __name__ == "__main__":
    main()
