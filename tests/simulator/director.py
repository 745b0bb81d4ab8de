"""A director without a thread: the real direction says what to ask; each request to the directory is a step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from celery_sticky.errors import StoreUnavailable
from celery_sticky.membership.member import Snapshot
from celery_sticky.ownership.events import Event, ViewChanged
from celery_sticky.placement.direction import Direction
from celery_sticky.placement.director import BROKEN_PAUSE
from celery_sticky.placement.talks import Request, Talk
from celery_sticky.stores.directory import PinMoved
from simulator.directory import WitnessedDirectory
from simulator.pinning import Pinning
from simulator.scenario import Point
from simulator.terms import KEYSPACE

if TYPE_CHECKING:
    from simulator.directed import Directed
    from simulator.process import Process


class SteppedDirector:
    """Does what `placement.director.Director` does, in its order."""

    def __init__(self, process: Process, directed: Directed) -> None:
        self._process, self._world, self._directed = process, process.world, directed
        self.directory = WitnessedDirectory(process.world, directed, process.name)
        self.pinning = Pinning(process, directed)
        self.directory.watch(0.0)
        self._direction = Direction(
            directed.keyspace,
            directed.slots,
            process.name,
            process.world.connect,
            process.courier,
            term=lambda: 0,
            report=partial(process.report, KEYSPACE),
            pins_lost=self._lost,
            wake=self.wake,
            clock=lambda: process.clock,
        )
        self._talk: Talk[float] | None = None
        self._woken = False
        self._heard: list[PinMoved] = []
        self._alarm = 0
        self.wake()

    # -- for the member and the courier --------------------------------------------------------

    def joining(self, incarnation: str, joined: Callable[[], None], failed: Callable[[], None]) -> None:
        """See `Director.joining`: goes on with one of them."""
        self._process.ask_store(
            lambda: self._directed.serve(
                lambda directory: directory.enlist(self._process.name, incarnation), self.directory
            ),
            answered=lambda answer: failed() if isinstance(answer, StoreUnavailable) else joined(),
            failed=failed,
        )

    def observe(self, snapshot: Snapshot) -> None:
        """See `Director.observe`."""
        self._direction.observe(snapshot)

    def beaten(self, incarnation: str, counter: int) -> None:
        """See `Director.beaten`."""
        self._direction.beaten(incarnation, counter)

    def report(self, event: Event) -> None:
        """See `Director.report`."""
        self._direction.report(event)

    def wake(self) -> None:
        """See `Director.wake`."""
        self._woken = True
        if self._talk is None:
            self._go_on_in(self._process.rng.uniform(0, 0.005))

    def hear(self, heard: PinMoved | ViewChanged) -> None:
        """A signal has arrived: it is taken in between two turns."""
        if isinstance(heard, PinMoved):
            self._heard.append(heard)
        self.wake()

    def _lost(self, keys: frozenset[str]) -> None:
        self._process.later(self._process.rng.uniform(0, 0.01), partial(self.pinning.lost, keys))

    def close(self) -> None:
        """Its process is dead."""
        self.directory.close()

    # -- its turns -----------------------------------------------------------------------------

    def _go_on_in(self, delay: float) -> None:
        self._alarm += 1
        self._world.after(delay, partial(self._rings, self._alarm))

    def _rings(self, alarm: int) -> None:
        if alarm == self._alarm:
            self._process.act(partial(self._begin, alarm))

    def _begin(self, alarm: int) -> None:
        if alarm != self._alarm or self._talk is not None:
            return
        heard, self._heard = self._heard, []
        for moved in heard:
            self._direction.hear(moved)
        self._woken = False
        self._talk = talk = self._direction.turn()
        self._carry_on(talk, None)

    def _carry_on(self, talk: Talk[float], answer: object) -> None:
        try:
            request = talk.throw(answer) if isinstance(answer, StoreUnavailable) else talk.send(answer)
        except StoreUnavailable:
            self._rest(BROKEN_PAUSE)
        except StopIteration as end:
            self._rest(end.value)
        else:
            self._make(talk, request)

    def _rest(self, pause: float) -> None:
        self._talk = None
        self._go_on_in(1e-4 if self._woken else pause + 1e-4)

    def _make(self, talk: Talk[float], request: Request) -> None:
        process = self._process

        def take_in(answer: object) -> None:
            if process.passes(Point.DIRECTORY_ANSWERED):
                process.act(partial(take_in, answer))
            else:
                self._carry_on(talk, answer)

        def send() -> None:
            process.ask_store(
                lambda: self._directed.serve(request, self.directory),
                answered=take_in,
                failed=lambda: self._carry_on(talk, StoreUnavailable("no answer")),
            )

        # Whoever stands still as it asks has sent its request already, or sends it when it wakes.
        if process.passes(Point.DIRECTORY_ASKED) and process.rng.random() < 0.5:
            process.act(send)
        else:
            send()
