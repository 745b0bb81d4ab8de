"""Placement lookup for senders, and the pins that a worker sets and removes. Only placed keyspaces are looked up here.

What is found is cached for at most 1 s. That a key is not pinned, or that there is no worker, is never cached: it would
keep messages from a client that has just connected.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

from celery_sticky.errors import InvalidSettings, NotAMember, NotPinned, NoWorker, PinnedElsewhere
from celery_sticky.keys import slot_for
from celery_sticky.keyspace import Keyspace, Unpinned, Worker, check_same, pinner, placement_of, workers_of
from celery_sticky.ownership.view import View
from celery_sticky.placement.pin import Pin
from celery_sticky.settings import Settings
from celery_sticky.slots import WorkerQueue
from celery_sticky.stores.lent import Clients
from celery_sticky.stores.placement import NO_VERSION, Pinned, PlacementStore

FRESH = 1.0
"""Seconds for which a cached answer is used."""
AT_ONCE = 1000
"""Number of keys whose pins are read in one step."""
REMEMBERED = 10_000
"""Number of keys per keyspace whose pins are cached."""


@dataclass(slots=True)
class _Known:
    """Cached state of one keyspace."""

    view: View | None = None
    workers: tuple[Worker, ...] = ()
    until: float = float("-inf")
    pins: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Key -> incarnation that pinned it, and the clock time at which the entry expires."""


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

    def of(self, keyspace: Keyspace, key: str) -> int | WorkerQueue:
        """Return the queue that a key belongs to.

        Raises:
            StoreUnavailable: the placement is not known; nothing was sent.
            NoWorker, NotPinned, AssignmentFailed: the key belongs to no queue now.
            KeyspaceMismatch: the keyspace's workers use another placement than this process.
        """
        now, known = self._clock(), self._known[keyspace.name]
        pin = self._pin(keyspace, key, known, now)
        slots, view = self._settings().slots_of(keyspace.name), known.view
        if view is not None:
            return placement_of(keyspace, key, slots, view, known.workers, pin)
        if keyspace.unpinned == Unpinned.REFUSE:
            raise NotPinned(f"key {key!r} of keyspace {keyspace.name!r} is pinned by no live worker")
        if keyspace.assign is not None:
            raise NoWorker(f"key {key!r}: no worker has taken part in keyspace {keyspace.name!r} yet")
        return slot_for(key, slots)

    def worker_for(self, keyspace: Keyspace, key: str) -> str | None:
        """Return the worker that a key belongs to, or None if its slot has no owner."""
        match self.of(keyspace, key):
            case WorkerQueue(worker):
                return worker
            case int(slot):
                view = self._known[keyspace.name].view
                return view.owner[slot] if view is not None else None

    def pins(self, keyspace: Keyspace, view: View, keys: Collection[str]) -> Mapping[str, str]:
        """Return the incarnations of the live workers that have pinned these keys now; `view` is the document.

        Raises:
            StoreUnavailable: the pins are not known.
        """
        if not (keyspace.pins and keys):
            return {}
        left, found, version = list(keys), dict[str, str](), (view.version, view.generation)
        with self._placement_stores.lend(keyspace.name) as placement_store:
            for first in range(0, len(left), AT_ONCE):
                found |= placement_store.look(version, left[first : first + AT_ONCE]).pins
        return found

    def pin(self, keyspace: Keyspace | None, worker: str | None, key: str, *, take: bool) -> Pin:
        """Pin a key for the worker that this process belongs to.

        Raises:
            PinnedElsewhere, NotAMember, InvalidSettings, StoreUnavailable: the key was not pinned.
        """
        name = _pinning(keyspace).name
        if worker is None:
            raise NotAMember(f"keyspace {name!r}: only workers can pin keys, and this process belongs to no worker")
        self._known[name].pins.pop(key, None)
        with self._placement_stores.lend(name) as placement_store:
            pinned = placement_store.pin(worker, key, take=take)
        if pinned.by:
            raise PinnedElsewhere(
                f"key {key!r} is pinned by worker {pinned.by!r}: release it there, or take the key with `take=True`"
            )
        return Pin(key, name, worker, pinned.token, partial(self._unpin, name, worker, key, pinned))

    def unpin(self, keyspace: Keyspace | None, worker: str | None, key: str) -> bool:
        """Remove whichever pin the worker has of a key; return False if it has none."""
        name = _pinning(keyspace).name
        return worker is not None and self._unpin(name, worker, key, None)

    def _unpin(self, name: str, worker: str, key: str, pinned: Pinned | None) -> bool:
        self._known[name].pins.pop(key, None)
        with self._placement_stores.lend(name) as placement_store:
            return placement_store.unpin(worker, key, pinned)

    def close(self) -> None:
        """Close every connection. The object stays usable and connects again on demand."""
        self._placement_stores.close()

    def _pin(self, keyspace: Keyspace, key: str, known: _Known, now: float) -> str | None:
        """Return the incarnation that has pinned the key, or None; `known` is fresh then."""
        if now < known.until and known.view is not None and known.workers:
            if not keyspace.pins:
                return None
            pin, until = known.pins.get(key, ("", now))
            if now < until and pinner(known.view, pin) is not None:  # a pin of a worker that leaves does not count
                return pin
        return self._look(keyspace, key, known, now)

    def _look(self, keyspace: Keyspace, key: str, known: _Known, now: float) -> str | None:
        """Ask the store; return the incarnation that has pinned the key, or None."""
        view = known.view
        version = NO_VERSION if view is None else (view.version, view.generation)
        with self._placement_stores.lend(keyspace.name) as placement_store:
            look = placement_store.look(version, [key] if keyspace.pins else [])
        if look.changed:
            if look.view is not None:
                check_same(keyspace, look.view)
            known.view, known.workers = look.view, workers_of(look.view) if look.view is not None else ()
        known.until = now + FRESH
        pin = look.pins.get(key)
        if pin is None:
            known.pins.pop(key, None)
        else:
            if len(known.pins) >= REMEMBERED:
                known.pins.clear()
            known.pins[key] = (pin, now + FRESH)
        return pin


def _pinning(keyspace: Keyspace | None) -> Keyspace:
    if keyspace is None or not keyspace.pins:
        raise InvalidSettings("this keyspace does not allow pins: declare it as `Keyspace(name, pins=True)`")
    return keyspace
