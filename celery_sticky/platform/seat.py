"""A keyspace's seat in a thread that runs the flows of many keyspaces: what its flow waits for, and how it goes on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from enum import StrEnum
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from celery_sticky.errors import StoreRefused, StoreUnavailable
from celery_sticky.stores.flow import Aside, Asked, Pause, Watch
from celery_sticky.stores.shared import AnyStore, SharedClient

ERROR_PAUSE = 1.0
"""Seconds until the next turn after an unexpected error."""
NOW, NEVER = float("-inf"), float("inf")

Kept = TypeVar("Kept", bound=AnyStore)
"""The kind of store that the flows ask."""
Flow = Generator[Any, Any, None]


class Routine(Protocol[Kept]):
    """What one keyspace does in the thread. Every method is called there."""

    def open(self, client: SharedClient) -> Kept:
        """Open the store of the keyspace."""

    def turn(self) -> Flow:
        """Return the flow of one turn; the next turn follows at once. An error of the store is raised inside."""

    def perform(self, request: Any, store: Kept) -> object:
        """Carry out a request that is neither `Watch`, `Pause` nor `Aside`, and return its answer."""

    def failed(self) -> None:
        """Handle an unexpected error of a turn, which is being raised. The next turn begins in `ERROR_PAUSE`."""

    def ended(self) -> None:
        """Handle the end: there are no more turns."""


class State(StrEnum):
    """What a seat waits for."""

    TURN = "nothing: its next turn can begin"
    ASKS = "the thread, to make its request"
    WATCHES = "signals, a wake, or its deadline"
    PAUSES = "its deadline"
    AWAY = "another thread, which does something for it"


class Seat(Generic[Kept]):
    """One keyspace in the thread. Any thread may call `wake` and `stop`, and read `ended`."""

    def __init__(
        self, routine: Routine[Kept], notify: Callable[[], None], spawn: Callable[[Callable[[], None]], Any]
    ) -> None:
        """`notify` ends the wait of the thread; `spawn` runs something in another thread."""
        self.ended = False
        """Whether there are no more turns."""
        self.store: Kept | None = None
        self.listening = False
        """Whether the store is subscribed, as far as is known."""
        self._routine, self._notify, self._spawn = routine, notify, spawn
        self._state = State.TURN
        self._flow: Flow | None = None
        self._request: Any = None
        self._asked_at = self._until = 0.0
        self._heard: list[Any] = []
        self._lost: StoreUnavailable | None = None
        """Why the subscription broke, if the flow does not know it yet."""
        self._outcome: deque[Exception | None] = deque()
        """How what another thread does for the flow has ended."""
        self._woken = self._stopping = False

    # -- from any thread -----------------------------------------------------------------------

    def wake(self) -> None:
        """End the present `Watch` of the flow, or the next one, at once."""
        self._woken = True
        self._notify()

    def stop(self) -> None:
        """End the turns when the flow waits next."""
        self._stopping = True
        self._notify()

    # -- for the thread ------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether it was stopped, and the flow waits."""
        return self._stopping and self._state not in (State.ASKS, State.AWAY)

    @property
    def asks(self) -> bool:
        """Whether the flow stands at a request."""
        return self._state is State.ASKS

    @property
    def due(self) -> float:
        """When the flow can go on."""
        match self._state:
            case State.WATCHES:
                return NOW if self._lost or self._heard or self._woken or self._stopping else self._until
            case State.PAUSES:
                return NOW if self._stopping else self._until
            case State.AWAY:
                return NOW if self._outcome else NEVER
        return NOW

    def urgency(self, urgent: Iterable[str]) -> tuple[bool, float]:
        """Return what to order requests by; `urgent` are the verbs that go first."""
        request = self._request
        return not (isinstance(request, Asked) and request.verb in urgent), self._asked_at

    def hear(self, signals: Iterable[Any]) -> None:
        """Take in signals for the store."""
        self._heard.extend(signals)

    def lose(self, error: StoreUnavailable) -> None:
        """Take in that the subscription broke."""
        self.listening, self._lost = False, error

    def proceed(self, now: float) -> None:
        """Let the flow go on if what it waits for is here, up to its next request."""
        if self.asks or self.due > now or self.over:
            return
        match self._state:
            case State.WATCHES if self._lost is not None:
                error, self._lost = self._lost, None
                self.fail(error)
            case State.WATCHES:
                self._woken = False  # before the flow looks at what woke it
                heard, self._heard = tuple(self._heard), []
                self._answer(heard)
            case State.AWAY if (outcome := self._outcome.popleft()) is not None:
                self.fail(outcome)
            case _:
                self._answer(None)

    def ask(self, client: Callable[[], SharedClient]) -> StoreUnavailable | None:
        """Make the request and let the flow go on; return the error if the server does not answer."""
        try:
            answer = self._perform(client)
        except Exception as error:
            if isinstance(error, StoreRefused):
                self.listening = False  # the driver may have dropped its connections
            self.fail(error)
            return error if type(error) is StoreUnavailable else None
        self._answer(answer)
        return None

    def fail(self, error: Exception) -> None:
        """Throw an error into the flow, instead of an answer."""
        self._go_on(lambda flow: flow.throw(error))

    def end(self) -> None:
        """End for good."""
        if self._flow is not None:
            self._flow.close()
        self._routine.ended()
        self.ended = True

    def _perform(self, client: Callable[[], SharedClient]) -> object:
        if self.store is None:
            self.store = self._routine.open(client())
        if not isinstance(self._request, Watch):
            return self._routine.perform(self._request, self.store)
        heard = (*self._heard, *self.store.watch(0.0))
        self.listening, self._heard = True, []
        return heard

    def _answer(self, answer: object) -> None:
        if self._flow is None:
            self._flow = self._routine.turn()
            answer = None
        self._go_on(lambda flow: flow.send(answer))

    def _go_on(self, step: Callable[[Flow], Any]) -> None:
        assert self._flow is not None
        try:
            request = step(self._flow)
        except StopIteration:
            self._flow, self._state = None, State.TURN
        except Exception:
            self._flow = None
            self._routine.failed()
            self._wait(State.PAUSES, ERROR_PAUSE)
        else:
            self._take(request)

    def _take(self, request: Any) -> None:
        match request:
            case Watch() if self._lost is not None:
                self._wait(State.WATCHES, 0.0)
            case Watch(seconds) if self.listening:
                self._wait(State.WATCHES, seconds)
            case Pause(seconds):
                self._wait(State.PAUSES, seconds)
            case Aside(call):
                self._state = State.AWAY
                self._spawn(partial(self._do, call))
            case _:
                self._state, self._request, self._asked_at = State.ASKS, request, time.monotonic()

    def _wait(self, state: State, seconds: float) -> None:
        self._state, self._until = state, time.monotonic() + seconds

    def _do(self, call: Callable[[], None]) -> None:
        """Do something for the flow, in another thread."""
        outcome: Exception | None = None
        try:
            call()
        except Exception as error:
            outcome = error
        self._outcome.append(outcome)
        self._notify()
