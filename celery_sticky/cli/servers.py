"""`doctor`'s checks of the servers, as their drivers make them, and of messages that no worker will fetch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from celery_sticky.cli.checkup import guarded
from celery_sticky.cli.failures import said
from celery_sticky.cli.session import IO_TIMEOUT, Session
from celery_sticky.drivers import Checkup, find_driver
from celery_sticky.errors import StickyError
from celery_sticky.findings import Finding, note, wrong
from celery_sticky.keys import HASH_NAME, SlotId
from celery_sticky.settings import Settings
from celery_sticky.slots import Slot, WorkerQueue
from celery_sticky.stores import Reading

Facts = Mapping[str, Any]


def server_facts(connection: Any) -> dict[str, Any]:
    """Return facts about a server: its URL and key prefix, and what its driver knows.

    Raises:
        BrokerUnavailable: the server does not answer.
    """
    facts = {"url": connection.as_uri(), "prefix": connection.transport_options.get("global_keyprefix")}
    checkup = _checkup(connection)
    return facts if checkup is None else {**facts, **checkup.facts(connection, socket_timeout=IO_TIMEOUT)}


def server_findings(what: str, facts: Facts, connection: Any, settings: Settings) -> Iterable[Finding]:
    """Yield the findings about one server's facts."""
    driver, checkup = find_driver(connection), _checkup(connection)
    if "error" in facts:
        yield wrong(f"{what}: {facts['error']}")
    elif driver is not None and driver.one_process:
        yield note(f"{what}: {facts['url']} works within one process only; use it for tests")
    elif checkup is not None:
        yield from checkup.findings(what, facts, trust=settings.lease_ttl - settings.lease_margin)


def access_findings(what: str, connection: Any, prefix: str) -> Iterable[Finding]:
    """Yield what the user that the app logs in as may not do at a server.

    Raises:
        BrokerUnavailable: the server does not answer.
    """
    if (checkup := _checkup(connection)) is not None:
        yield from checkup.access_findings(what, connection, prefix=prefix, socket_timeout=IO_TIMEOUT)


def _checkup(connection: Any) -> Checkup | None:
    driver = find_driver(connection)
    return driver.checkup() if driver is not None and driver.checkup is not None else None


def leftovers(session: Session) -> Iterable[Finding]:
    """Look for messages that no worker will fetch: in slots beyond the last one, and in keyspaces without members."""
    return guarded("slot queues", _leftovers(session))


def _leftovers(session: Session) -> Iterable[Finding]:
    checkup = _checkup(session.broker)
    if checkup is None:
        return
    prefix = session.settings.key_prefix
    yield from checkup.queue_findings(session.broker, prefix=prefix, socket_timeout=IO_TIMEOUT)
    standing, broken = _standing(session, checkup.slots(session.broker, prefix=prefix, socket_timeout=IO_TIMEOUT))
    for (keyspace, slot), error in sorted(broken.items(), key=str):
        yield wrong(f"keyspace {keyspace}: slot {slot} is blocked: {error}. Repair or delete that key")
    for keyspace, reading in session.read(sorted({keyspace for keyspace, _ in standing})).items():
        if isinstance(reading, StickyError):
            yield wrong(f"slot queues of keyspace {keyspace}: {said(reading)}")
        else:
            yield from _left_in(session, keyspace, reading, standing)


def _left_in(
    session: Session, keyspace: str, reading: Reading, standing: Counter[tuple[str, Slot]]
) -> Iterable[Finding]:
    slots = session.slots_of(keyspace, reading)
    beyond = sorted(n for name, n in standing if name == keyspace and isinstance(n, int) and n >= slots)
    if beyond:
        count = sum(standing[keyspace, slot] for slot in beyond)
        yield wrong(
            f"keyspace {keyspace}: {count} messages are in {len(beyond)} slot queues from number {beyond[0]} on, but "
            f"it has {slots} slots: the senders use another sticky_slots"
        )
    worker_queue = sum(
        count for (name, slot), count in standing.items() if name == keyspace and isinstance(slot, WorkerQueue)
    )
    if worker_queue and reading.view and reading.view.hash == HASH_NAME:
        yield wrong(
            f"keyspace {keyspace}: {worker_queue} messages are in worker queues, from a time when it was a placed "
            "keyspace: no worker reads these queues. Restore the old declaration until they have run"
        )
    inside = sum(count for (name, slot), count in standing.items() if name == keyspace and slot not in beyond)
    if inside and not (reading.view and reading.view.members):
        yield wrong(f"keyspace {keyspace}: {inside} messages wait, but no worker takes part in it")


def _standing(session: Session, named: Collection[SlotId]) -> tuple[Counter[SlotId], dict[SlotId, str]]:
    """Count the messages of all slot queues at the broker, also in keyspaces this app does not know.

    Returns the counts, and the slots with an unusable record together with the reason.
    """
    counted: Counter[SlotId] = Counter()
    broken: dict[SlotId, str] = {}
    for slot, depth in session.queues.depths(named).items():
        if depth.broken:
            broken[slot] = depth.broken
        if depth.known:
            counted[slot] = depth.known
    return counted, broken
