"""Running one program on one test."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_START = Path(__file__).with_name("start.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """What one run may take: wall-clock seconds, memory, the size of each file it writes, and processes.

    The system does not count processes of the superuser; where it allows namespaces, none of them outlives the run.
    """

    seconds: float = 5.0
    memory_bytes: int = 1 << 30
    file_bytes: int = 1 << 24
    num_processes: int = 64

    def as_resources(self) -> dict[str, int]:
        """Return the limits by their names in `resource`."""
        return {
            "RLIMIT_AS": self.memory_bytes,
            "RLIMIT_FSIZE": self.file_bytes,
            "RLIMIT_NPROC": _processes_of_user() + self.num_processes,
            "RLIMIT_CPU": int(self.seconds) + 1,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTest:
    """Python source that runs after the program and must not raise, or input text and the output it must print."""

    source: str | None = None
    stdin: str = ""
    stdout: str | None = None


def passes(program: str, test: ProgramTest, limits: SandboxLimits) -> bool:
    """Return whether `program` passes `test` within `limits`. Raises OSError when no process can be started."""
    token = secrets.token_hex(16)
    spec = {"program": program, "tests": test.source, "token": token, "limits": limits.as_resources()}
    with tempfile.TemporaryDirectory(prefix="rollmill-code-", ignore_cleanup_errors=True) as folder:
        stdout = Path(folder, ".stdout")
        verdict = _run(spec, test.stdin, folder, stdout, limits.seconds)
        if test.stdout is None:
            return verdict == token
        return verdict == token and _same_output(stdout.read_text(errors="replace"), test.stdout)


def _run(spec: Mapping[str, object], stdin: str, folder: str, stdout: Path, seconds: float) -> str:
    """Return what the child wrote as its verdict, empty when it did not come to its end in time."""
    verdict, verdict_end = os.pipe()
    with (
        os.fdopen(verdict, "rb", buffering=0) as answer,
        tempfile.TemporaryFile("w+") as specification,
        tempfile.TemporaryFile("w+") as given,
        stdout.open("w") as printed,
    ):
        try:
            json.dump(spec, specification)
            given.write(stdin)
            for file in (specification, given):
                file.seek(0)
            process = subprocess.Popen(
                [sys.executable, "-I", str(_START), str(specification.fileno()), str(verdict_end)],
                stdin=given,
                stdout=printed,
                stderr=subprocess.DEVNULL,
                pass_fds=[specification.fileno(), verdict_end],
                cwd=folder,
                env=_environment(folder),
                start_new_session=True,
            )
        finally:
            os.close(verdict_end)
        _wait(process, seconds)
        os.set_blocking(answer.fileno(), False)  # something that is just ending may still hold the other end
        return (answer.read(1024) or b"").decode(errors="replace")


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for the child at most so long, then end it and all that it started."""
    try:
        with suppress(subprocess.TimeoutExpired):  # it is ended below, and has given no verdict
            process.wait(seconds)
    finally:
        with suppress(ProcessLookupError):  # nothing is left of it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _environment(folder: str) -> dict[str, str]:
    return {
        "PATH": os.defpath,
        "HOME": folder,
        "TMPDIR": folder,
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }


def _same_output(printed: str, expected: str) -> bool:
    """Return whether two outputs agree but for white space at the ends of lines and of the whole."""
    return [line.rstrip() for line in printed.strip().splitlines()] == [
        line.rstrip() for line in expected.strip().splitlines()
    ]


def _processes_of_user() -> int:
    """Return how many threads this user runs, which is what the system's limit on processes counts."""
    if sys.platform != "linux":
        return 512
    count = 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if folder.stat().st_uid == os.getuid():
                count += int((folder / "stat").read_text().rpartition(")")[2].split()[17])
        except OSError:
            continue  # it ended meanwhile
    return count
