"""Drivers: one for each kind of server. What a process needs of a server is opened here, from its Kombu connection."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from kombu import Connection

from celery_sticky.drivers.base import Checkup, Driver, Failures
from celery_sticky.drivers.needs import check_guarantees
from celery_sticky.drivers.registry import all_drivers, find_driver, hints, known_connection, listing
from celery_sticky.errors import InvalidSettings
from celery_sticky.one_server import check_one_server
from celery_sticky.queues.base import SlotQueues
from celery_sticky.queues.guarantees import Guarantees
from celery_sticky.stores.base import Store
from celery_sticky.stores.jobs import JobStore
from celery_sticky.stores.placement import PlacementStore
from celery_sticky.stores.shared import OwnClient, SharedClient

__all__ = [
    "Checkup",
    "Driver",
    "Failures",
    "all_drivers",
    "broker_driver",
    "find_driver",
    "guarantees_of",
    "known_connection",
    "open_job_store",
    "open_placement_store",
    "open_queues",
    "open_shared",
    "open_store",
    "shares_clients",
]

Part = TypeVar("Part")


def broker_driver(connection: Connection) -> Driver:
    """Return the driver of the broker of keyed tasks. It sends nothing.

    Raises:
        InvalidSettings: there are no slot queues for this broker (nobody would fetch a keyed message there), they lack
            a guarantee that keyed tasks need, or the connection names several servers.
    """
    driver = find_driver(connection)
    check_one_server(connection, driver.lists if driver is not None else ())
    if driver is None or driver.queues is None:
        raise InvalidSettings(
            f"celery-sticky has no slot queues for {connection.as_uri()}: the broker of keyed tasks must be "
            f"{listing(lambda one: one.queues is not None)}. Change broker_url, or leave out key= to send the task to "
            f"an ordinary queue{hints()}"
        )
    check_guarantees(driver, connection)
    return driver


def guarantees_of(connection: Connection) -> Guarantees | None:
    """Return what the slot queues at a broker guarantee; None if no driver serves it. It sends nothing."""
    driver = find_driver(connection)
    return driver.guarantees if driver is not None else None


def open_queues(connection: Connection, *, prefix: str, socket_timeout: float) -> SlotQueues:
    """Open the slot queues at the broker of an app's Kombu connection; each call creates a client of its own.

    `memory://` selects this package's own broker, shared by the whole process, instead of Kombu's.

    Raises:
        InvalidSettings: see `broker_driver`; or its transport options cannot be used.
        MissingDependency: the client library is not installed.
    """
    queues = broker_driver(connection).queues
    assert queues is not None
    return queues(connection, prefix=prefix, socket_timeout=socket_timeout)


def open_store(where: str | Connection, keyspace: str, *, prefix: str = "sticky", socket_timeout: float = 2.0) -> Store:
    """Open the store of one keyspace, from a URL or from a Kombu connection such as the app's own broker's.

    Nothing is sent before the first verb. `memory://<name>` is one store for this whole process.

    Raises:
        InvalidSettings: this kind of URL has no store, or its options cannot be used.
        MissingDependency: the client library is not installed.
    """
    connection, open_it = _part(where, "store", lambda driver: driver.store)
    return open_it(connection, keyspace, prefix=prefix, socket_timeout=socket_timeout)


def open_job_store(
    where: str | Connection, keyspace: str, *, prefix: str = "sticky", socket_timeout: float = 2.0
) -> JobStore:
    """Open the job store of one keyspace, as `open_store` does."""
    connection, open_it = _part(where, "job store", lambda driver: driver.job_store)
    return open_it(connection, keyspace, prefix=prefix, socket_timeout=socket_timeout)


def open_placement_store(
    where: str | Connection, keyspace: str, *, prefix: str = "sticky", socket_timeout: float = 2.0
) -> PlacementStore:
    """Open the placement store of one keyspace, as `open_store` does."""
    connection, open_it = _part(where, "placement store", lambda driver: driver.placement_store)
    return open_it(connection, keyspace, prefix=prefix, socket_timeout=socket_timeout)


def shares_clients(where: Connection) -> bool:
    """Return whether the stores of many keyspaces at this server can share one client."""
    driver = find_driver(where)
    return driver is not None and driver.shared is not None


def open_shared(where: Connection, *, prefix: str = "sticky", socket_timeout: float = 2.0) -> SharedClient:
    """Open one client for the stores of many keyspaces, or for one keyspace if the driver cannot share a client."""
    driver = find_driver(where)
    if driver is not None and driver.shared is not None:
        check_one_server(where, driver.lists)
        return driver.shared(where, prefix=prefix, socket_timeout=socket_timeout)
    return OwnClient(
        partial(open_store, where, prefix=prefix, socket_timeout=socket_timeout),
        partial(open_placement_store, where, prefix=prefix, socket_timeout=socket_timeout),
        partial(open_job_store, where, prefix=prefix, socket_timeout=socket_timeout),
    )


def _part(where: str | Connection, what: str, part: Callable[[Driver], Part | None]) -> tuple[Any, Part]:
    """Return the connection to a server, and how to open a part there."""
    connection = known_connection(lambda: Connection(where) if isinstance(where, str) else where)
    driver = find_driver(connection)
    check_one_server(connection, driver.lists if driver is not None else ())
    found = part(driver) if driver is not None else None
    if found is None:
        raise InvalidSettings(
            f"celery-sticky has no {what} for {connection.as_uri()}: it must be "
            f"{listing(lambda one: part(one) is not None)}. Change sticky_store{hints()}"
        )
    return connection, found
