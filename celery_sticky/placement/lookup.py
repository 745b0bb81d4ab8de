"""Placement lookup for senders, cached for at most 1 s, and the pins that a worker sets and removes.

Only placed keyspaces are looked up here.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from celery_sticky.errors import InvalidSettings, NotAMember, NotPinned, NoWorker, PinnedElsewhere
from celery_sticky.keys import WORKER_QUEUE, Slot, slot_for
from celery_sticky.keyspace import Keyspace, Unpinned, Worker, check_same, placement_of, workers_of
from celery_sticky.ownership.view import View
from celery_sticky.settings import Settings
from celery_sticky.stores.lent import Clients
from celery_sticky.stores.placement import NO_VERSION, PlacementStore

FRESH = 1.0
"""Seconds for which a cached answer is used."""
REMEMBERED = 10_000
"""Number of keys per keyspace whose pins are cached."""


@dataclass(slots=True)
class _Known:
    """Cached state of one keyspace."""

    view: View | None = None
    workers: tuple[Worker, ...] = ()
    until: float = float("-inf")
    pins: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Key -> incarnation that pinned it (empty: none), and the clock time at which the entry expires."""


class PlacementLookup:
    """Placement lookups and pins of one process. Any thread may use it, also after a fork."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        open_placement_store: Callable[[str], PlacementStore],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._clock = settings, clock
        self._placement_stores = Clients(open_placement_store)
        self._known: dict[str, _Known] = defaultdict(_Known)

    def of(self, keyspace: Keyspace, key: str) -> Slot:
        """Return the queue that a key belongs to.

        Raises:
            StoreUnavailable: the placement is not known; nothing was sent.
            NoWorker, NotPinned, AssignmentFailed: the key belongs to no queue now.
            KeyspaceMismatch: the keyspace's workers use another placement than this process.
        """
        now, known = self._clock(), self._known[keyspace.name]
        if now >= known.until or (keyspace.pins and now >= known.pins.get(key, ("", now))[1]):
            self._look(keyspace, key, known, now)
        slots, view = self._settings().slots_of(keyspace.name), known.view
        if view is not None:
            return placement_of(keyspace, key, slots, view, known.workers, known.pins.get(key, ("",))[0] or None)
        if keyspace.unpinned == Unpinned.REFUSE:
            raise NotPinned(f"key {key!r} of keyspace {keyspace.name!r} is pinned by no live worker")
        if keyspace.assign is not None:
            raise NoWorker(f"key {key!r}: no worker has taken part in keyspace {keyspace.name!r} yet")
        return slot_for(key, slots)

    def worker_for(self, keyspace: Keyspace, key: str) -> str | None:
        """Return the worker that a key belongs to, or None if its slot has no owner."""
        belongs_to = self.of(keyspace, key)
        if isinstance(belongs_to, str):
            return belongs_to.removeprefix(WORKER_QUEUE)
        view = self._known[keyspace.name].view
        return view.owner[belongs_to] if view is not None else None

    def pin(self, keyspace: Keyspace | None, worker: str | None, key: str, *, take: bool) -> None:
        """Pin a key for the worker that this process belongs to.

        Raises:
            PinnedElsewhere, NotAMember, InvalidSettings, StoreUnavailable: the key was not pinned.
        """
        name = _pinning(keyspace).name
        if worker is None:
            raise NotAMember(f"keyspace {name!r}: only workers can pin keys, and this process belongs to no worker")
        self._known[name].pins.pop(key, None)
        with self._placement_stores.lend(name) as placement_store:
            other = placement_store.pin(worker, key, take=take)
        if other is not None:
            raise PinnedElsewhere(
                f"key {key!r} is pinned by worker {other!r}: unpin it there, or take the pin with `take=True`"
            )

    def unpin(self, keyspace: Keyspace | None, worker: str | None, key: str) -> bool:
        """Remove the worker's pin from a key; return False if the worker had not pinned it."""
        name = _pinning(keyspace).name
        if worker is None:
            return False
        self._known[name].pins.pop(key, None)
        with self._placement_stores.lend(name) as placement_store:
            return placement_store.unpin(worker, key)

    def close(self) -> None:
        """Close every connection. The object stays usable and connects again on demand."""
        self._placement_stores.close()

    def _look(self, keyspace: Keyspace, key: str, known: _Known, now: float) -> None:
        view = known.view
        version = NO_VERSION if view is None else (view.version, view.generation)
        with self._placement_stores.lend(keyspace.name) as placement_store:
            look = placement_store.look(version, [key] if keyspace.pins else [])
        if look.changed:
            if look.view is not None:
                check_same(keyspace, look.view)
            known.view, known.workers = look.view, workers_of(look.view) if look.view is not None else ()
        known.until = now + FRESH
        if keyspace.pins:
            if len(known.pins) >= REMEMBERED:
                known.pins.clear()
            known.pins[key] = (look.pins.get(key, ""), now + FRESH)


def _pinning(keyspace: Keyspace | None) -> Keyspace:
    if keyspace is None or not keyspace.pins:
        raise InvalidSettings("this keyspace does not allow pins: declare it as `Keyspace(name, pins=True)`")
    return keyspace
