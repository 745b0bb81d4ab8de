"""What a channel consumes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from celery_sticky.queues.sql.names import queue_number
from celery_sticky.transport.sql.broadcasts import Broadcast


@dataclass(frozen=True, slots=True)
class Topic:
    """Broadcasts for a queue: those to an exchange, with a routing key that matches."""

    exchange: str
    pattern: re.Pattern[str] | None
    since: int
    """It gets those with a higher id."""

    def matches(self, row: Broadcast) -> bool:
        """Return whether the queue gets this broadcast."""
        if row.exchange != self.exchange or row.id <= self.since:
            return False
        return self.pattern is None or self.pattern.match(row.routing_key) is not None


@dataclass(frozen=True, slots=True)
class Subscription:
    """A queue that a channel consumes from."""

    queue: str
    channel: int
    no_ack: bool
    topics: tuple[Topic, ...] = ()
    claims: bool = True
    """Whether the queue has messages of its own."""
    temporary: bool = False
    """Whether the queue expires when nobody consumes from it."""
    number: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "number", queue_number(self.queue))
