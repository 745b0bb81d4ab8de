"""A placer without a thread: the real `PlacementState` decides the requests; each request to the store is one step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from celery_sticky.errors import StoreUnavailable
from celery_sticky.membership.flow import Snapshot
from celery_sticky.ownership.events import Event, ViewChanged
from celery_sticky.placement.flow import Flow, Request
from celery_sticky.placement.placer import BROKEN_PAUSE
from celery_sticky.placement.state import PlacementState
from celery_sticky.stores.flow import Aside
from celery_sticky.stores.placement import PinMoved
from simulator.pinning import Pinning
from simulator.placement_store import WitnessedPlacementStore
from simulator.scenario import Point
from simulator.terms import KEYSPACE

if TYPE_CHECKING:
    from simulator.placed import Placed
    from simulator.process import Process


class SteppedPlacer:
    """Does the same as `placement.placer.Placer`, in the same order."""

    def __init__(self, process: Process, placed: Placed) -> None:
        self._process, self._world, self._placed = process, process.world, placed
        self.placement_store = WitnessedPlacementStore(process.world, placed, process.name)
        self.pinning = Pinning(process, placed)
        self.placement_store.watch(0.0)
        self._state = PlacementState(
            placed.keyspace,
            placed.slots,
            process.name,
            process.world.connect,
            process.courier,
            membership=lambda: process.jobs.membership if process.jobs is not None else 0,
            report=partial(process.report, KEYSPACE),
            pins_lost=self._lost,
            wake=self.wake,
            clock=lambda: process.clock,
        )
        self.jobs = self._state.jobs
        self._flow: Flow[float] | None = None
        self._woken = False
        self._heard: list[PinMoved] = []
        self._alarm = 0
        self.wake()

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
        """See `Placer.wake`."""
        self._woken = True
        if self._flow is None:
            self._go_on_in(self._process.rng.uniform(0, 0.005))

    def hear(self, heard: PinMoved | ViewChanged) -> None:
        """Take in a signal between two turns."""
        if isinstance(heard, PinMoved):
            self._heard.append(heard)
        self.wake()

    def _lost(self, keys: frozenset[str]) -> None:
        self._process.later(self._process.rng.uniform(0, 0.01), partial(self.pinning.lost, keys))

    def close(self) -> None:
        """Close the connection, because the process is dead."""
        self.placement_store.close()

    # -- its turns -----------------------------------------------------------------------------

    def _go_on_in(self, delay: float) -> None:
        self._alarm += 1
        self._world.after(delay, partial(self._rings, self._alarm))

    def _rings(self, alarm: int) -> None:
        if alarm == self._alarm:
            self._process.outcome(partial(self._begin, alarm))

    def _begin(self, alarm: int) -> None:
        if alarm != self._alarm or self._flow is not None:
            return
        heard, self._heard = self._heard, []
        for moved in heard:
            self._state.hear(moved)
        self._woken = False
        self._flow = flow = self._state.turn()
        self._carry_on(flow, None)

    def _carry_on(self, flow: Flow[float], answer: object) -> None:
        try:
            request = flow.throw(answer) if isinstance(answer, StoreUnavailable) else flow.send(answer)
        except StoreUnavailable:
            self._rest(BROKEN_PAUSE)
        except StopIteration as end:
            self._rest(end.value)
        else:
            self._make(flow, request)

    def _rest(self, pause: float) -> None:
        self._flow = None
        self._go_on_in(1e-4 if self._woken else pause + 1e-4)

    def _make(self, flow: Flow[float], request: Request) -> None:
        if isinstance(request, Aside):
            request.call()
            self._carry_on(flow, None)
            return
        process = self._process

        def take_in(answer: object) -> None:
            if process.passes(Point.DIRECTORY_ANSWERED):
                process.outcome(partial(take_in, answer))
            else:
                self._carry_on(flow, answer)

        def send() -> None:
            process.ask_store(
                lambda: self._placed.serve(request, self.placement_store),
                answered=take_in,
                failed=lambda: self._carry_on(flow, StoreUnavailable("no answer")),
            )

        # A process paused while sending has either sent its request already, or sends it when it resumes.
        if process.passes(Point.PLACEMENT_STORE_ASKED) and process.rng.random() < 0.5:
            process.outcome(send)
        else:
            send()
