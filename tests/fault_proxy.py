"""A small HTTP proxy between a client and an S3 server, which spoils chosen requests the way networks do."""

from __future__ import annotations

import http.client
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit

_ERROR = b"<?xml version='1.0'?><Error><Code>%s</Code><Message>injected</Message></Error>"
_STATUSES = {"SlowDown": 503, "ConditionalRequestConflict": 409, "InternalError": 500}


@dataclass(slots=True)
class FaultProxy:
    """What the proxy has seen, and the faults that wait for the next requests of a method.

    Faults: `lost_reply` (done, but the connection breaks before the reply), `cut_body` (breaks inside the reply),
    an S3 error code (refused without being forwarded), or `ignore_condition` (a refused condition is answered 200).
    """

    upstream: str
    url: str = ""
    requests: list[tuple[str, str]] = field(default_factory=list)
    faults: dict[str, deque[str]] = field(default_factory=dict)

    def spoil(self, method: str, *faults: str) -> None:
        """Spoil the next requests of `method`, one by each fault."""
        self.faults.setdefault(method, deque()).extend(faults)

    def next_fault(self, method: str) -> str:
        waiting = self.faults.get(method)
        return waiting.popleft() if waiting else ""


@contextmanager
def fault_proxy(upstream: str) -> Iterator[FaultProxy]:
    """Serve a proxy to `upstream` on a free port of the loopback."""
    proxy = FaultProxy(upstream)

    class Handler(_Handler):
        state = proxy

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: FaultProxy

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.state.requests.append((self.command, self.path))
        fault = self.state.next_fault(self.command)
        if fault in _STATUSES:
            self._reply(_STATUSES[fault], {"Content-Type": "application/xml"}, _ERROR % fault.encode())
            return
        status, headers, data = self._ask_upstream(body)
        if fault == "lost_reply":
            self.close_connection = True
        elif fault == "cut_body":
            self._reply(status, headers, data, keep=len(data) // 2)
            self.close_connection = True
        elif fault == "ignore_condition" and status == 412:
            self._reply(200, {}, b"")
        else:
            self._reply(status, headers, data)

    def _ask_upstream(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(urlsplit(self.state.upstream).netloc, timeout=30)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body or None)
            reply = connection.getresponse()
            return reply.status, dict(reply.getheaders()), reply.read()
        finally:
            connection.close()

    def _reply(self, status: int, headers: dict[str, str], data: bytes, keep: int | None = None) -> None:
        length = headers.get("Content-Length") if self.command == "HEAD" else str(len(data))
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        self.wfile.write(data[:keep])

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _forward  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""
