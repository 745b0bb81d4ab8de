"""Keeps the dead queues of a worker's keyspaces within their limits, and warns if unlimited ones grow large."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from celery_sticky.delivery.requests import BrokerFlow, CountDead, TrimDead
from celery_sticky.errors import SlotBroken
from celery_sticky.keyspace import DeadBounds

logger = logging.getLogger("celery_sticky.dead")

MANY = 10_000
"""Number of buried messages in one keyspace that triggers a warning."""
LOOK = 30.0
"""Seconds between two checks."""


class DeadTrimmer:
    """Keeps dead queues within their bounds, as a part of the courier's flow. Several workers may do so at once.

    `bounds` are by keyspace; the others have none.
    """

    def __init__(self, bounds: Mapping[str, DeadBounds]) -> None:
        self.next_look = 0.0
        """When to check again, in seconds since the epoch."""
        self._bounds = bounds
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
        broken: dict[str, SlotBroken] = {}
        for keyspace in keyspaces:
            if not (bounds := self._bounds.get(keyspace)):
                continue
            try:
                yield from self._trim(keyspace, bounds, now)
            except SlotBroken as error:
                broken[keyspace] = error
        counts: Mapping[str, int | SlotBroken] = yield CountDead(tuple(keyspaces))
        for keyspace, count in {**counts, **broken}.items():
            if isinstance(count, SlotBroken):
                logger.error("keyspace %s: %s. Nothing can be buried there until it is repaired", keyspace, count)
            else:
                self._warn(keyspace, count)

    def _trim(self, keyspace: str, bounds: DeadBounds, now: float) -> BrokerFlow[None]:
        before = now - bounds.ttl if bounds.ttl else 0.0
        dropped: int = yield TrimDead(keyspace, bounds.limit, before)
        if dropped:
            self._dropped[keyspace] = self._dropped.get(keyspace, 0) + dropped
            self.next_look = now  # there may be more: continue with the next turn
        elif total := self._dropped.pop(keyspace, 0):
            logger.warning(
                "keyspace %s: dropped its %d oldest buried messages: %s (sticky_dead_limit, sticky_dead_ttl, or "
                "dead_limit and dead_ttl of the Keyspace)",
                keyspace,
                total,
                _kept(bounds),
            )

    def _warn(self, keyspace: str, count: int) -> None:
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


def _kept(bounds: DeadBounds) -> str:
    """Return what is kept, in words."""
    most = f"at most {bounds.limit} are kept" if bounds.limit else "they are kept"
    return f"{most} for {bounds.ttl:g} s" if bounds.ttl else most
