"""The stores of a keyspace: its ownership view (contract: `base`), jobs (`jobs`), claims and pins (`placement`)."""

from __future__ import annotations

from kombu import Connection

from celery_sticky.errors import InvalidSettings
from celery_sticky.stores.base import Heartbeat, Reading, Signal, Store
from celery_sticky.stores.jobs import JobStore
from celery_sticky.stores.memory.jobs import MemoryJobs, memory_job_server
from celery_sticky.stores.memory.placement import MemoryPlacementStore
from celery_sticky.stores.memory.store import MemoryStore, memory_server
from celery_sticky.stores.placement import PlacementStore

__all__ = [
    "Heartbeat",
    "JobStore",
    "PlacementStore",
    "Reading",
    "Signal",
    "Store",
    "open_job_store",
    "open_placement_store",
    "open_store",
]

SCHEMES = "memory://, redis://, rediss://, redis+socket://, sentinel://"


def open_store(where: str | Connection, keyspace: str, *, prefix: str = "sticky", socket_timeout: float = 2.0) -> Store:
    """Open the store of one keyspace, from a URL or from a Kombu connection such as the app's own broker's.

    Nothing is sent before the first verb. `memory://<name>` is one store for this whole process.

    Raises:
        InvalidSettings: this kind of URL has no store, or its options cannot be used.
        MissingDependency: the client library is not installed.
    """
    connection = _connection(where)
    if _is_memory(connection):
        return MemoryStore(memory_server(connection.hostname or "", prefix), keyspace)
    from celery_sticky.stores.redis import RedisStore

    return RedisStore(connection, keyspace, prefix=prefix, socket_timeout=socket_timeout)


def open_job_store(
    where: str | Connection, keyspace: str, *, prefix: str = "sticky", socket_timeout: float = 2.0
) -> JobStore:
    """Open the job store of one keyspace, as `open_store` does."""
    connection = _connection(where)
    if _is_memory(connection):
        return MemoryJobs(memory_job_server(connection.hostname or "", prefix), keyspace)
    from celery_sticky.stores.redis.jobs import RedisJobs

    return RedisJobs(connection, keyspace, prefix=prefix, socket_timeout=socket_timeout)


def open_placement_store(
    where: str | Connection, keyspace: str, *, prefix: str = "sticky", socket_timeout: float = 2.0
) -> PlacementStore:
    """Open the placement store of one keyspace, as `open_store` does."""
    connection = _connection(where)
    if _is_memory(connection):
        return MemoryPlacementStore(memory_server(connection.hostname or "", prefix), keyspace)
    from celery_sticky.stores.redis.placement import RedisPlacementStore

    return RedisPlacementStore(connection, keyspace, prefix=prefix, socket_timeout=socket_timeout)


def _connection(where: str | Connection) -> Connection:
    try:
        connection = Connection(where) if isinstance(where, str) else where
        connection.get_transport_cls()
    except (KeyError, ImportError) as error:
        raise InvalidSettings(f"no store for this URL ({error}): supported are {SCHEMES}") from error
    return connection


def _is_memory(connection: Connection) -> bool:
    """Return whether the connection is in memory; refuse it if it is neither that nor Redis."""
    if connection.transport_cls == "memory":
        return True
    from celery_sticky.redis_clients import is_redis

    if not is_redis(connection):
        raise InvalidSettings(f"no store for {connection.transport_cls}://: supported are {SCHEMES}")
    return False
