"""The subscription of Redis stores: one pub/sub connection for all of them, whose wait another thread can interrupt.

While it waits it sends nothing, except a PING after a long silence: otherwise a connection whose other end vanished
would stay silent forever.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any

import redis

PING_AFTER = 10.0
"""Seconds of silence before a PING."""

Parse = Callable[[bytes], object]
"""Returns the signal in a payload, or None if there is none for this listener."""


class Subscription:
    """Listens on the channels of its listeners. Not thread-safe, except `wake`."""

    def __init__(self, client: redis.Redis, answer_timeout: float) -> None:
        # A connection made by the pool that never returns to it; it reconnects on demand.
        self._connection: Any = client.connection_pool.make_connection()
        self._answer_timeout = answer_timeout
        self._listeners: dict[bytes, dict[Hashable, Parse]] = {}
        """Channel → its listeners."""
        self._listening: set[Hashable] = set()
        self._heard: dict[Hashable, list[Any]] = {}
        """Listener → signals that it has not taken yet."""
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        self._selector: selectors.BaseSelector | None = None
        self._heard_at = 0.0
        self._pinged_at: float | None = None

    def listens(self, listener: Hashable) -> bool:
        """Return whether a listener is subscribed."""
        return listener in self._listening

    def add(self, listener: Hashable, channel: str, parse: Parse) -> None:
        """Subscribe a listener; no signal sent from now on is missed.

        Raises:
            redis.RedisError, OSError: the connection broke; every listener must be added again.
        """
        name = channel.encode()
        with _Guard(self):
            if self._selector is None:
                self._connect()
                self._forget_wakes()
            self._connection.send_command("SUBSCRIBE", channel, check_health=False)
            while self._receive() != (b"subscribe", name):
                pass
        self._listeners.setdefault(name, {})[listener] = parse
        self._listening.add(listener)

    def wait(self, timeout: float) -> None:
        """Wait until there are signals for anybody, the time is up or `wake` was called.

        Raises:
            redis.RedisError, OSError: the connection broke; every listener must be added again.
        """
        with _Guard(self):
            if self._selector is None:
                raise redis.ConnectionError("the subscription was dropped")
            self._listen(self._selector, time.monotonic() + timeout)

    def take(self, listener: Hashable) -> list[Any]:
        """Return what a listener has heard."""
        return self._heard.pop(listener, [])

    def take_all(self) -> dict[Hashable, list[Any]]:
        """Return what was heard, by listener."""
        heard, self._heard = self._heard, {}
        return heard

    def wake(self) -> None:
        """Interrupt the current `wait`, or the next one."""
        with suppress(OSError):  # full: it is already awake; closed: nobody waits
            self._wake.send(b"\0")

    def disconnect(self) -> None:
        """Drop the connection; the next listener that is added makes another."""
        if self._selector is not None:
            self._selector.close()
            self._selector = None
        self._listeners.clear()
        self._listening.clear()
        self._heard.clear()
        self._connection.disconnect()

    def close(self) -> None:
        """Disconnect for good."""
        self.disconnect()
        self._wake.close()
        self._woken.close()

    def _connect(self) -> None:
        self._connection.connect()
        self._heard_at, self._pinged_at = time.monotonic(), None
        # Looked up late, because gevent and eventlet replace it. Kombu too takes a connection's socket this way.
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._connection._sock, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def _listen(self, selector: selectors.BaseSelector, deadline: float) -> None:
        while True:
            while self._connection.can_read(0):
                self._receive()
            now = time.monotonic()
            if self._heard or now >= deadline:
                return
            check_at = self._check(now)
            ready = selector.select(max(0.0, min(deadline, check_at) - now))
            if any(key.fileobj is self._woken for key, _ in ready):
                self._forget_wakes()
                deadline = now  # return with what has arrived

    def _receive(self) -> tuple[bytes, bytes]:
        """Read one reply, pass it on if it is a signal, and return its kind and its channel."""
        kind, *rest = self._connection.read_response()
        self._heard_at, self._pinged_at = time.monotonic(), None
        if kind == b"message":
            channel, payload = rest
            for listener, parse in self._listeners.get(channel, {}).items():
                if (signal := parse(payload)) is not None:
                    self._heard.setdefault(listener, []).append(signal)
        return kind, rest[0]

    def _check(self, now: float) -> float:
        """Send a PING, or raise if the last one is overdue; return when to check again."""
        if self._pinged_at is not None:
            overdue_at = self._pinged_at + self._answer_timeout
            if now >= overdue_at:
                raise redis.TimeoutError("the subscription does not answer")
            return overdue_at
        if now >= self._heard_at + PING_AFTER:
            self._connection.send_command("PING", check_health=False)
            self._pinged_at = now
            return now + self._answer_timeout
        return self._heard_at + PING_AFTER

    def _forget_wakes(self) -> None:
        with suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass


class _Guard:
    """Drops the connection if the block raises."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._subscription.disconnect()
