"""The store in this process: the reference for every driver, and a test double.

`MemoryServer` plays the server; `MemoryStore` is a client of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from celery_sticky.ownership.events import HeartbeatHeard, ViewChanged
from celery_sticky.ownership.view import View
from celery_sticky.stores.base import Heartbeat, Reading, Signal
from celery_sticky.stores.in_process import Client, Server
from celery_sticky.stores.placement import PinMoved


@dataclass(slots=True)
class PlacementRecords:
    """The stored claims and pins of a placed keyspace."""

    claims: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Key -> token and incarnation."""
    pins: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    """Key -> incarnation, name and token."""
    enlisted: dict[str, str] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    lost: dict[str, dict[str, int]] = field(default_factory=dict)
    """Incarnation -> keys whose pins it has lost, and their tokens; never expires here."""
    token: int = 0
    """The last token of a claim or pin."""


@dataclass(slots=True)
class Records:
    """Everything that a server stores."""

    documents: dict[str, bytes] = field(default_factory=dict)
    heartbeats: dict[str, dict[str, int]] = field(default_factory=dict)
    heard: dict[str, dict[str, float]] = field(default_factory=dict)
    """Keyspace -> incarnation -> when it joined or sent its last heartbeat."""
    revoked: dict[str, float] = field(default_factory=dict)
    """Task id -> when it expires; the newest is the last."""
    placement_stores: dict[str, PlacementRecords] = field(default_factory=dict)


Heard = Signal | PinMoved
"""The signals of a server, for stores and for placement stores."""


class MemoryServer(Server[Records, Heard]):
    """The state that the stores of one process share."""

    def __init__(self) -> None:
        super().__init__(Records)


_servers: dict[tuple[str, str], MemoryServer] = {}


def memory_server(name: str, prefix: str) -> MemoryServer:
    """Return the server of this name and key prefix in this process."""
    return _servers.setdefault((name, prefix), MemoryServer())  # one step, because several threads may ask at once


class MemoryStore(Client[Records, Heard]):
    """A client of a `MemoryServer`, for one keyspace: see `celery_sticky.stores.base.Store`."""

    durable = False

    def watch(self, timeout: float) -> Sequence[Signal]:
        """See `Store.watch`. Signals for placement stores are not returned, but may end the wait."""
        return [signal for signal in super().watch(timeout) if not isinstance(signal, PinMoved)]

    def read(self) -> Reading:
        """See `Store.read`."""
        with self._server.changed:
            records = self._records()
            document = records.documents.get(self._keyspace)
            view = None if document is None else parsed(document)
            heartbeats, now = dict(records.heartbeats.get(self._keyspace, {})), self._server.clock()
            silent = {incarnation: now - at for incarnation, at in records.heard.get(self._keyspace, {}).items()}
            return Reading(view, heartbeats, self._server.run_id, now, silent)

    def swap(
        self, old: View | None, new: View, guard: Mapping[str, int] | None = None, until: float | None = None
    ) -> bool:
        """See `Store.swap`."""
        with self._server.changed:
            records = self._records()
            heartbeats = records.heartbeats.get(self._keyspace, {})
            if new.store_id != self._server.run_id or self._version() != (old and (old.version, old.generation)):
                return False
            if until is not None and self._server.clock() > until:
                return False
            if any(heartbeats.get(incarnation) != counter for incarnation, counter in (guard or {}).items()):
                return False
            incarnations = [member.incarnation for member in new.members.values()]
            records.documents[self._keyspace] = new.to_bytes()
            records.heartbeats[self._keyspace] = {
                incarnation: heartbeats.get(incarnation, 0) for incarnation in incarnations
            }
            heard, now = records.heard.get(self._keyspace, {}), self._server.clock()
            records.heard[self._keyspace] = {incarnation: heard.get(incarnation, now) for incarnation in incarnations}
            self._server.signal(self._keyspace, ViewChanged(new.version))
            return True

    def heartbeat(self, incarnation: str, *, announce: bool = True) -> Heartbeat:
        """See `Store.beat`."""
        with self._server.changed:
            heartbeats = self._records().heartbeats.get(self._keyspace, {})
            written = self._version()
            alive = written is not None and incarnation in heartbeats
            if alive:
                heartbeats[incarnation] += 1
                self._records().heard.setdefault(self._keyspace, {})[incarnation] = self._server.clock()
                if announce:
                    heard = HeartbeatHeard(incarnation, heartbeats[incarnation])
                    self._server.signal(self._keyspace, heard, sender=self._subscription)
            version, generation = written or (0, 0)
            told = {} if announce or not alive else dict(heartbeats)
            return Heartbeat(
                alive, version, generation, self._server.run_id, told, heartbeats[incarnation] if alive else 0
            )

    def revoke(self, task_ids: Collection[str], *, ttl: float, limit: int) -> None:
        """See `Store.revoke`."""
        with self._server.changed:
            revoked = self._records().revoked
            expires = self._server.clock() + ttl
            for task_id in task_ids:
                revoked.pop(task_id, None)
                revoked[task_id] = expires
            for task_id in list(revoked)[: max(0, len(revoked) - limit)]:
                del revoked[task_id]

    def revoked(self) -> Collection[str]:
        """See `Store.revoked`."""
        with self._server.changed:
            now = self._server.clock()
            return frozenset(task_id for task_id, expires in self._records().revoked.items() if expires > now)

    def _version(self) -> tuple[int, int] | None:
        document = self._server.records.documents.get(self._keyspace)
        if document is None:
            return None
        view = parsed(document)
        return view.version, view.generation


@lru_cache(maxsize=8)
def parsed(document: bytes) -> View:
    """Return the view that these bytes encode."""
    # Views are immutable, so readers of the same bytes may share one view.
    return View.from_bytes(document)
