"""The driver of PostgreSQL, MySQL, MariaDB and SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_sticky.drivers.base import Checkup, Driver
from celery_sticky.queues.base import SlotQueues
from celery_sticky.queues.guarantees import ON_SQL
from celery_sticky.stores.base import Store
from celery_sticky.stores.jobs import JobStore
from celery_sticky.stores.placement import PlacementStore

if TYPE_CHECKING:
    from celery_sticky.stores.sql.shared import SqlShared


def open_queues(connection: Any, *, prefix: str, socket_timeout: float) -> SlotQueues:
    """See `OpenQueues`."""
    from celery_sticky.errors import BrokerUnavailable
    from celery_sticky.queues.sql import SqlQueues
    from celery_sticky.sql import Database

    database = Database.of(connection, timeout=socket_timeout, unavailable=BrokerUnavailable)
    return SqlQueues(database, prefix=prefix)


def open_shared(connection: Any, *, prefix: str, socket_timeout: float) -> SqlShared:
    """See `OpenShared`."""
    from celery_sticky.errors import StoreUnavailable
    from celery_sticky.sql import Database
    from celery_sticky.stores.sql.shared import SqlShared

    database = Database.of(connection, timeout=socket_timeout, unavailable=StoreUnavailable)
    return SqlShared(database, prefix=prefix)


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
    """Return the checks of a database."""
    from celery_sticky.queues.sql import checkup

    return checkup


DRIVER = Driver(
    name="PostgreSQL, MySQL, MariaDB or SQLite",
    schemes=("sticky+postgresql", "sticky+mysql", "sticky+sqlite"),
    transports=("celery_sticky.transport.sql.transport:Transport",),
    guarantees=ON_SQL,
    queues=open_queues,
    store=open_store,
    placement_store=open_placement_store,
    job_store=open_job_store,
    shared=open_shared,
    checkup=checkup,
)
