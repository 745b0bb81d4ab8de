"""The driver of `memory://`: the broker and the store are in the memory of one process. It serves tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from celery_sticky.drivers.base import Driver
from celery_sticky.queues.base import SlotQueues
from celery_sticky.queues.guarantees import FULL
from celery_sticky.stores.base import Store
from celery_sticky.stores.jobs import JobStore
from celery_sticky.stores.placement import PlacementStore

if TYPE_CHECKING:
    from celery_sticky.stores.memory.shared import MemoryShared


def open_queues(connection: Any, *, prefix: str, socket_timeout: float) -> SlotQueues:
    """See `OpenQueues`. Kombu's transport has one broker in a process, and so have we, whatever the URL names."""
    from celery_sticky.queues.memory import MemoryQueues, process_broker

    return MemoryQueues(process_broker(prefix))


def declare(queue: Any, prefix: str) -> Sequence[Any]:
    """Connect the slot queue's name at Kombu's transport with the broker that workers read."""
    from celery_sticky.queues.memory_inbox import connect

    connect(queue.name, prefix)
    return ()


def open_shared(connection: Any, *, prefix: str, socket_timeout: float) -> MemoryShared:
    """See `OpenShared`."""
    from celery_sticky.stores.memory.shared import MemoryShared

    return MemoryShared(connection.hostname or "", prefix)


def open_store(connection: Any, keyspace: str, *, prefix: str, socket_timeout: float) -> Store:
    """See `OpenStore`."""
    return open_shared(connection, prefix=prefix, socket_timeout=socket_timeout).store(keyspace)


def open_placement_store(connection: Any, keyspace: str, *, prefix: str, socket_timeout: float) -> PlacementStore:
    """See `OpenStore`."""
    return open_shared(connection, prefix=prefix, socket_timeout=socket_timeout).placement_store(keyspace)


def open_job_store(connection: Any, keyspace: str, *, prefix: str, socket_timeout: float) -> JobStore:
    """See `OpenStore`."""
    return open_shared(connection, prefix=prefix, socket_timeout=socket_timeout).job_store(keyspace)


DRIVER = Driver(
    name="the memory of one process",
    schemes=("memory",),
    transports=("kombu.transport.memory:Transport",),
    guarantees=FULL,
    queues=open_queues,
    store=open_store,
    placement_store=open_placement_store,
    job_store=open_job_store,
    shared=open_shared,
    declare=declare,
    one_process=True,
)
