"""The driver of PostgreSQL, MySQL, MariaDB and SQLite. It has no store of jobs yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_sticky.drivers.base import Checkup, Driver
from celery_sticky.queues.base import SlotQueues
from celery_sticky.queues.guarantees import ON_SQL
from celery_sticky.stores.base import Store
from celery_sticky.stores.placement import PlacementStore

if TYPE_CHECKING:
    from celery_sticky.sql import Database


def open_queues(connection: Any, *, prefix: str, socket_timeout: float) -> SlotQueues:
    """See `OpenQueues`."""
    from celery_sticky.queues.sql import SqlQueues
    from celery_sticky.sql import Address
    from celery_sticky.sql.tables import table_prefix

    return SqlQueues(
        Address.of(connection),
        prefix=prefix,
        socket_timeout=socket_timeout,
        table_prefix=table_prefix(connection.transport_options),
    )


def open_store(connection: Any, keyspace: str, *, prefix: str, socket_timeout: float) -> Store:
    """See `OpenStore`."""
    from celery_sticky.stores.sql import SqlStore

    return SqlStore(_database(connection, socket_timeout), keyspace, prefix=prefix)


def open_placement_store(connection: Any, keyspace: str, *, prefix: str, socket_timeout: float) -> PlacementStore:
    """See `OpenStore`."""
    from celery_sticky.stores.sql.placement import SqlPlacementStore

    return SqlPlacementStore(_database(connection, socket_timeout), keyspace, prefix=prefix)


def checkup() -> Checkup:
    """Return the checks of a database."""
    from celery_sticky.queues.sql import checkup

    return checkup


def _database(connection: Any, timeout: float) -> Database:
    from celery_sticky.errors import StoreUnavailable
    from celery_sticky.sql import Address, Database
    from celery_sticky.sql.tables import table_prefix

    prefix = table_prefix(connection.transport_options)
    return Database(Address.of(connection), timeout=timeout, unavailable=StoreUnavailable, prefix=prefix)


DRIVER = Driver(
    name="PostgreSQL, MySQL, MariaDB or SQLite",
    schemes=("sticky+postgresql", "sticky+mysql", "sticky+sqlite"),
    transports=("celery_sticky.transport.sql.transport:Transport",),
    guarantees=ON_SQL,
    queues=open_queues,
    store=open_store,
    placement_store=open_placement_store,
    checkup=checkup,
)
