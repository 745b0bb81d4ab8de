"""A TCP proxy before a server of any kind, for network faults: cut, silent, healed."""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress
from urllib.parse import urlsplit, urlunsplit

from kombu import Connection

from celery_sticky.sql.address import LEAD

NOT_PLAIN = ("sentinel", "rediss", "amqps")
"""Schemes of addresses that a proxy cannot stand before: TLS checks the name of the server, a Sentinel names others."""
PORTS = {f"{LEAD}postgresql": 5432, f"{LEAD}mysql": 3306}
"""The usual ports of servers that share one transport."""
CHECKS_NAME = ("verify-full", "ssl_verify_identity")
"""Options of a database's URL that do the same."""
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: closing resets the connection instead of ending it in order."""


def tcp_address(url: str) -> tuple[str, int] | None:
    """Return host and port of a URL, or None if a proxy cannot stand before it."""
    parts = urlsplit(url)
    by_name = any(option in parts.query for option in CHECKS_NAME)
    if ";" in url or parts.scheme in NOT_PLAIN or by_name or not parts.hostname:
        return None
    port = parts.port or PORTS.get(parts.scheme) or Connection(url).get_transport_cls().default_port
    return (parts.hostname, port) if port else None


class _Line:
    """One connection through the proxy: two sockets, and a thread for each direction."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.silent = self._dead = False
        self._sockets = (near, far)
        ways = ((near, far), (far, near))
        self._threads = [threading.Thread(target=self._pump, args=ends, daemon=True) for ends in ways]
        for thread in self._threads:
            thread.start()

    def reset(self) -> None:
        """Reset both ends."""
        self._dead = True
        for end in self._sockets:
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                end.shutdown(socket.SHUT_RD)  # wakes the thread that reads
        for thread in self._threads:
            thread.join(timeout=10)
        for end in self._sockets:
            end.close()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):  # one end is gone, and the other one with it
            while data := source.recv(65536):
                while self.silent and not self._dead:
                    time.sleep(0.02)  # holds the data back until `silent` ends
                if self._dead:
                    return
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


class Proxy:
    """Listens on a loopback port and forwards everything to the server of a URL, unless told otherwise."""

    def __init__(self, url: str) -> None:
        self._url, self._to = urlsplit(url), _address(url)
        self._lock = threading.Lock()
        self._lines: list[_Line] = []
        self._silent = self._refuses = self._ended = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def url(self) -> str:
        """The server's URL with the address of this proxy."""
        who, at, _ = self._url.netloc.rpartition("@")
        return urlunsplit(self._url._replace(netloc=f"{who}{at}127.0.0.1:{self.port}"))

    def start(self) -> Proxy:
        """Start to accept connections."""
        self._thread.start()
        return self

    def silence(self) -> None:
        """Forward nothing and close nothing: sent data waits here and arrives late, after `heal`."""
        with self._lock:
            self._silent = True
            self._hush(silent=True)

    def strand(self) -> None:
        """Silence the present connections; new ones work."""
        with self._lock:
            self._hush(silent=True)

    def lead(self, url: str) -> None:
        """Lead new connections to another server, like a name that moves; present ones stay with the old server."""
        with self._lock:
            self._to = _address(url)

    def cut(self) -> None:
        """Reset every connection and refuse new ones."""
        with self._lock:
            self._refuses = True
            self._reset()

    def reset(self) -> None:
        """Reset every connection; new ones are accepted."""
        with self._lock:
            self._reset()

    def heal(self) -> None:
        """Forward everything again."""
        with self._lock:
            self._silent = self._refuses = False
            self._hush(silent=False)

    def teardown(self) -> None:
        """Close every connection. May be called twice."""
        self._ended = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._thread.join(timeout=10)
        self._listener.close()
        self.cut()

    def _hush(self, *, silent: bool) -> None:
        for line in self._lines:
            line.silent = silent

    def _reset(self) -> None:
        for line in self._lines:
            line.reset()
        self._lines.clear()

    def _accept(self) -> None:
        while not self._ended:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # torn down
            with self._lock:
                self._let_in(near)

    def _let_in(self, near: socket.socket) -> None:
        far = None
        if not self._refuses:
            with suppress(OSError):
                far = socket.create_connection(self._to, timeout=5)
        if far is None:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            near.close()
            return
        far.settimeout(None)
        line = _Line(near, far)
        line.silent = self._silent
        self._lines.append(line)


def _address(url: str) -> tuple[str, int]:
    found = tcp_address(url)
    assert found is not None, f"no proxy can stand before {url}"
    return found
