"""A keyspace's seat without its thread: each request of its flow to the store is one step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from celery_sticky.errors import StickyError, StoreUnavailable
from celery_sticky.stores.flow import Aside, Pause, Watch
from simulator.scenario import Point

if TYPE_CHECKING:
    from simulator.process import Process


class SteppedSeat(ABC):
    """Does the same as `platform.seat.Seat` and the thread around it, in the same order."""

    asked: ClassVar[Point]
    answered: ClassVar[Point]
    """Where faults strike: as a request is made, and as its answer arrives."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._flow: Generator[Any, Any, None] | None = None
        self._heard: list[Any] = []
        self._watching = self._woken = self._cut = False
        self._alarm = 0
        self.lost_in_a_row = 0
        """How many of its last requests had no answer."""

    # -- the routine ---------------------------------------------------------------------------

    @abstractmethod
    def turn(self) -> Generator[Any, Any, None]:
        """See `Routine.turn`."""

    @abstractmethod
    def serve(self, request: Callable[[Any], object]) -> object:
        """Make a request to the store; return its answer, or the expected error."""

    @property
    @abstractmethod
    def subscribed(self) -> bool:
        """Whether the store has signals for it."""

    def strikes(self, request: Callable[[Any], object]) -> bool:
        """Whether faults strike at this request."""
        return True

    # -- from others ---------------------------------------------------------------------------

    def start(self) -> None:
        """Begin the first turn."""
        self._go_on(None)

    def notice(self) -> None:
        """See `Seat.wake`; the thread notices it now."""
        self._woken = True
        self._look_up()

    def hear(self, signal: object) -> None:
        """Take in a signal of the store."""
        self._heard.append(signal)
        self._look_up()

    def cut(self) -> None:
        """Note that the store has dropped the subscription."""
        self._cut = True
        self._look_up()

    def _look_up(self) -> None:
        if self._watching:
            self._process.outcome(partial(self._watched, self._alarm))

    # -- the flow ------------------------------------------------------------------------------

    def _go_on(self, answer: object) -> None:
        """Let the flow continue with an answer, or with an error, up to its next request."""
        request = None
        while request is None:
            if self._flow is None:
                self._flow, answer = self.turn(), None
            try:
                request = self._flow.throw(answer) if isinstance(answer, StickyError) else self._flow.send(answer)
            except StopIteration:
                self._flow = None
        self._perform(request)

    def _perform(self, request: Any) -> None:
        match request:
            case Watch(seconds):
                self._watch(seconds)
            case Pause(seconds):
                self._process.later(seconds, partial(self._go_on, None))
            case Aside(call):
                call()
                self._go_on(None)
            case _:
                self._ask(request)

    # -- the line to the store -----------------------------------------------------------------

    def _watch(self, seconds: float) -> None:
        if not (self.subscribed or self._cut):
            self._ask(_subscribe)
            return
        self._watching = True
        self._alarm += 1
        process = self._process
        if self._woken or self._heard or self._cut:
            self._watched(self._alarm)
        else:
            watched = partial(self._watched, self._alarm)
            process.world.after(seconds / process.rate + 1e-6, partial(process.outcome, watched))

    def _watched(self, alarm: int) -> None:
        if not self._watching or alarm != self._alarm:
            return
        self._watching = self._woken = False
        cut, self._cut = self._cut, False
        if cut:
            self._go_on(StoreUnavailable("the subscription broke"))
            return
        heard, self._heard = self._heard, []
        self._go_on(heard)

    def _ask(self, request: Callable[[Any], object]) -> None:
        process, strikes = self._process, self.strikes(request)

        def take_in(answer: object) -> None:
            if strikes and process.passes(self.answered):
                process.outcome(partial(take_in, answer))
            else:
                self._go_on(answer)

        def answered(answer: object) -> None:
            self.lost_in_a_row = 0
            take_in(answer)

        def lost() -> None:
            self.lost_in_a_row += 1
            take_in(StoreUnavailable("no answer"))

        def send() -> None:
            process.ask_store(lambda: self.serve(request), answered=answered, failed=lost)

        # A process that is frozen while it asks has sent its request already, or sends it when it wakes.
        if strikes and process.passes(self.asked) and process.rng.random() < 0.5:
            process.outcome(send)
        else:
            send()


def _subscribe(store: Any) -> object:
    return store.watch(0.0)
