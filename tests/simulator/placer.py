"""A placer without a thread: the shipped `PlacerRoutine` and its `PlacementState`; the placer's seat is stepped."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from celery_sticky.errors import StoreUnavailable
from celery_sticky.membership.flow import Snapshot
from celery_sticky.ownership.events import Event
from celery_sticky.placement.flow import Flow, Request
from celery_sticky.placement.placer import PlacerRoutine
from celery_sticky.placement.state import PlacementState
from simulator.pinning import Pinning
from simulator.placement_store import WitnessedPlacementStore
from simulator.scenario import Point
from simulator.seat import SteppedSeat
from simulator.terms import KEYSPACE

if TYPE_CHECKING:
    from simulator.placed import Placed
    from simulator.process import Process


class SteppedPlacer(SteppedSeat):
    """Does the same as `placement.placer.Placer`, in the same order."""

    asked, answered = Point.PLACEMENT_STORE_ASKED, Point.DIRECTORY_ANSWERED

    def __init__(self, process: Process, placed: Placed) -> None:
        super().__init__(process)
        self._placed = placed
        self.placement_store = WitnessedPlacementStore(process.world, placed, process.name)
        self.pinning = Pinning(process, placed)
        self._state = PlacementState(
            placed.keyspace,
            placed.slots,
            process.name,
            process.world.connect,
            process.courier,
            membership=partial(process.lease.membership, KEYSPACE),
            report=partial(process.report, KEYSPACE),
            pin_hooks=self,
            wake=self.wake,
            clock=lambda: process.clock,
        )
        self.jobs = self._state.jobs
        self._routine = PlacerRoutine(KEYSPACE, self._state, lambda: process.clock)
        self._waking = False
        """Whether the thread is about to notice a wake."""
        process.later(process.rng.uniform(0, 0.005), self.start)

    # -- for the member and the courier --------------------------------------------------------

    def joining(self, incarnation: str, joined: Callable[[], None], failed: Callable[[], None]) -> None:
        """Enlist, as the member's clerk does. Continues with `joined` or `failed`."""
        self._process.ask_store(
            lambda: self._placed.serve(
                lambda placement_store: placement_store.enlist(self._process.name, incarnation), self.placement_store
            ),
            answered=lambda answer: failed() if isinstance(answer, StoreUnavailable) else joined(),
            failed=failed,
        )

    def observe(self, snapshot: Snapshot) -> None:
        """See `Placer.observe`."""
        self._state.observe(snapshot)

    def heartbeat_done(self, incarnation: str, counter: int) -> None:
        """See `Placer.beaten`."""
        self._state.heartbeat_done(incarnation, counter)

    def report(self, event: Event) -> None:
        """See `Placer.report`."""
        self._state.report(event)

    def wake(self) -> None:
        """See `Placer.wake`: the thread notices that a moment later."""
        if not self._waking:
            self._waking = True
            self._process.later(self._process.rng.uniform(0, 0.005), self._wake)

    def _wake(self) -> None:
        self._waking = False
        self.notice()

    def pins_lost(self, keys: frozenset[str]) -> None:
        """See `PinHooks.pins_lost`."""
        self._process.later(self._process.rng.uniform(0, 0.01), partial(self.pinning.lost, keys))

    def pins_forgotten(self) -> None:
        """See `PinHooks.pins_forgotten`."""
        self._process.later(self._process.rng.uniform(0, 0.01), self.pinning.forgotten)

    def close(self) -> None:
        """Close the connection, because the process is dead."""
        self.placement_store.close()

    # -- the routine ---------------------------------------------------------------------------

    @property
    def subscribed(self) -> bool:
        """Whether the store has signals for it."""
        return self.placement_store.subscribed

    def turn(self) -> Flow[None]:
        """See `PlacerRoutine.turn`."""
        return self._routine.turn()

    def serve(self, request: Request) -> object:
        """See `PlacerRoutine.perform`."""
        return self._placed.serve(partial(self._routine.perform, request), self.placement_store)
