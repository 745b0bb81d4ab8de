"""The driver of Redis and Valkey."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_sticky.drivers.base import Checkup, Driver
from celery_sticky.errors import MissingDependency
from celery_sticky.queues.base import SlotQueues
from celery_sticky.queues.guarantees import FULL
from celery_sticky.redis_errors import LISTS, Cure, describe, refusal_of
from celery_sticky.stores.base import Store
from celery_sticky.stores.jobs import JobStore
from celery_sticky.stores.placement import PlacementStore

if TYPE_CHECKING:
    from celery_sticky.stores.redis.shared import RedisShared


def open_queues(connection: Any, *, prefix: str, socket_timeout: float) -> SlotQueues:
    """See `OpenQueues`."""
    from celery_sticky.queues.redis import Layout, RedisQueues
    from celery_sticky.redis_clients import client_from_connection

    layout = Layout.of(connection, prefix)
    client = client_from_connection(connection, socket_timeout=socket_timeout, protocol=2)
    return RedisQueues(client, layout, socket_timeout=socket_timeout)


def open_shared(connection: Any, *, prefix: str, socket_timeout: float) -> RedisShared:
    """See `OpenShared`."""
    from celery_sticky.stores.redis.shared import RedisShared

    return RedisShared(connection, prefix=prefix, socket_timeout=socket_timeout)


def open_store(connection: Any, keyspace: str, *, prefix: str, socket_timeout: float) -> Store:
    """See `OpenStore`."""
    return open_shared(connection, prefix=prefix, socket_timeout=socket_timeout).store(keyspace)


def open_placement_store(connection: Any, keyspace: str, *, prefix: str, socket_timeout: float) -> PlacementStore:
    """See `OpenStore`."""
    return open_shared(connection, prefix=prefix, socket_timeout=socket_timeout).placement_store(keyspace)


def open_job_store(connection: Any, keyspace: str, *, prefix: str, socket_timeout: float) -> JobStore:
    """See `OpenStore`."""
    return open_shared(connection, prefix=prefix, socket_timeout=socket_timeout).job_store(keyspace)


def checkup() -> Checkup:
    """Return the checks of a server."""
    from celery_sticky.queues.redis import checkup

    return checkup


class RedisFailures:
    """See `Failures`. The table of refusals is `redis_errors`, which needs no client library."""

    def classes(self) -> tuple[type[Exception], ...]:
        """See `Failures.classes`."""
        try:
            from celery_sticky.redis_clients import CLIENT_ERRORS
        except MissingDependency:
            return ()
        return CLIENT_ERRORS

    def describe(self, error: BaseException) -> str | None:
        """See `Failures.describe`."""
        return describe(error) if refusal_of(error) is not None else None

    def passes(self, error: BaseException) -> bool:
        """See `Failures.passes`."""
        refusal = refusal_of(error)
        return refusal is not None and refusal.cure in (Cure.WAIT, Cure.RECONNECT)


# Redis and Valkey create a list at the first push. A declaration would cost a round trip for every slot and connection,
# and a lookup for every message: the driver declares nothing.
DRIVER = Driver(
    name="Redis or Valkey",
    schemes=("redis", "rediss", "redis+socket", "sentinel"),
    transports=("kombu.transport.redis:Transport", "kombu.transport.redis:SentinelTransport"),
    lists=LISTS,
    guarantees=FULL,
    queues=open_queues,
    store=open_store,
    placement_store=open_placement_store,
    job_store=open_job_store,
    shared=open_shared,
    checkup=checkup,
    failures=RedisFailures(),
)
