"""The driver of `memory://`: the broker and the store are in the memory of one process. It serves tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery_sticky.drivers.base import Driver
from celery_sticky.queues.base import SlotQueues
from celery_sticky.queues.guarantees import FULL
from celery_sticky.stores.base import Store
from celery_sticky.stores.jobs import JobStore
from celery_sticky.stores.placement import PlacementStore


def open_queues(connection: Any, *, prefix: str, socket_timeout: float) -> SlotQueues:
    """See `OpenQueues`. Kombu's transport has one broker in a process, and so have we, whatever the URL names."""
    from celery_sticky.queues.memory import MemoryQueues, process_broker

    return MemoryQueues(process_broker(prefix))


def declare(queue: Any, prefix: str) -> Sequence[Any]:
    """Connect the slot queue's name at Kombu's transport with the broker that workers read."""
    from celery_sticky.queues.memory_inbox import connect

    connect(queue.name, prefix)
    return ()


def open_store(connection: Any, keyspace: str, *, prefix: str, socket_timeout: float) -> Store:
    """See `OpenStore`."""
    from celery_sticky.stores.memory.store import MemoryStore, memory_server

    return MemoryStore(memory_server(connection.hostname or "", prefix), keyspace)


def open_placement_store(connection: Any, keyspace: str, *, prefix: str, socket_timeout: float) -> PlacementStore:
    """See `OpenStore`."""
    from celery_sticky.stores.memory.placement import MemoryPlacementStore
    from celery_sticky.stores.memory.store import memory_server

    return MemoryPlacementStore(memory_server(connection.hostname or "", prefix), keyspace)


def open_job_store(connection: Any, keyspace: str, *, prefix: str, socket_timeout: float) -> JobStore:
    """See `OpenStore`."""
    from celery_sticky.stores.memory.jobs import MemoryJobs, memory_job_server

    return MemoryJobs(memory_job_server(connection.hostname or "", prefix), keyspace)


DRIVER = Driver(
    name="the memory of one process",
    schemes=("memory",),
    transports=("kombu.transport.memory:Transport",),
    guarantees=FULL,
    queues=open_queues,
    store=open_store,
    placement_store=open_placement_store,
    job_store=open_job_store,
    declare=declare,
    one_process=True,
)
