"""The store in this process: the reference every driver is measured by, and the double for tests.

`MemoryServer` plays the server and can be made to fail like one; `MemoryStore` is a client of it.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from threading import Condition
from uuid import uuid4

from celery_sticky.errors import StoreUnavailable
from celery_sticky.ownership.events import BeatHeard, ViewChanged
from celery_sticky.ownership.view import View
from celery_sticky.stores.base import Beat, Reading, Signal


@dataclass(slots=True)
class Records:
    """What a server has written down, all of it."""

    documents: dict[str, bytes] = field(default_factory=dict)
    beats: dict[str, dict[str, int]] = field(default_factory=dict)
    revoked: dict[str, float] = field(default_factory=dict)
    """Task id -> when it expires; the newest is the last."""


@dataclass(slots=True, eq=False)
class Subscription:
    """One client's ear: what it has not yet taken."""

    keyspace: str
    signals: list[Signal] = field(default_factory=list)
    broken: bool = False


class MemoryServer:
    """What the stores of one process share. The methods here are the faults; the verbs are in `MemoryStore`."""

    def __init__(self) -> None:
        self.changed = Condition()
        self.records = Records()
        self.run_id = uuid4().hex
        self.running = True
        self.subscriptions: set[Subscription] = set()

    def stop(self) -> None:
        """Answer nobody, and forget who listens."""
        with self.changed:
            self.running = False
            self.cut()

    def restart(self) -> None:
        """Come back, or go and come back, under a new run id, with the records kept."""
        with self.changed:
            self.stop()
            self.run_id = uuid4().hex
            self.running = True

    def wipe(self) -> None:
        """Lose the records, as by FLUSHALL: the run id stays."""
        self.roll_back(Records())

    def snapshot(self) -> Records:
        """Return a copy of the records for `roll_back`."""
        with self.changed:
            return copy.deepcopy(self.records)

    def roll_back(self, to: Records) -> None:
        """Have older records again: the run id stays."""
        with self.changed:
            self.records = copy.deepcopy(to)

    def cut(self) -> None:
        """Break every subscription."""
        with self.changed:
            for subscription in self.subscriptions:
                subscription.broken = True
            self.subscriptions.clear()
            self.changed.notify_all()

    def signal(self, keyspace: str, signal: Signal, *, sender: Subscription | None = None) -> None:
        """Tell all who listen, but for the sender."""
        with self.changed:
            for subscription in self.subscriptions:
                if subscription.keyspace == keyspace and subscription is not sender:
                    subscription.signals.append(signal)
            self.changed.notify_all()


@cache
def memory_server(name: str, prefix: str) -> MemoryServer:
    """Return the one server of this name and key prefix in this process."""
    return MemoryServer()


class MemoryStore:
    """A client of a `MemoryServer`, for one keyspace."""

    def __init__(self, server: MemoryServer, keyspace: str) -> None:
        self._server = server
        self._keyspace = keyspace
        self._subscription: Subscription | None = None
        self._woken = False

    def read(self) -> Reading:
        """See `Store.read`."""
        with self._server.changed:
            records = self._records()
            document = records.documents.get(self._keyspace)
            view = None if document is None else _parsed(document)
            return Reading(view, dict(records.beats.get(self._keyspace, {})), self._server.run_id, time.time())

    def swap(self, old: View | None, new: View, guard: Mapping[str, int] | None = None) -> bool:
        """See `Store.swap`."""
        with self._server.changed:
            records = self._records()
            beats = records.beats.get(self._keyspace, {})
            if new.store_id != self._server.run_id or self._version() != (old and (old.version, old.generation)):
                return False
            if any(beats.get(incarnation) != counter for incarnation, counter in (guard or {}).items()):
                return False
            incarnations = [member.incarnation for member in new.members.values()]
            records.documents[self._keyspace] = new.to_bytes()
            records.beats[self._keyspace] = {incarnation: beats.get(incarnation, 0) for incarnation in incarnations}
            self._server.signal(self._keyspace, ViewChanged(new.version))
            return True

    def beat(self, incarnation: str, *, announce: bool = True) -> Beat:
        """See `Store.beat`."""
        with self._server.changed:
            beats = self._records().beats.get(self._keyspace, {})
            written = self._version()
            alive = written is not None and incarnation in beats
            if alive:
                beats[incarnation] += 1
                if announce:
                    heard = BeatHeard(incarnation, beats[incarnation])
                    self._server.signal(self._keyspace, heard, sender=self._subscription)
            version, generation = written or (0, 0)
            told = {} if announce or not alive else dict(beats)
            return Beat(alive, version, generation, self._server.run_id, told)

    def watch(self, timeout: float) -> Sequence[Signal]:
        """See `Store.watch`."""
        with self._server.changed:
            self._records()
            subscription = self._subscription
            if subscription is None:
                self._subscribe()
                return ()
            self._server.changed.wait_for(
                lambda: self._woken or subscription.broken or bool(subscription.signals), timeout
            )
            self._woken = False
            if subscription.broken:
                self._subscription = None
                raise StoreUnavailable("the subscription broke")
            signals = tuple(subscription.signals)
            subscription.signals.clear()
            return signals

    def wake(self) -> None:
        """See `Store.wake`."""
        with self._server.changed:
            self._woken = True
            self._server.changed.notify_all()

    def revoke(self, task_ids: Collection[str], *, ttl: float, limit: int) -> None:
        """See `Store.revoke`."""
        with self._server.changed:
            revoked = self._records().revoked
            expires = time.time() + ttl
            for task_id in task_ids:
                revoked.pop(task_id, None)
                revoked[task_id] = expires
            for task_id in list(revoked)[: max(0, len(revoked) - limit)]:
                del revoked[task_id]

    def revoked(self) -> Collection[str]:
        """See `Store.revoked`."""
        with self._server.changed:
            now = time.time()
            return frozenset(task_id for task_id, expires in self._records().revoked.items() if expires > now)

    def close(self) -> None:
        """See `Store.close`."""
        with self._server.changed:
            if self._subscription is not None:
                self._server.subscriptions.discard(self._subscription)
            self._subscription = None

    def _records(self) -> Records:
        if not self._server.running:
            raise StoreUnavailable("the memory server is stopped")
        return self._server.records

    def _version(self) -> tuple[int, int] | None:
        document = self._server.records.documents.get(self._keyspace)
        if document is None:
            return None
        view = _parsed(document)
        return view.version, view.generation

    def _subscribe(self) -> None:
        self._subscription = Subscription(self._keyspace)
        self._server.subscriptions.add(self._subscription)
        self._woken = False


@lru_cache(maxsize=8)
def _parsed(document: bytes) -> View:
    # Views are never changed: who reads the same bytes may have the same view.
    return View.from_bytes(document)
