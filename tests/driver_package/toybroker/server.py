"""The toy server: it has the queues that were declared, and drops messages for others, as RabbitMQ does."""

from __future__ import annotations

from functools import cache

from celery_sticky.queues.memory import MemoryBroker
from celery_sticky.stores.memory.store import MemoryServer

declared: set[str] = set()
"""The names of the queues that exist."""


@cache
def broker(prefix: str) -> MemoryBroker:
    """Return the messages of the slot queues with this prefix."""
    return MemoryBroker(prefix)


@cache
def store(name: str, prefix: str) -> MemoryServer:
    """Return the ownership records of the store of this name."""
    return MemoryServer()
