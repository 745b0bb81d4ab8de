"""The memory store, which shows each change of the document to the witness and passes signals on to the workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from celery_sticky.ownership.view import View
from celery_sticky.stores.base import Heartbeat
from celery_sticky.stores.memory.store import MemoryStore
from simulator.terms import KEYSPACE

if TYPE_CHECKING:
    from simulator.process import Process


class WitnessedStore(MemoryStore):
    """A worker's client of it."""

    def __init__(self, process: Process) -> None:
        super().__init__(process.world.server, KEYSPACE)
        self._process, self._world = process, process.world

    @property
    def subscribed(self) -> bool:
        """Whether it gets signals."""
        return self._subscription is not None

    def heartbeat(self, incarnation: str, *, announce: bool = True) -> Heartbeat:
        """See `Store.heartbeat`."""
        heartbeat = super().heartbeat(incarnation, announce=announce)
        if heartbeat.alive:
            self._world.beats(incarnation)
        self._world.pass_signals_on()
        return heartbeat

    def swap(
        self, old: View | None, new: View, guard: Mapping[str, int] | None = None, until: float | None = None
    ) -> bool:
        """See `Store.swap`."""
        before = self.read().view
        done = super().swap(old, new, guard, until)
        if done:
            self._world.swapped(self._process, before, new)
        self._world.pass_signals_on()
        return done
