"""What a channel consumes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from celery_sticky.queues.sql.names import queue_number
from celery_sticky.transport.sql.broadcasts import Broadcast, Reader
from celery_sticky.transport.sql.envelope import decode
from celery_sticky.transport.sql.inbox import Delivery


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


def broadcasts_for(subscriptions: Sequence[Subscription], reader: Reader) -> list[Delivery]:
    """Read broadcasts, if anybody listens; return a delivery for each queue that gets one."""
    listening = [(one, topic) for one in subscriptions for topic in one.topics]
    if not listening:
        return []
    reader.start(min(topic.since for _, topic in listening))
    return [
        Delivery(queue, payload, None)
        for row in reader.read()
        for queue in {one.queue: None for one, topic in listening if topic.matches(row)}
        if (payload := decode(row.body)) is not None
    ]
