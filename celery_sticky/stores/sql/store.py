"""The view of a keyspace in a SQL database: one row for the document, and one for each member's heartbeats."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from celery_sticky.ownership.view import View
from celery_sticky.sql import Database
from celery_sticky.sql.bell import DOCUMENT, HEARTBEAT, keyspace_topic
from celery_sticky.stores.base import Heartbeat, Reading, Signal
from celery_sticky.stores.placement import NO_VERSION
from celery_sticky.stores.sql.members import Members
from celery_sticky.stores.sql.poller import Poller
from celery_sticky.stores.sql.revoked import Revoked
from celery_sticky.stores.sql.signals import Signals
from celery_sticky.stores.sql.snapshot import Snapshot, Snapshots, parsed

NEW_ROW = "INSERT INTO {view} (scope, version, generation, store_id, document) VALUES (%s, 0, 0, %s, %s)"


class SqlStore:
    """See `celery_sticky.stores.base.Store`. `database` is its own, unless stores share a `poller` too.

    A swap locks the row of the view, and then the heartbeat rows that guard it. A heartbeat locks its own row, so it
    waits for no other member, and a swap that it guards sees either all of it or nothing.
    """

    durable = True
    """A server that loses acknowledged writes at a crash (`fsync = off`, for example) must not be used."""

    def __init__(self, database: Database, keyspace: str, *, prefix: str, poller: Poller | None = None) -> None:
        self._database = database
        self._scope = f"{prefix}.{keyspace}".encode()
        self._snapshots = Snapshots(database.dialect, self._scope)
        self._members = Members(database.dialect, self._scope)
        self._revoked = Revoked(database, prefix)
        self._signals = Signals(database, self._scope)
        self._poller = poller or Poller(database)

    def read(self) -> Reading:
        """See `Store.read`."""
        found = self._snapshots.read(self._database, document=True)
        return Reading(
            view=self._view(found),
            heartbeats=found.counters,
            store_id=found.store_id,
            clock=found.clock,
            silent={incarnation: found.clock - at for incarnation, at in found.heard.items()},
        )

    def swap(
        self, old: View | None, new: View, guard: Mapping[str, int] | None = None, until: float | None = None
    ) -> bool:
        """See `Store.swap`."""
        guard = guard or {}
        expected = NO_VERSION if old is None else (old.version, old.generation)
        if old is None:  # in a transaction of its own: one that inserts and locks could block another
            self._database.run(NEW_ROW + self._database.dialect.upsert(["scope"], ["scope"]), [self._scope, b"", b""])
        with self._database.transaction() as inside:
            self._snapshots.lock(inside)
            self._members.lock(inside, guard)
            found = self._snapshots.read(inside)
            if found.store_id != new.store_id or found.version != expected:
                return False
            if until is not None and found.clock > until:
                return False
            if any(found.counters.get(incarnation) != counter for incarnation, counter in guard.items()):
                return False
            inside.run(
                "UPDATE {view} SET version = %s, generation = %s, store_id = %s, document = %s WHERE scope = %s",
                [new.version, new.generation, new.store_id.encode(), new.to_bytes(), self._scope],
                ring=[keyspace_topic(DOCUMENT, self._scope)],
            )
            incarnations = {member.incarnation for member in new.members.values()}
            self._members.replace(inside, found.counters.keys(), incarnations, found.clock)
        return True

    def heartbeat(self, incarnation: str, *, announce: bool = True) -> Heartbeat:
        """See `Store.heartbeat`."""
        self._signals.is_own(incarnation)
        with self._database.transaction() as inside:
            alive = self._members.beat(inside, incarnation, announce=announce)
            found = self._snapshots.read(inside, only=incarnation if announce else None)
        told = found.counters if alive and not announce else {}
        counter = found.counters[incarnation] if alive else 0
        return Heartbeat(alive, *found.version, found.store_id, told, counter)

    def watch(self, timeout: float) -> Sequence[Signal]:
        """See `Store.watch`."""
        topics = [keyspace_topic(kind, self._scope) for kind in (DOCUMENT, HEARTBEAT)]
        return self._poller.watch(self, self._signals.look, topics, timeout)

    def wake(self) -> None:
        """See `Store.wake`."""
        self._poller.wake()

    def revoke(self, task_ids: Collection[str], *, ttl: float, limit: int) -> None:
        """See `Store.revoke`."""
        self._revoked.add(task_ids, ttl, limit)

    def revoked(self) -> Collection[str]:
        """See `Store.revoked`."""
        return self._revoked.read()

    def close(self) -> None:
        """See `Store.close`."""
        self._poller.close()
        self._database.close()

    def _view(self, found: Snapshot) -> View | None:
        if found.version == NO_VERSION:
            return None
        return parsed(found.document, self._database.tables, self._scope)
