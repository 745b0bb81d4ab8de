"""What celery-sticky needs of slot queues, and what a server lacks: a sender and a worker refuse it at once."""

from __future__ import annotations

from typing import Any

from celery_sticky.drivers.base import Driver
from celery_sticky.drivers.registry import hints, listing
from celery_sticky.errors import InvalidSettings

NEEDS = {
    "fenced": "it serves a worker that has lost its slots, so two workers could run the tasks of one key",
    "ordered": "messages that go back lose their order, and so do the tasks of a key",
    "atomic": "messages are lost with the worker that holds them",
    "deferred": "it keeps no message until its time, as retries, ETA and countdown need",
}
"""The guarantees that every keyed task needs -> what happens without them."""


def check_guarantees(driver: Driver, connection: Any) -> None:
    """Refuse a broker whose slot queues lack what every keyed task needs.

    Raises:
        InvalidSettings: a guarantee is missing.
    """
    for name, harm in NEEDS.items():
        if not has(driver, name):
            raise _lacks(connection, name, f"cannot be the broker of keyed tasks: {harm}", "leave out key=")


def check_moves(driver: Driver, connection: Any, keyspaces: str) -> None:
    """Refuse a broker that cannot carry placed keyspaces (their names, for the message).

    Raises:
        InvalidSettings: its slot queues cannot move a message in one step.
    """
    if not has(driver, "moves"):
        harm = "it cannot move a message to another worker's queue in one step"
        why = f"cannot carry keyspaces {keyspaces}, which place keys on workers (assign, pins): {harm}"
        raise _lacks(connection, "moves", why, "declare those keyspaces without assign and pins")


def check_ledger(driver: Driver, connection: Any, tasks: str) -> None:
    """Refuse a broker that cannot carry tasks that use a ledger (their names, for the message).

    Raises:
        InvalidSettings: its slot queues keep no ledger.
    """
    if not has(driver, "claims_runs"):
        why = f"cannot carry tasks {tasks}, which have delivery='at_most_once' or dedupe=True: it keeps no ledger"
        raise _lacks(connection, "claims_runs", why, "leave out these options")


def has(driver: Driver, guarantee: str) -> bool:
    """Return whether the driver's slot queues give a guarantee."""
    return driver.guarantees is not None and bool(getattr(driver.guarantees, guarantee))


def _lacks(connection: Any, name: str, why: str, otherwise: str) -> InvalidSettings:
    return InvalidSettings(
        f"{connection.as_uri()} {why} ({name!r} is missing). Change broker_url to "
        f"{listing(lambda one: has(one, name))}, or {otherwise}{hints()}"
    )
