"""What a store must do: keep one ownership view per keyspace, count heartbeats, pass signals on.

A store object serves one keyspace and is used by one thread, except `wake`, which any thread may call.
Every verb is one atomic step at the server. `StoreUnavailable` from a verb means: it may or may not have happened.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from celery_sticky.ownership.events import HeartbeatHeard, ViewChanged
from celery_sticky.ownership.view import View


@dataclass(frozen=True, slots=True)
class Reading:
    """What `Store.read` saw, all at one instant of the store."""

    view: View | None
    """The document, or None where there is none."""
    heartbeats: Mapping[str, int]
    """Incarnation -> heartbeat counter."""
    store_id: str
    """The run id of the server that answered: another one means the store was restarted or failed over."""
    clock: float
    """The store's own clock in seconds since the epoch; only for making generations grow."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The answer to a heartbeat."""

    alive: bool
    """False: this incarnation is gone (evicted, or the document is) and is never revived."""
    version: int
    generation: int
    """Version and generation of the document now (0 and 0 where there is none)."""
    store_id: str
    heartbeats: Mapping[str, int] = field(default_factory=dict)
    """Incarnation -> heartbeat counter, where the beat was not announced and is alive."""
    counter: int = 0
    """The member's own, with this beat; 0: it is not alive."""


Signal = ViewChanged | HeartbeatHeard
"""What a store passes on of what other members do: it goes to the machine as it is."""


class Store(Protocol):
    """Where the view of one keyspace is written down."""

    def read(self) -> Reading:
        """Return view and counters, read at one instant.

        Raises:
            StoreUnavailable: try again later.
            DocumentDamaged, DocumentTooNew: there is a document, but not one this release can read.
        """

    def swap(self, old: View | None, new: View, guard: Mapping[str, int] | None = None) -> bool:
        """Replace the document if it still is `old` (same version and generation; None: there is none).

        Refused (False) also if a counter named in `guard` no longer has the given value, or if `new.store_id` is not
        the store's: a swap thought out before a restart must not land on data the restart may have rolled back. On
        success the counters of incarnations new in `new` are created at 0, those of incarnations not in `new` are
        removed, and `ViewChanged` is signalled. All of that is one atomic step.

        Raises:
            StoreUnavailable: the swap may have happened; read again.
        """

    def heartbeat(self, incarnation: str, *, announce: bool = True) -> Heartbeat:
        """Add one to the member's counter, if it has one; signal `HeartbeatHeard` to the others, or tell all counters.

        Members that announce hear each other at once; in a crowd the signals would be too many (their square), and each
        member rather learns all counters with its own beat (`announce` False), in the same one step.

        Raises:
            StoreUnavailable: the counter may have grown.
        """

    def watch(self, timeout: float) -> Sequence[Signal]:
        """Wait at most `timeout` seconds for signals; return those that came (none: time is up, or `wake` was called).

        Signals are hints: they may be lost, late, repeated. The first call subscribes, and returns at once.

        Raises:
            StoreUnavailable: the subscription broke; signals may have been lost. The next call subscribes again.
        """

    def wake(self) -> None:
        """Make a `watch` under way, or the next one, return at once. Any thread may call this."""

    def revoke(self, task_ids: Collection[str], *, ttl: float, limit: int) -> None:
        """Remember revoked task ids for `ttl` seconds, the newest `limit` of them (all keyspaces share the set)."""

    def revoked(self) -> Collection[str]:
        """Return the revoked ids that have not expired."""

    def close(self) -> None:
        """Let go of every connection. May be called twice."""
