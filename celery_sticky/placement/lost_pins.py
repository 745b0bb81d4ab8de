"""Pins that have ended without this worker's doing: taken by another worker, or gone with an incarnation of ours.

Any process of a worker may pin a key, so none of them knows all its pins. What ends a pin notes it in the directory,
under the incarnation that had it; whoever was that incarnation looks there.
"""

from __future__ import annotations

from collections.abc import Callable

from celery_sticky.placement.flow import Flow, ask
from celery_sticky.stores.placement import START, PlacementStore

LOOK_EVERY = 5.0
"""Seconds between two looks: the hint that there is something to see may be lost."""


class LostPins:
    """Tells the application of them. `now` is in seconds on one clock."""

    def __init__(self, worker: str, tell: Callable[[frozenset[str]], None], trusted: Callable[[], bool]) -> None:
        self._worker, self._tell, self._trusted = worker, tell, trusted
        self._incarnations: list[str] = []
        self._look_at = 0.0

    def joined(self, incarnation: str) -> None:
        """This is who we are now; what we have pinned as another one is lost."""
        if incarnation not in self._incarnations:
            self._incarnations.append(incarnation)
            self._look_at = 0.0

    def moved(self) -> None:
        """The pin of a key has changed that was ours, perhaps."""
        self._look_at = 0.0

    def look_after(self, now: float) -> Flow[None]:
        """Tell what has been lost, while the lease is trusted: so that receivers may pin again."""
        if now < self._look_at:
            return
        if len(self._incarnations) > 1:
            # What has not been taken over is noted as lost by this, unless it was before.
            on = yield from ask(PlacementStore.sweep, START)
            while on != START:
                on = yield from ask(PlacementStore.sweep, on)
        keys = yield from ask(PlacementStore.lost, self._worker, tuple(self._incarnations))
        if not self._trusted():
            return  # perhaps we have just thawed, and do not know yet that we are somebody else
        if keys:
            self._tell(frozenset(keys))
            yield from ask(PlacementStore.forget, tuple(self._incarnations), keys)
        del self._incarnations[:-1]
        self._look_at = now + LOOK_EVERY
