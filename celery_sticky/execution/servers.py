"""Refuses, before a worker starts, a broker and a store that cannot do what its keyspaces need. It sends nothing."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from celery.concurrency.prefork import TaskPool as PreforkPool

from celery_sticky.drivers import (
    broker_driver,
    find_driver,
    known_connection,
    open_job_store,
    open_placement_store,
    open_queues,
    open_store,
)
from celery_sticky.drivers.needs import check_ledger, check_moves
from celery_sticky.errors import InvalidSettings
from celery_sticky.keys import DEFAULT_KEYSPACE
from celery_sticky.queues import Guarantees
from celery_sticky.settings import Settings


def check_servers(
    worker: Any,
    where: Any,
    settings: Settings,
    placed: Collection[str],
    jobs: Collection[str],
    claiming: Collection[str],
) -> Guarantees:
    """Check the broker of a worker's app and its store `where`, for its keyspaces that are placed or have jobs.

    `claiming`: the tasks that use a ledger. Return what the broker guarantees.

    Raises:
        InvalidSettings: the broker or the store has no driver, or cannot do what a keyspace needs.
        MissingDependency: a client library is not installed.
    """
    broker = known_connection(worker.app.connection_for_read)
    driver = broker_driver(broker)
    if placed:
        check_moves(driver, broker, ", ".join(placed))
    if claiming:
        check_ledger(driver, broker, ", ".join(claiming))
    if driver.one_process:
        _check_pool(worker, broker)
    if jobs and (driver.one_process or keeps_in_process(where)):
        raise InvalidSettings(
            f"keyspaces {', '.join(jobs)} have jobs, which run in a process of their own. It cannot reach "
            f"{(broker if driver.one_process else where).as_uri()}, which is in the memory of this process. Use a "
            "server for jobs, or let this worker take part in other keyspaces only (sticky_keyspaces)"
        )
    # Opening what the worker will need refuses options that a driver cannot use.
    prefix, timeout = settings.key_prefix, settings.io_timeout
    open_queues(broker, prefix=prefix, socket_timeout=timeout).close()
    open_store(where, DEFAULT_KEYSPACE, prefix=prefix, socket_timeout=timeout).close()
    if placed:
        open_placement_store(where, DEFAULT_KEYSPACE, prefix=prefix, socket_timeout=timeout).close()
    if jobs:
        open_job_store(where, DEFAULT_KEYSPACE, prefix=prefix, socket_timeout=timeout).close()
    assert driver.guarantees is not None, "a broker without them is refused"
    return driver.guarantees


def keeps_in_process(where: Any) -> bool:
    """Return whether a store is in the memory of this process: then no other process can ever have used it."""
    driver = find_driver(where)
    return driver is not None and driver.one_process


def _check_pool(worker: Any, broker: Any) -> None:
    pool = worker.pool_cls
    if issubclass(pool, PreforkPool) or pool.is_green:
        why = "a greenlet" if pool.is_green else "another process"
        raise InvalidSettings(
            f"{broker.as_uri()} is in the memory of one process, for its threads: a task that runs in {why} cannot "
            "use it. Start the worker with --pool=solo or --pool=threads"
        )
