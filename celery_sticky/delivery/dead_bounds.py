"""Keeps the dead queues of a worker's keyspaces within their limits, and warns if unlimited ones grow large."""

from __future__ import annotations

import logging
from collections.abc import Collection

from celery_sticky.delivery.requests import BrokerFlow, CountDead, TrimDead
from celery_sticky.errors import SlotBroken

logger = logging.getLogger("celery_sticky.dead")

MANY = 10_000
"""Number of buried messages in one keyspace that triggers a warning."""
LOOK = 30.0
"""Seconds between two checks."""


class DeadBounds:
    """Keeps the dead queues within their limits, as a part of the courier's flow. Several workers may do so at once."""

    def __init__(self, limit: int, ttl: float) -> None:
        self.next_look = 0.0
        """When to check again, in seconds since the epoch."""
        self._limit, self._ttl = limit, ttl
        self._dropped: dict[str, int] = {}
        self._warned: set[str] = set()

    def keep(self, keyspaces: Collection[str], now: float) -> BrokerFlow[None]:
        """Drop one bounded batch of messages beyond the limits; do nothing before `next_look`.

        Raises:
            BrokerUnavailable: the broker does not answer.
        """
        if now < self.next_look:
            return
        self.next_look = now + LOOK
        for keyspace in keyspaces:
            try:
                if self._limit or self._ttl:
                    yield from self._trim(keyspace, now)
                yield from self._warn(keyspace)
            except SlotBroken as error:
                logger.error("keyspace %s: %s. Nothing can be buried there until it is repaired", keyspace, error)

    def _trim(self, keyspace: str, now: float) -> BrokerFlow[None]:
        before = now - self._ttl if self._ttl else 0.0
        dropped: int = yield TrimDead(keyspace, self._limit, before)
        if dropped:
            self._dropped[keyspace] = self._dropped.get(keyspace, 0) + dropped
            self.next_look = now  # there may be more: continue with the next turn
        elif total := self._dropped.pop(keyspace, 0):
            logger.warning(
                "keyspace %s: dropped its %d oldest buried messages, which exceeded sticky_dead_limit or "
                "sticky_dead_ttl",
                keyspace,
                total,
            )

    def _warn(self, keyspace: str) -> BrokerFlow[None]:
        count: int = yield CountDead(keyspace)
        if count < MANY:
            self._warned.discard(keyspace)
        elif keyspace not in self._warned:
            self._warned.add(keyspace)
            logger.warning(
                "keyspace %s: %d messages are buried, and each uses memory at the broker. List them with "
                "'celery sticky dead list', then retry or drop them, or set sticky_dead_limit or sticky_dead_ttl",
                keyspace,
                count,
            )
