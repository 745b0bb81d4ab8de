"""The contract of a store: keep one ownership view per keyspace, count heartbeats, pass signals on.

A store object serves one keyspace and is used by one thread, except `wake`, which any thread may call.
Every verb is one atomic step at the server. If a verb raises `StoreUnavailable`, it may or may not have happened.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from celery_sticky.ownership.events import HeartbeatHeard, ViewChanged
from celery_sticky.ownership.view import View


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of `Store.read`, all from one instant of the store."""

    view: View | None
    """The document, or None if there is none."""
    heartbeats: Mapping[str, int]
    """Incarnation -> heartbeat counter."""
    store_id: str
    """An id of the data. It changes whenever acknowledged writes may have been lost.

    That is at a fail-over to a copy that may be behind, and at a restart, unless the store is `durable`.
    """
    clock: float
    """The store's own clock in seconds since the Unix epoch. Workers use it only to make generations grow."""
    silent: Mapping[str, float] = field(default_factory=dict)
    """Incarnation -> seconds since it joined or sent its last heartbeat, by the store's clock; absent: unknown.

    It is shown to people. No worker decides by it.
    """


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The answer to a heartbeat."""

    alive: bool
    """False: this incarnation is gone (it was evicted, or the document is missing) and is never revived."""
    version: int
    generation: int
    """Version and generation of the document now (0 and 0 if there is none)."""
    store_id: str
    heartbeats: Mapping[str, int] = field(default_factory=dict)
    """Incarnation -> heartbeat counter, if the heartbeat was not announced and the member is alive."""
    counter: int = 0
    """The member's own counter, including this heartbeat; 0: it is not alive."""


Signal = ViewChanged | HeartbeatHeard
"""What a store passes on of the other members' actions; the machine takes it unchanged."""


class Store(Protocol):
    """The place where the view of one keyspace is stored."""

    durable: bool
    """Whether no restart of the server loses an acknowledged write; then `store_id` may stay the same over one."""

    def read(self) -> Reading:
        """Return view and counters, read at one instant.

        Raises:
            StoreUnavailable: try again later.
            DocumentDamaged, DocumentTooNew: there is a document, but this release cannot read it.
        """

    def swap(
        self, old: View | None, new: View, guard: Mapping[str, int] | None = None, until: float | None = None
    ) -> bool:
        """Replace the document if it still is `old` (same version and generation; None: there is none).

        Return False also if a counter named in `guard` no longer has the given value, or if `new.store_id` is not the
        store's: a swap planned before a restart must not change data that the restart may have rolled back. And return
        False if the store's clock (see `Reading.clock`) is past `until`: a request that was sent when there was no
        document may arrive late, and find again that there is none.

        A successful swap creates the counters of incarnations new in `new` at 0, removes those of incarnations not in
        `new`, and signals `ViewChanged`. All of that is one atomic step.

        Raises:
            StoreUnavailable: the swap may have happened; read again.
        """

    def heartbeat(self, incarnation: str, *, announce: bool = True) -> Heartbeat:
        """Add one to the member's counter, if it has one. Signal `HeartbeatHeard` to the others, or return all of them.

        Members that announce hear each other at once. With many members the signals would be too many (their number
        squared); then each member gets all counters with its own heartbeat (`announce` False), in the same single step.

        Raises:
            StoreUnavailable: the counter may have grown.
        """

    def watch(self, timeout: float) -> Sequence[Signal]:
        """Wait at most `timeout` seconds for signals; return them (none: the time is up, or `wake` was called).

        Signals are hints: they may be lost, late or repeated. The first call subscribes and returns at once.

        Raises:
            StoreUnavailable: the subscription broke; signals may have been lost. The next call subscribes again.
        """

    def wake(self) -> None:
        """Make the current `watch`, or the next one, return at once. Any thread may call this."""

    def revoke(self, task_ids: Collection[str], *, ttl: float, limit: int) -> None:
        """Remember revoked task ids for `ttl` seconds, the newest `limit` of them. All keyspaces share the set."""

    def revoked(self) -> Collection[str]:
        """Return the revoked ids that have not expired."""

    def close(self) -> None:
        """Close every connection. May be called twice."""
