"""Observes the placement store of a placed keyspace throughout a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection

from celery_sticky.cli.verify.moves import Change, Moves
from celery_sticky.errors import StickyError
from celery_sticky.ownership.view import View
from celery_sticky.stores.placement import NO_VERSION, PinMoved, PlacementStore

EVERY = 0.1
"""Seconds between two reads if no notification arrives."""


class Witness:
    """A thread that records changes in `moves` until `close`."""

    def __init__(self, placement_store: PlacementStore, moves: Moves, keys: Collection[str]) -> None:
        self.moves = moves
        self._placement_store, self._keys = placement_store, keys
        self._before = time.monotonic_ns()
        self._heard: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop observing."""
        self._ended.set()
        self._placement_store.wake()
        self._thread.join(timeout=10)
        self._placement_store.close()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._look()
                heard = self._placement_store.watch(EVERY)
                self._heard |= {one.key for one in heard if isinstance(one, PinMoved)}
            except StickyError:
                self._ended.wait(EVERY)  # a fault is hitting the store

    def _look(self) -> None:
        known, asked = self._view, time.monotonic_ns()
        look = self._placement_store.look((known.version, known.generation) if known else NO_VERSION, self._keys)
        answered = time.monotonic_ns()
        if look.changed and look.view is not None:
            self.moves.views.append(Change(self._before, answered, look.view))
        for key in self._keys:
            pin, seen = look.pins.get(key, ""), self.moves.pins.setdefault(key, [])
            # A pin that was set and removed between two reads is known only from its notification.
            if not seen or seen[-1].value != pin or key in self._heard:
                seen.append(Change(self._before, answered, pin))
        self._before = asked
        self._heard.clear()

    @property
    def _view(self) -> View | None:
        return self.moves.views[-1].value if self.moves.views else None
