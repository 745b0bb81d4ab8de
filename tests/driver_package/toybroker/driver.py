"""The driver of `toy://`. Its parts are imported when they are opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from celery_sticky.drivers import Driver
from celery_sticky.queues.base import SlotQueues
from celery_sticky.queues.guarantees import FULL
from celery_sticky.stores.base import Store

GUARANTEES = replace(FULL, moves=False)


def open_queues(connection: Any, *, prefix: str, socket_timeout: float) -> SlotQueues:
    """Return the slot queues. `connection` has host, user, password and `transport_options`, as Kombu reads them."""
    from toybroker import server
    from toybroker.queues import ToyQueues

    return ToyQueues(server.broker(prefix))


def open_store(connection: Any, keyspace: str, *, prefix: str, socket_timeout: float) -> Store:
    """Return the store of ownership of one keyspace."""
    from celery_sticky.stores.memory.store import MemoryStore
    from toybroker import server

    return MemoryStore(server.store(connection.hostname or "", prefix), keyspace)


def declare(queue: Any, prefix: str) -> Sequence[Any]:
    """Have Kombu declare the slot queue: the server drops messages for a queue that does not exist."""
    return (queue,)


DRIVER = Driver(
    name="Toy",
    schemes=("toy",),
    transports=("toybroker.transport:Transport",),
    guarantees=GUARANTEES,
    queues=open_queues,
    store=open_store,
    declare=declare,
    one_process=True,
)
