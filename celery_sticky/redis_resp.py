"""The part of the Redis protocol that drivers need: requests to bytes, bytes to replies.

redis-py connects and logs in; afterwards this module reads and writes. It costs a half to a third as much per message,
and it can read messages that the server pushes without a request.
"""

from __future__ import annotations

import socket

Argument = bytes | str | int

RECEIVE_BYTES = 256 * 1024
BULK, INTEGER, MINUS = b"$:-"


class ServerError(Exception):
    """The server refused a request."""


def is_unknown_script(reply: object) -> bool:
    """Return whether the server does not have the script that a request names by its digest."""
    return isinstance(reply, ServerError) and str(reply).startswith("NOSCRIPT")


class Push(list[object]):
    """A message that the server sends without a request."""


def pack(*arguments: Argument) -> bytes:
    """Return one request as bytes."""
    parts = [b"*%d\r\n" % len(arguments)]
    for argument in arguments:
        data = argument if type(argument) is bytes else str(argument).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


class Reader:
    """Reads replies from a socket; waits for more bytes up to the socket's own timeout."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._data = b""
        self._at = 0

    @property
    def has_more(self) -> bool:
        """Whether received bytes are still unread."""
        return self._at < len(self._data)

    def read(self) -> object:
        """Return the next reply: bytes, str (a status), int, float, bool, None, list, Push or ServerError.

        Raises:
            OSError: the connection is broken or silent, or does not speak the protocol.
        """
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"$":
            size = int(rest)
            return self._take(size) if size >= 0 else None
        if kind == b":":
            return int(rest)
        if kind in b"*~":
            return self._items(int(rest)) if rest != b"-1" else None
        return self._read_rare(kind, rest)

    def _items(self, count: int) -> list[object]:
        """Return the next `count` replies; common kinds are parsed inline for speed."""
        items: list[object] = []
        for _ in range(count):
            data, at = self._data, self._at
            end = data.find(b"\r\n", at)
            if end > at and data[at] == BULK and data[at + 1] != MINUS:
                start = end + 2
                stop = start + int(data[at + 1 : end])
                if stop + 2 <= len(data):
                    items.append(data[start:stop])
                    self._at = stop + 2
                    continue
            elif end > at and data[at] == INTEGER:
                items.append(int(data[at + 1 : end]))
                self._at = end + 2
                continue
            items.append(self.read())
        return items

    def _read_rare(self, kind: bytes, rest: bytes) -> object:
        if kind == b"+":
            return rest.decode()
        if kind == b"-":
            return ServerError(rest.decode(errors="replace"))
        if kind == b"!":
            return ServerError(self._take(int(rest)).decode(errors="replace"))
        if kind == b">":
            return Push(self.read() for _ in range(int(rest)))
        if kind == b"%":
            return [self.read() for _ in range(2 * int(rest))]
        if kind == b"_":
            return None
        if kind == b",":
            return float(rest)
        if kind == b"#":
            return rest == b"t"
        if kind == b"=":
            return self._take(int(rest))[4:]
        raise ConnectionError(f"not a reply of the Redis protocol: {(kind + rest)[:40]!r}")

    def _line(self) -> bytes:
        end = self._data.find(b"\r\n", self._at)
        while end < 0:
            self._receive()
            end = self._data.find(b"\r\n", self._at)
        line = self._data[self._at : end]
        self._at = end + 2
        return line

    def _take(self, size: int) -> bytes:
        """Return the next `size` bytes and drop the line end behind them."""
        if size + 2 > len(self._data) - self._at:
            return self._take_in_pieces(size)
        end = self._at + size
        data = self._data[self._at : end]
        self._at = end + 2
        return data

    def _take_in_pieces(self, size: int) -> bytes:
        # Join once at the end: a body that comes in a thousand pieces is not copied a thousand times.
        pieces = [self._data[self._at : self._at + size]]
        missing = size - len(pieces[0])
        self._data, self._at = self._data[self._at + len(pieces[0]) :], 0
        while missing > 0:
            pieces.append(self._received(min(missing, RECEIVE_BYTES)))
            missing -= len(pieces[-1])
        while len(self._data) < 2:
            self._receive()
        self._at = 2
        return b"".join(pieces)

    def _receive(self) -> None:
        self._data = self._data[self._at :] + self._received(RECEIVE_BYTES)
        self._at = 0

    def _received(self, most: int) -> bytes:
        data = self._sock.recv(most)
        if not data:
            raise ConnectionError("the server closed the connection")
        return data
