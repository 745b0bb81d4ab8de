"""A proxy before a Redis server that refuses HELLO, as servers before Redis 6 and some managed proxies do."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

UNKNOWN = "ERR unknown command 'HELLO', with args beginning with: '3'"
FORBIDDEN = "NOPERM this user has no permissions to run the 'hello' command"


class WithoutHello:
    """Answers each HELLO with a refusal, and forwards the rest. It listens while the block is open."""

    def __init__(self, url: str, refusal: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname and parts.port
        self._server, self._answer = (parts.hostname, parts.port), f"-{refusal}\r\n".encode()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._listener]
        self.refused = 0
        """How many HELLO were refused."""
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self._open:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._server)
                self._open += [near, far]
                threading.Thread(target=self._ask, args=(near, far), daemon=True).start()
                threading.Thread(target=self._reply, args=(far, near), daemon=True).start()

    def _ask(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while data := near.recv(65536):
                # A client sends HELLO alone and waits for its reply: nobody else answers at that time.
                if b"\r\nHELLO\r\n" in data[:40]:
                    self.refused += 1
                    near.sendall(self._answer)
                else:
                    far.sendall(data)
            far.shutdown(socket.SHUT_WR)

    @staticmethod
    def _reply(far: socket.socket, near: socket.socket) -> None:
        with suppress(OSError):
            while data := far.recv(65536):
                near.sendall(data)
            near.shutdown(socket.SHUT_WR)
