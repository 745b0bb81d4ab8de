"""The senders of a placed keyspace: their knowledge of placements may be a second old."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from celery_sticky.errors import NotPinned, NoWorker, StoreUnavailable
from celery_sticky.keyspace import Keyspace
from celery_sticky.placement.lookup import FRESH, PlacementLookup
from celery_sticky.settings import Settings
from celery_sticky.stores.memory.placement import MemoryPlacementStore
from celery_sticky.stores.placement import Look, Version
from simulator.scenario import Task
from simulator.terms import KEYSPACE

if TYPE_CHECKING:
    from simulator.world import World

SENDERS = 2
AGAIN = 0.5
"""Seconds until a failed send is repeated."""
TRIES = 20
"""Number of tries for a key that must be pinned and is not."""
SLOW = 2.0
"""Maximum seconds from looking up the placement of a key until the broker has the message."""


class Sender:
    """A sending process, with the real `PlacementLookup`."""

    def __init__(self, world: World, keyspace: Keyspace, number: int) -> None:
        self._world, self._keyspace = world, keyspace
        self._rng = Random(world.scenario.seed * 1013 + number)
        settings = Settings(slots=world.scenario.slots)
        self._lookup = PlacementLookup(
            lambda: settings, lambda _: _PlacementStore(world, self._rng), clock=lambda: world.now
        )
        self.unsent: dict[Task, str] = {}
        """Tasks that could not be sent so far, and why."""

    def send(self, task: Task, copy: int = 0, tries: int = 1) -> None:
        """Send a task, or another copy of its message; try again later if that fails."""
        try:
            queue = self._lookup.of(self._keyspace, str(task.key))
        except (StoreUnavailable, NoWorker, NotPinned) as error:
            self.unsent[task] = str(error)
            if isinstance(error, NotPinned) and tries >= TRIES:
                del self.unsent[task]
            else:
                self._world.after(AGAIN, partial(self.send, task, copy, tries + 1))
            return
        self.unsent.pop(task, None)
        known_at = self._world.now - FRESH
        delay = self._rng.uniform(0, 0.02) if self._rng.random() < 0.9 else self._rng.uniform(0, SLOW)
        self._world.after(delay, partial(self._world.publish, task, queue, known_at, copy))


class _PlacementStore(MemoryPlacementStore):
    """A sender's client; some of its requests are lost."""

    def __init__(self, world: World, rng: Random) -> None:
        super().__init__(world.server, KEYSPACE)
        self._world, self._rng = world, rng

    def look(self, known: Version, keys: Collection[str]) -> Look:
        if self._world.store_is_away or self._rng.random() < self._world.losses:
            raise StoreUnavailable("no answer")
        return super().look(known, keys)
