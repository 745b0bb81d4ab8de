"""Connects Kombu's in-memory transport with the memory broker.

Kombu's transport keeps a queue object for each name (`Channel.queues`, kombu/transport/memory.py, 5.5 to 5.7) and
publishes with its `put`. For a slot queue we put our own object there first, which passes each message on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from queue import Empty
from typing import Any

from kombu.transport.memory import Channel
from kombu.utils.json import dumps

from celery_sticky.queues.memory import MemoryBroker, process_broker

HIGHEST = 9
"""The highest number of a priority, as in Kombu's virtual transports."""


class Inbox:
    """The part of `queue.Queue` that Kombu's channel uses; it is always empty."""

    def __init__(self, broker: MemoryBroker, name: str) -> None:
        self._broker, self._name = broker, name
        self.queue: deque[Any] = deque()

    def put(self, message: Mapping[str, Any]) -> None:
        """Add a message to the slot queue."""
        priority = message["properties"].get("priority") or 0
        self._broker.publish(self._name, dumps(message).encode(), min(int(priority), HIGHEST))

    def get(self, block: bool = True) -> Any:
        """Raise: Kombu's own consumers read no slot queue."""
        raise Empty

    def qsize(self) -> int:
        """Return 0."""
        return 0

    def empty(self) -> bool:
        """Return True."""
        return True


def connect(name: str, prefix: str) -> None:
    """Make messages that Kombu publishes to the slot queue of this name reach the broker of this process."""
    Channel.queues[name] = Inbox(process_broker(prefix), name)
