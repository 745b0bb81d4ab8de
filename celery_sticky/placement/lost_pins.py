"""Pins that this worker lost: taken by another worker, or ended with an earlier incarnation of this worker.

Any process of a worker may pin a key, so none of them knows all its pins. Whatever ends a pin notes it in the placement
store under the incarnation that had it; the worker that was this incarnation looks there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from celery_sticky.placement.flow import Flow
from celery_sticky.stores.flow import Aside, ask
from celery_sticky.stores.placement import START, PlacementStore

LOOK_EVERY = 5.0
"""Seconds between lookups: the hint that a pin was lost may itself be lost."""


class LostPins:
    """Tells the application about lost pins. `now` is in seconds on one clock."""

    def __init__(self, worker: str, tell: Callable[[frozenset[str]], None], trusted: Callable[[], bool]) -> None:
        self._worker, self._tell, self._trusted = worker, tell, trusted
        self._incarnations: list[str] = []
        self._look_at = 0.0

    def joined(self, incarnation: str) -> None:
        """Note the current incarnation; pins of earlier incarnations are lost."""
        if incarnation not in self._incarnations:
            self._incarnations.append(incarnation)
            self._look_at = 0.0

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
        keys = yield from ask(PlacementStore.lost, self._worker, tuple(self._incarnations))
        if not self._trusted():
            return  # this process may just have resumed, not yet knowing that it has a new incarnation
        if keys:
            yield Aside(partial(self._tell, frozenset(keys)))
            yield from ask(PlacementStore.forget, tuple(self._incarnations), keys)
        del self._incarnations[:-1]
        self._look_at = now + LOOK_EVERY
