"""The threads of a worker's loops that ask the store: one for each kind of loop, whatever the number of keyspaces."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, TypeVar

from celery_sticky.drivers import open_shared, shares_clients
from celery_sticky.membership.clerk import URGENT
from celery_sticky.platform.flow_thread import FlowThread
from celery_sticky.platform.native import start_native_thread, start_thread
from celery_sticky.settings import Settings
from celery_sticky.stores import JobStore, PlacementStore, Store
from celery_sticky.stores.shared import AnyStore

Kept = TypeVar("Kept", bound=AnyStore)

ThreadOf = Callable[[], FlowThread[Kept]]
"""Returns the thread for one more keyspace: always the same one, or another each time if the driver shares nothing."""


def member_threads(where: Any, settings: Settings) -> ThreadOf[Store]:
    """Return the threads of members: threads of the operating system, so that no greenlet delays heartbeats."""
    return _threads(where, settings, start_native_thread, urgent=URGENT)


def placer_threads(where: Any, settings: Settings) -> ThreadOf[PlacementStore]:
    """Return the threads of placers: greenlets if the worker has greenlets, like the courier."""
    return _threads(where, settings, partial(start_thread, name="sticky-placer"))


def keeper_threads(where: Any, settings: Settings) -> ThreadOf[JobStore]:
    """Return the threads of keepers: threads of the operating system, so that no greenlet delays a stop.

    No verb is urgent. What has a deadline needs no store: stops go to the job host, which itself ends what runs
    without trust.
    """
    return _threads(where, settings, start_native_thread)


def _threads(
    where: Any, settings: Settings, spawn: Callable[[Callable[[], None]], Any], *, urgent: Collection[str] = ()
) -> Callable[[], FlowThread[Any]]:
    open_client = partial(open_shared, where, prefix=settings.key_prefix, socket_timeout=settings.io_timeout)

    def make() -> FlowThread[Any]:
        return FlowThread(open_client, urgent=urgent, spawn=spawn)

    if not shares_clients(where):
        return make
    thread = make()
    return lambda: thread
