"""A small HTTP proxy between a client and an S3 server, which spoils chosen requests the way networks do."""

from __future__ import annotations

import http.client
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from select import select
from threading import Event, Thread
from urllib.parse import urlsplit

_ERROR = b"<?xml version='1.0'?><Error><Code>%s</Code><Message>injected</Message></Error>"
_SECONDS_BETWEEN_PIECES = 0.05
_STATUSES = {"SlowDown": 503, "ConditionalRequestConflict": 409, "InternalError": 500}


@dataclass(slots=True)
class FaultProxy:
    """What the proxy has seen, and the faults that wait for the next requests of a method.

    An S3 error code is answered without forwarding the request. The other faults:
        lost_reply         done, but the connection breaks before the reply
        late_reply         done, but the reply comes only after the client has given up
        no_reply           not done, and no answer until the client has given up
        cut_request        not done: the connection breaks inside the request's body
        cut_body           the connection breaks inside the reply's body
        slow_body          the reply's body comes in small pieces, with pauses
        ignore_condition   a refused condition is answered 200
    """

    upstream: str
    url: str = ""
    requests: list[tuple[str, str]] = field(default_factory=list)
    faults: dict[str, deque[str]] = field(default_factory=dict)
    standing: dict[str, str] = field(default_factory=dict)
    ended: Event = field(default_factory=Event)

    def always(self, method: str, fault: str) -> None:
        """Spoil every request of `method` that no other fault waits for."""
        self.standing[method] = fault

    def spoil(self, method: str, *faults: str) -> None:
        """Spoil the next requests of `method`, one by each fault."""
        self.faults.setdefault(method, deque()).extend(faults)

    def next_fault(self, method: str) -> str:
        waiting = self.faults.get(method)
        return waiting.popleft() if waiting else self.standing.get(method, "")


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
            proxy.ended.set()
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: FaultProxy

    def _forward(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        self.state.requests.append((self.command, self.path))
        fault = self.state.next_fault(self.command)
        body = self.rfile.read(length // 2 if fault == "cut_request" else length)
        if fault in ("no_reply", "cut_request"):
            self.close_connection = True
            if fault == "no_reply":
                self._wait_until_given_up()
            return
        if fault in _STATUSES:
            self._reply(_STATUSES[fault], {"Content-Type": "application/xml"}, _ERROR % fault.encode())
            return
        status, headers, data = self._ask_upstream(body)
        if fault in ("lost_reply", "late_reply"):
            self.close_connection = True
            if fault == "late_reply":
                self._wait_until_given_up()
        elif fault == "slow_body":
            self._reply(status, headers, data, pieces=10)
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

    def _wait_until_given_up(self) -> None:
        """Wait until the client closes its connection, or the proxy ends."""
        while not self.state.ended.is_set():
            if select([self.connection], [], [], 0.05)[0] and not self.connection.recv(1):
                return

    def _reply(
        self, status: int, headers: dict[str, str], data: bytes, keep: int | None = None, pieces: int = 1
    ) -> None:
        length = headers.get("Content-Length") if self.command == "HEAD" else str(len(data))
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        size = max(1, -(-len(data) // pieces))
        for start in range(0, len(data[:keep]), size):
            self.wfile.write(data[:keep][start : start + size])
            self.state.ended.wait(_SECONDS_BETWEEN_PIECES if pieces > 1 else 0)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _forward  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""
