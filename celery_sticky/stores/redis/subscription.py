"""The subscription of Redis stores: the channels of all of them, on the connection that also carries their requests.

While it waits it sends nothing, except a PING after a long silence: otherwise a connection whose other end vanished
would stay silent forever. A server that cannot push (older than 6.0, or behind a proxy) sends no signals; signals are
hints, so everything works, but later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any

from celery_sticky.errors import StoreUnavailable
from celery_sticky.redis_resp import Push, ServerError, pack
from celery_sticky.redis_wire import Wire

PING_AFTER = 10.0
"""Seconds of silence before a PING."""
PING = pack("PING")

Parse = Callable[[bytes], object]
"""Returns the signal in a payload, or None if there is none for this listener."""


class Subscription:
    """Listens on the channels of its listeners. Used by one thread."""

    def __init__(self) -> None:
        self._listeners: dict[bytes, dict[Hashable, Parse]] = {}
        """Channel → its listeners."""
        self._listening: set[Hashable] = set()
        self._heard: dict[Hashable, list[Any]] = {}
        """Listener → signals that it has not taken yet."""
        self._connection = 0
        """The number of the connection that is subscribed."""
        self._heard_at = 0.0

    def listens(self, wire: Wire, listener: Hashable) -> bool:
        """Return whether a listener is subscribed."""
        return self._lasts(wire) and listener in self._listening

    def add(self, wire: Wire, listener: Hashable, channel: str, parse: Parse) -> ServerError | None:
        """Subscribe a listener: no signal sent from now on is missed. Return the server's refusal, if there is one.

        Raises:
            StoreUnavailable: the connection broke; every listener must be added again.
        """
        if not self._lasts(wire):
            self.clear()
            self._said(wire.call(PING))
            self._connection = wire.connects
            wire.forget_wakes()
        name = channel.encode()
        if wire.pushes and name not in self._listeners:
            # What SUBSCRIBE answers is a push; the reply to PING comes after it.
            [reply] = self._said(wire.call(pack("SUBSCRIBE", channel) + PING))
            if isinstance(reply, ServerError):
                wire.drop()  # another reply follows
                return reply
        self._listeners.setdefault(name, {})[listener] = parse
        self._listening.add(listener)
        return None

    def wait(self, wire: Wire, timeout: float) -> None:
        """Wait until there are signals for anybody, the time is up or `Wire.wake` was called.

        Raises:
            StoreUnavailable: the connection broke; every listener must be added again.
        """
        deadline = time.monotonic() + timeout
        while not self._heard:
            if not self._lasts(wire):
                raise StoreUnavailable("the subscription was dropped")
            now = time.monotonic()
            if now >= self._heard_at + PING_AFTER:
                self._ping(wire)
                continue
            woken = wire.wait(max(0.0, min(deadline, self._heard_at + PING_AFTER) - now))
            if woken or time.monotonic() >= deadline:
                return

    def hear(self, push: Push) -> None:
        """Take in what the server has pushed."""
        self._heard_at = time.monotonic()
        match push:
            case [b"message", bytes(channel), bytes(payload)]:
                for listener, parse in self._listeners.get(channel, {}).items():
                    if (signal := parse(payload)) is not None:
                        self._heard.setdefault(listener, []).append(signal)

    def take(self, listener: Hashable) -> list[Any]:
        """Return what a listener has heard."""
        return self._heard.pop(listener, [])

    def take_all(self) -> dict[Hashable, list[Any]]:
        """Return what was heard, by listener."""
        heard, self._heard = self._heard, {}
        return heard

    def clear(self) -> None:
        """Forget all listeners."""
        self._listeners.clear()
        self._listening.clear()
        self._heard.clear()

    def _ping(self, wire: Wire) -> None:
        try:
            self._said(wire.call(PING))
        except StoreUnavailable as error:
            raise StoreUnavailable(f"{error}: the subscription does not answer") from error.__cause__

    def _lasts(self, wire: Wire) -> bool:
        return wire.connected and wire.connects == self._connection

    def _said(self, replies: list[object]) -> list[object]:
        self._heard_at = time.monotonic()
        return replies
