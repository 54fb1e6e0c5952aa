"""Messages with their length before them, over a stream socket."""

from __future__ import annotations

import socket
import struct
import time

_LENGTH = struct.Struct("<Q")


class FrameSocket:
    """Sends and receives whole messages. Not for use by two threads at once."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._buffer = bytearray()

    def send(self, payload: bytes) -> None:
        """Send one message. Raises OSError when the other side is gone."""
        self.connection.settimeout(None)
        self.connection.sendall(_LENGTH.pack(len(payload)) + payload)

    def receive(self, seconds: float | None = None) -> bytes:
        """Return the next message. Raises EOFError when the other side is gone, TimeoutError after `seconds`."""
        deadline = None if seconds is None else time.monotonic() + seconds
        head = self._take(_LENGTH.size, deadline)
        return self._take(int(_LENGTH.unpack(head)[0]), deadline)

    def close(self) -> None:
        """Close the socket."""
        self.connection.close()

    def _take(self, count: int, deadline: float | None) -> bytes:
        while len(self._buffer) < count:
            if deadline is not None:
                # A timeout of 0 would make the socket one that never waits.
                self.connection.settimeout(max(deadline - time.monotonic(), 1e-6))
            try:
                received = self.connection.recv(65536)
            except ConnectionError as error:
                raise EOFError("the other side is gone") from error
            if not received:
                raise EOFError("the other side is gone")
            self._buffer += received
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken
