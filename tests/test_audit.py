"""The audit of dependencies, against a server that answers as PyPI does."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

AUDIT = Path(__file__).parents[1] / ".ci" / "audit.py"
KNOWN = {"id": "PYSEC-2026-1", "aliases": ["CVE-2026-1"], "fixed_in": ["2.1"], "summary": "runs what it reads",
         "withdrawn": None}  # fmt: skip

Serve = Callable[[Mapping[str, Any]], str]
Audit = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Answer `/pypi/NAME/VERSION/json` with the JSON that is given for each `NAME/VERSION`, else with 404."""
    servers: list[ThreadingHTTPServer] = []

    def start(releases: Mapping[str, Any]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = releases.get(self.path.removeprefix("/pypi/").removesuffix("/json"))
                self.send_response(404 if known is None else 200)
                self.end_headers()
                self.wfile.write(json.dumps(known).encode())

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/pypi"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def audit(tmp_path: Path) -> Audit:
    """Audit two releases at an index, with the text of a list of what is accepted."""

    def run(index: str, accepted: str = "") -> subprocess.CompletedProcess[str]:
        (tmp_path / "constraints.txt").write_text("# pinned\nsafe==1.0  # why\nrisky==2.0+cpu\n")
        (tmp_path / "accepted.toml").write_text(accepted)
        where = ["--constraints", str(tmp_path / "constraints.txt"), "--accepted", str(tmp_path / "accepted.toml")]
        command = [sys.executable, str(AUDIT), "--index", index, *where]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    return run


def releases(*known: Mapping[str, Any]) -> dict[str, Any]:
    return {"safe/1.0": {"info": {}, "vulnerabilities": []}, "risky/2.0": {"info": {}, "vulnerabilities": list(known)}}


def test_releases_without_a_known_vulnerability_pass(serve: Serve, audit: Audit) -> None:
    withdrawn = {**KNOWN, "withdrawn": "2026-02-03T00:00:00Z"}
    done = audit(serve(releases(withdrawn)))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "audit: 2 dependencies audited: no known vulnerability, 0 accepted\n"


def test_a_known_vulnerability_fails_and_is_named_with_its_remedy(serve: Serve, audit: Audit) -> None:
    done = audit(serve(releases(KNOWN)))
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout == "audit: risky 2.0: PYSEC-2026-1, CVE-2026-1; fixed in 2.1; runs what it reads\n"


@pytest.mark.parametrize("name", ["PYSEC-2026-1", "CVE-2026-1"])
def test_what_is_accepted_by_any_of_its_ids_passes_and_another_does_not(serve: Serve, audit: Audit, name: str) -> None:
    index = serve(releases(KNOWN))
    done = audit(index, f'"{name}" = "nothing is read"\n')
    assert (done.returncode, done.stdout) == (0, "audit: 2 dependencies audited: no known vulnerability, 1 accepted\n")
    assert audit(index, '"PYSEC-2026-2" = "another"\n').returncode == 1
    assert "PYSEC-2026-1 needs a reason" in audit(index, '"PYSEC-2026-1" = ""\n').stderr


def test_what_is_accepted_and_gone_is_said(serve: Serve, audit: Audit) -> None:
    done = audit(serve(releases()), '"PYSEC-2026-1" = "nothing is read"\n')
    assert done.returncode == 0
    assert "audit: PYSEC-2026-1 is accepted, and no release has it any more: remove it from the list\n" in done.stdout


@pytest.mark.parametrize(
    ("known", "reason"),
    [({}, "/pypi/safe/1.0/json answers 404"), ({"safe/1.0": {"info": {}}}, "does not tell vulnerabilities")],
)
def test_an_index_without_vulnerabilities_fails_nothing_and_is_said_in_one_line(
    serve: Serve, audit: Audit, known: Mapping[str, Any], reason: str
) -> None:
    done = audit(serve(known))
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    assert done.stdout.startswith("audit: dependencies are not audited: http://")
    assert reason in done.stdout


def test_nobody_at_the_other_end_fails_nothing_and_is_said_in_one_line(audit: Audit) -> None:
    done = audit("http://127.0.0.1:9/pypi")
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    assert done.stdout.startswith("audit: dependencies are not audited: http://127.0.0.1:9/pypi/ gives no answer")


def test_a_release_that_the_index_does_not_know_is_counted_as_not_audited(serve: Serve, audit: Audit) -> None:
    index = serve({**releases(), "risky/2.0": None})
    half = audit(index)
    assert half.returncode == 0
    assert "audit: 1 of 2 dependencies are not audited, first: " in half.stdout
    assert "audit: 1 dependencies audited" in half.stdout
