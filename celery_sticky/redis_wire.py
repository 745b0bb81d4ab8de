"""One connection to a server: requests and replies, messages that the server pushes, and waiting for either.

A broken connection is dropped at once; the next request opens a new one. No request is ever sent twice.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import redis

from celery_sticky.errors import BrokerUnavailable, StickyError
from celery_sticky.redis_clients import close_client, translate_errors
from celery_sticky.redis_resp import Push, Reader, ServerError, pack
from celery_sticky.waker import Waker, selector

HELLO = pack("HELLO", 3)
TRACK = pack("CLIENT", "TRACKING", "ON", "NOLOOP")


class Wire:
    """The connection. Used by one thread, except `wake`."""

    def __init__(
        self,
        client: redis.Redis,
        socket_timeout: float,
        on_push: Callable[[Push], None],
        *,
        setup: Sequence[bytes] = (HELLO, TRACK),
        unavailable: type[StickyError] = BrokerUnavailable,
        at: str = "Redis",
    ) -> None:
        """`setup` are the requests of a new connection; `unavailable` is raised with the name of the server, `at`."""
        self.pushes = False
        """Whether the server took the `setup`, and so pushes messages."""
        self._setup, self._unavailable, self._at = setup, unavailable, at
        self.connects = 0
        """Number of connections opened so far."""
        self._client = client
        self._timeout = socket_timeout
        self._on_push = on_push
        # redis-py connects; afterwards only its socket is used, which has no public name and no types.
        self._connection: Any = client.connection_pool.make_connection()
        self._sock: socket.socket | None = None
        self._reader: Reader | None = None
        self._looked = False
        self._waker = Waker()

    @property
    def connected(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._sock is not None

    def call(self, *requests: bytes) -> list[object]:
        """Send requests together and return their replies; the reply to a refused request is a `ServerError`.

        Raises:
            BrokerUnavailable, or the other `unavailable`: no connection, or it broke: each request may have been done.
        """
        with self._guard():
            sock, reader = self._connected()
            sock.sendall(requests[0] if len(requests) == 1 else b"".join(requests))
            replies = [self._reply(reader) for _ in requests]
            self._looked = True
            return replies

    def wait(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for a pushed message or a `wake`; return whether `wake` was called.

        Raises:
            BrokerUnavailable: the connection broke.
        """
        if self._sock is None or self._reader is None:
            return self._waker.wait(timeout, None)[0]
        if timeout <= 0 and self._looked and not self._has_bytes(self._sock, self._reader):
            # Right after a request: messages pushed before its reply were read with it. A busy courier calls this
            # between any two requests, so spare it the system calls of a wait.
            self._looked = False
            return False
        self._looked = False
        with self._guard():
            here = self._has_bytes(self._sock, self._reader)
            woken, readable = self._waker.wait(0 if here else timeout, self._sock)
            if here or readable:
                self._read_pushes(self._sock, self._reader)
            return woken

    def listen(self) -> None:
        """Hear what the server has pushed so far, without waiting; drop a connection that it has closed meanwhile.

        For connections that stand idle between requests: the next request then opens a new one, and does not fail.
        """
        sock, reader = self._sock, self._reader
        if sock is None or reader is None:
            return
        with contextlib.suppress(self._unavailable), self._guard():
            if self._has_bytes(sock, reader) or _is_readable(sock):
                self._read_pushes(sock, reader)

    def wake(self) -> None:
        """Make the current `wait`, or the next one, return at once. Any thread may call this."""
        self._waker.wake()

    def forget_wakes(self) -> None:
        """Have the calls of `wake` so far end no later `wait`."""
        self._waker.wait(0, None)

    def drop(self) -> None:
        """Close the connection; requests sent on it may still be carried out."""
        self._sock = self._reader = None
        with contextlib.suppress(redis.RedisError, OSError):
            self._connection.disconnect()

    def close(self) -> None:
        """Close connection, client and waker. May be called twice."""
        self.drop()
        close_client(self._client)
        self._waker.close()

    def _guard(self) -> _Guard:
        return _Guard(self, self._unavailable, self._at)

    def _connected(self) -> tuple[socket.socket, Reader]:
        if self._sock is None or self._reader is None:
            self.drop()
            with translate_errors(self._unavailable, self._at):
                self._connection.connect()
            sock: socket.socket = self._connection._sock
            sock.settimeout(self._timeout)
            _keep_alive(sock)
            self._sock, self._reader = sock, Reader(sock)
            self.connects += 1
            self.pushes = self._ask_for_pushes(sock, self._reader)
        return self._sock, self._reader

    def _ask_for_pushes(self, sock: socket.socket, reader: Reader) -> bool:
        """Return whether the server pushes. Old servers, proxies and access lists may refuse: then drivers poll."""
        for request in self._setup:
            sock.sendall(request)
            if isinstance(self._reply(reader), ServerError):
                return False
        return True

    def _reply(self, reader: Reader) -> object:
        while isinstance(reply := reader.read(), Push):
            self._on_push(reply)
        return reply

    def _read_pushes(self, sock: socket.socket, reader: Reader) -> None:
        while True:
            said = reader.read()
            if not isinstance(said, Push):
                raise ConnectionError(f"the server sent a reply without a request: {said!r:.80}")
            self._on_push(said)
            if not self._has_bytes(sock, reader):
                return

    @staticmethod
    def _has_bytes(sock: socket.socket, reader: Reader) -> bool:
        # Bytes that TLS has already decrypted do not make the socket readable.
        return reader.has_more or (isinstance(sock, ssl.SSLSocket) and sock.pending() > 0)


class _Guard:
    """Drops the connection on any error during a request, since replies would then be out of step."""

    def __init__(self, wire: Wire, unavailable: type[StickyError], at: str) -> None:
        self._wire, self._unavailable, self._at = wire, unavailable, at

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        self._wire.drop()
        if isinstance(error, OSError | ValueError) and not isinstance(error, StickyError):
            raise self._unavailable(f"{self._at}: {type(error).__name__}: {error}") from error


def _is_readable(sock: socket.socket) -> bool:
    with selector() as looking:
        looking.register(sock, selectors.EVENT_READ)
        return bool(looking.select(0))


def _keep_alive(sock: socket.socket) -> None:
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
