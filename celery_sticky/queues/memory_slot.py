"""One slot's queue in a broker in memory."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from celery_sticky.queues.base import Tag, Tenure
from celery_sticky.queues.guarantees import FULL

STEPS = FULL.priorities


@dataclass(slots=True)
class Message:
    """A message at the broker."""

    priority: int
    body: bytes
    counted_starts: int | None = None
    place: int = 0
    """Its position in the order in which messages came to their list."""


@dataclass(slots=True)
class SlotQueue:
    """The queue of one slot."""

    fence: Tenure | None = None
    seq: int = 0
    lists: dict[int, deque[Message]] = field(default_factory=lambda: {step: deque() for step in STEPS})
    """The left end is the front."""
    flight: dict[Tag, Message] = field(default_factory=dict)
    deferred: list[tuple[float, int, Message]] = field(default_factory=list)
    """Due time, delivery number, message; sorted."""

    @property
    def waiting(self) -> list[Message]:
        """The messages that can be fetched, in that order."""
        return [message for step in STEPS for message in self.lists[step]]
