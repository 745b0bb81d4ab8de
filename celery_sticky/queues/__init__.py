"""Slot queues at a broker: `base` has the contract; each driver is a file or folder of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_sticky.errors import InvalidSettings
from celery_sticky.queues.base import (
    Dead,
    Delivery,
    Depth,
    Disposition,
    Fetched,
    Guarantees,
    Outcome,
    SlotQueues,
    Tag,
    Tenure,
    Want,
)

if TYPE_CHECKING:
    from kombu import Connection

__all__ = [
    "Dead",
    "Delivery",
    "Depth",
    "Disposition",
    "Fetched",
    "Guarantees",
    "Outcome",
    "SlotQueues",
    "Tag",
    "Tenure",
    "Want",
    "check_broker",
    "open_queues",
]


def open_queues(connection: Connection, *, prefix: str, socket_timeout: float) -> SlotQueues:
    """Return the slot queues at the broker of an app's Kombu connection; each call creates a client of its own.

    `memory://` selects this package's own broker, shared by the whole process, instead of Kombu's.

    Raises:
        InvalidSettings: there is no driver for this broker, or its transport options cannot be used.
        MissingDependency: the client library is not installed.
    """
    check_broker(connection)
    if _is_memory(connection):
        from celery_sticky.queues.memory import MemoryQueues, process_broker

        return MemoryQueues(process_broker(prefix))
    from celery_sticky.queues.redis import Layout, RedisQueues
    from celery_sticky.redis_clients import client_from_connection

    layout = Layout.of(connection, prefix)
    client = client_from_connection(connection, socket_timeout=socket_timeout, protocol=2)
    return RedisQueues(client, layout, socket_timeout=socket_timeout)


def check_broker(connection: Connection) -> None:
    """Refuse a broker at which there are no slot queues: nobody would fetch a keyed message there. It sends nothing.

    Raises:
        InvalidSettings: there is no driver for this broker.
    """
    from celery_sticky.redis_clients import is_redis

    if not _is_memory(connection) and not is_redis(connection):
        raise InvalidSettings(
            f"celery-sticky has no slot queues for {connection.as_uri()}: the broker of keyed tasks must be Redis or "
            "Valkey (redis://, rediss://, redis+socket://, sentinel://) or memory://. Change broker_url, or leave out "
            "key= to send the task to an ordinary queue"
        )


def _is_memory(connection: Connection) -> bool:
    from kombu.transport.memory import Transport as MemoryTransport

    return issubclass(connection.get_transport_cls(), MemoryTransport)
