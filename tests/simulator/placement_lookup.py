"""The placement of keys in a placed keyspace according to the store, and when it changed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from contextlib import suppress

from celery_sticky.errors import NotPinned, NoWorker
from celery_sticky.keyspace import Keyspace, placement_of, workers_of
from celery_sticky.slots import Slot
from celery_sticky.stores.memory.placement import MemoryPlacementStore
from celery_sticky.stores.memory.store import MemoryServer
from celery_sticky.stores.placement import NO_VERSION


class PlacementLookup:
    """Tracks the placement of keys; call `look` whenever the document or a pin changed."""

    def __init__(self, server: MemoryServer, keyspace: Keyspace, slots: int, keys: Collection[str]) -> None:
        self._placement_store = MemoryPlacementStore(server, keyspace.name)
        self._keyspace, self._slots = keyspace, slots
        self._now: dict[str, Slot | None] = dict.fromkeys(keys)
        self._changes: dict[str, list[float]] = {key: [] for key in keys}
        self._nowhere: dict[str, list[float]] = {key: [] for key in keys}
        """When a key was seen to lose its place, or to get one again."""

    def look(self, now: float) -> None:
        """Record what changed."""
        look = self._placement_store.look(NO_VERSION, self._now)
        workers = workers_of(look.view) if look.view is not None else ()
        for key, before in self._now.items():
            place: Slot | None = None
            if look.view is not None:
                with suppress(NotPinned, NoWorker):
                    place = placement_of(self._keyspace, key, self._slots, look.view, workers, look.pins.get(key))
            if place != before:
                self._now[key] = place
                self._changes[key].append(now)
                if place is None or before is None:
                    self._nowhere[key].append(now)

    def of(self, key: str) -> Slot | None:
        """Return the queue of a key; None: the key has no place."""
        return self._now[key]

    def since(self, key: str) -> float:
        """Return since when this is the queue of the key."""
        changes = self._changes[key]
        return changes[-1] if changes else 0.0

    def changed(self, key: str, since: float, until: float) -> bool:
        """Return whether a key got another queue in this time."""
        changes = self._changes[key]
        at = bisect_left(changes, since)
        return at < len(changes) and changes[at] <= until

    def was_nowhere(self, key: str, since: float) -> bool:
        """Return whether a key had no place at any time since."""
        nowhere = self._nowhere[key]
        return self._now[key] is None or bool(nowhere and nowhere[-1] >= since)
