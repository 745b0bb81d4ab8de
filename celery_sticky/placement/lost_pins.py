"""Pins that this worker lost: others ended them, or they ended with an earlier incarnation of it, or with the store.

Any process of a worker may pin a key, so none of them knows all its pins. Whatever ends a pin notes it in the placement
store under the incarnation that had it; the worker that was this incarnation looks there. A store that has lost its
data has lost these notes too: then the worker can only say that no pin is left.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from celery_sticky.placement.flow import Flow
from celery_sticky.stores.flow import Aside, ask
from celery_sticky.stores.placement import LOST_KEPT, START, PlacementStore

LOOK_EVERY = 5.0
"""Seconds between lookups: the hint that a pin was lost may itself be lost."""


class PinHooks(Protocol):
    """The connection to the application. May take its time: both are called aside."""

    def pins_lost(self, keys: frozenset[str]) -> None:
        """Take in that this worker has lost its pins of these keys."""

    def pins_forgotten(self) -> None:
        """Take in that the store may have forgotten any pin of this worker."""


class LostPins:
    """Tells the application about lost pins. `now` is in seconds on one clock."""

    def __init__(self, worker: str, hooks: PinHooks, trusted: Callable[[], bool]) -> None:
        self._worker, self._hooks, self._trusted = worker, hooks, trusted
        self._incarnations: list[str] = []
        self._generation: int | None = None
        self._look_at = 0.0
        self._looked_at: float | None = None
        self._forgotten = False

    def joined(self, incarnation: str, generation: int) -> None:
        """Note the incarnation and its document's generation. Pins of earlier incarnations are lost.

        Another generation is another document: the store had lost the earlier one, or an older copy of it was back.
        """
        if incarnation not in self._incarnations:
            self._incarnations.append(incarnation)
            self._look_at = 0.0
            self._forgotten |= self._generation not in (None, generation)
            self._generation = generation

    def moved(self) -> None:
        """Note that the pin of a key changed that may have been ours."""
        self._look_at = 0.0

    def look_after(self, now: float) -> Flow[None]:
        """Tell the application which pins were lost, while the lease is trusted, so that it may pin them again."""
        if now < self._look_at:
            return
        if len(self._incarnations) > 1:
            # The sweep records remaining pins of earlier incarnations as lost, unless that is already done.
            on = yield from ask(PlacementStore.sweep, START)
            while on != START:
                on = yield from ask(PlacementStore.sweep, on)
            self._forgotten |= self._looked_at is not None and now > self._looked_at + LOST_KEPT
        keys = yield from ask(PlacementStore.lost, self._worker, tuple(self._incarnations))
        if not self._trusted():
            return  # this process may just have resumed, not yet knowing that it has a new incarnation
        if keys:
            yield Aside(partial(self._hooks.pins_lost, frozenset(keys)))
            yield from ask(PlacementStore.forget, tuple(self._incarnations), keys)
        if self._forgotten:
            self._forgotten = False
            yield Aside(self._hooks.pins_forgotten)
        del self._incarnations[:-1]
        self._look_at, self._looked_at = now + LOOK_EVERY, now
