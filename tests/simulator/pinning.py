"""What the application in a worker does with pins: it pins keys, lets them go, and hears of those that are lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from celery_sticky.errors import StoreUnavailable
from celery_sticky.stores.placement import Pinned, PlacementStore
from simulator.placement_store import WitnessedPlacementStore
from simulator.placing import Pin

if TYPE_CHECKING:
    from simulator.placed import Placed
    from simulator.process import Process


class Pinning:
    """The pins of one process, as its application knows of them."""

    def __init__(self, process: Process, placed: Placed) -> None:
        self._process, self._world, self._placed = process, process.world, placed
        self._placement_store = WitnessedPlacementStore(process.world, placed, process.name)
        self.pinned: dict[str, tuple[Pin, Pinned]] = {}
        """Keys that it has pinned, has not let go, and was not told of as lost; the newest pin of each."""

    def pin(self, pin: Pin) -> None:
        """Pin a key, and let it go when that is wanted."""
        self._process.outcome(lambda: self._ask(pin, take=pin.take))

    def _ask(self, pin: Pin, *, take: bool) -> None:
        name, key = self._process.name, str(pin.key)
        if not self._process.trusts:
            return  # as `Sticky.pin`, which raises `NotAMember`

        def answered(answer: object) -> None:
            if not isinstance(answer, Pinned) or answer.by:
                self._world.note(self._process.origin, "has not pinned key %s: %s", key, answer)
                return
            self._world.note(self._process.origin, "has pinned key %s, token %s", key, answer.token)
            if key not in self.pinned or self.pinned[key][1].token < answer.token:
                self.pinned[key] = pin, answer
            if pin.seconds:
                self._process.later(pin.seconds, lambda: self._let_go(key, answer))

        self._request(lambda placement_store: placement_store.pin(name, key, take=take), answered)

    def _let_go(self, key: str, pinned: Pinned) -> None:
        """End this pin: a connection closes. The request may get lost, or arrive when the key is pinned again."""
        if key in self.pinned and self.pinned[key][1] == pinned:
            del self.pinned[key]
        self._world.note(self._process.origin, "lets go of key %s, token %s", key, pinned.token)
        name = self._process.name
        self._request(lambda placement_store: placement_store.unpin(name, key, pinned), lambda _: None)

    def lost(self, keys: frozenset[str]) -> None:
        """The application is told of pins that are lost."""
        self._world.note(self._process.origin, "is told that it has lost keys %s", sorted(keys))
        for key in sorted(keys):
            pin, _ = self.pinned.pop(key, (None, None))
            if pin is not None and pin.again:
                self._ask(pin, take=False)

    def forgotten(self) -> None:
        """The application is told that the store may have forgotten any of its pins."""
        self.lost(frozenset(self.pinned))

    def _request(self, request: Callable[[PlacementStore], object], answered: Callable[[object], None]) -> None:
        self._process.ask_store(
            lambda: self._placed.serve(request, self._placement_store),
            answered=answered,
            failed=lambda: answered(StoreUnavailable("no answer")),
        )
