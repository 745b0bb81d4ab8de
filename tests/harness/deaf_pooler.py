"""A stand-in for a pooler in transaction mode: LISTEN is accepted through it, and nothing is ever heard."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

NOTIFICATION = b"A"
"""The type of a message of PostgreSQL's protocol that carries a notification."""


class DeafPooler:
    """Forwards connections to a PostgreSQL server, without the notifications."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """The server's URL, through this pooler."""
        who, at, _ = self._parts.netloc.rpartition("@")
        place = f"{who}{at}127.0.0.1:{self._listener.getsockname()[1]}"
        return self._parts._replace(netloc=place, query="sslmode=disable&gssencmode=disable").geturl()

    def close(self) -> None:
        """End everything."""
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection((self._parts.hostname or "", self._parts.port or 5432))
                self._sockets += (near, far)
                for work, source, sink in ((_forward, near, far), (_without_notifications, far, near)):
                    threading.Thread(target=_until_closed, args=(work, source, sink), daemon=True).start()


def _until_closed(work: Callable[..., None], source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        work(source, sink)
    for one in (source, sink):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def _forward(source: socket.socket, sink: socket.socket) -> None:
    while data := source.recv(65536):
        sink.sendall(data)


def _without_notifications(source: socket.socket, sink: socket.socket) -> None:
    with source.makefile("rb") as stream:
        while head := stream.read(5):
            body = stream.read(int.from_bytes(head[1:], "big") - 4)
            if head[:1] != NOTIFICATION:
                sink.sendall(head + body)
