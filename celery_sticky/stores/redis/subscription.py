"""The subscription of a Redis store: one pub/sub connection whose wait another thread can interrupt.

While it waits it sends nothing, except a PING after a long silence: otherwise a connection whose other end vanished
would stay silent forever.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import redis

Heard = TypeVar("Heard")
"""A signal."""

PING_AFTER = 10.0
"""Seconds of silence before a PING."""


class Subscription(Generic[Heard]):
    """Listens on one channel. Not thread-safe, except `wake`."""

    def __init__(
        self, client: redis.Redis, channel: str, parse: Callable[[bytes], Heard | None], answer_timeout: float
    ) -> None:
        # A connection made by the pool that never returns to it; it reconnects on demand.
        self._connection: Any = client.connection_pool.make_connection()
        self._channel = channel
        self._parse = parse
        self._answer_timeout = answer_timeout
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        self._selector: selectors.BaseSelector | None = None
        self._heard_at = 0.0
        self._pinged_at: float | None = None

    def wait(self, timeout: float) -> list[Heard]:
        """Return signals, or none when the time is up or `wake` was called. The first call only subscribes.

        Raises:
            redis.RedisError, OSError: the subscription broke; the next call subscribes again.
        """
        try:
            if self._selector is None:
                self._subscribe()
                self._forget_wakes()
                return []
            return self._listen(self._selector, time.monotonic() + timeout)
        except BaseException:
            self.disconnect()
            raise

    def wake(self) -> None:
        """Interrupt the current `wait`, or the next one."""
        with suppress(OSError):  # full: it is already awake; closed: nobody waits
            self._wake.send(b"\0")

    def disconnect(self) -> None:
        """Drop the connection; the next `wait` makes another."""
        if self._selector is not None:
            self._selector.close()
            self._selector = None
        self._connection.disconnect()

    def close(self) -> None:
        """Disconnect for good."""
        self.disconnect()
        self._wake.close()
        self._woken.close()

    def _subscribe(self) -> None:
        self._connection.connect()
        self._connection.send_command("SUBSCRIBE", self._channel, check_health=False)
        self._connection.read_response()  # from here on no signal can be missed
        self._heard_at, self._pinged_at = time.monotonic(), None
        # Looked up late, because gevent and eventlet replace it. Kombu too takes a connection's socket this way.
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._connection._sock, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def _listen(self, selector: selectors.BaseSelector, deadline: float) -> list[Heard]:
        while True:
            signals = self._take()
            now = time.monotonic()
            if signals or now >= deadline:
                return signals
            check_at = self._check(now)
            ready = selector.select(max(0.0, min(deadline, check_at) - now))
            if any(key.fileobj is self._woken for key, _ in ready):
                self._forget_wakes()
                return self._take()

    def _take(self) -> list[Heard]:
        """Return the signals that have arrived, without waiting."""
        signals = []
        while self._connection.can_read(0):
            kind, *_, payload = self._connection.read_response()
            self._heard_at, self._pinged_at = time.monotonic(), None
            signal = self._parse(payload) if kind == b"message" else None
            if signal is not None:
                signals.append(signal)
        return signals

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
