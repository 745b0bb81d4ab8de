"""A courier's line without a thread: each request of its flow, and each answer, is one step of the world."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from celery_sticky.delivery.outbox import LINGER
from celery_sticky.delivery.requests import (
    BrokerRequest,
    Close,
    Connect,
    Fetch,
    Flow,
    Idle,
    Open,
    Pause,
    Request,
    Unexpected,
)
from celery_sticky.errors import BrokerUnavailable
from celery_sticky.keys import SlotId
from celery_sticky.queues.base import Fetched
from celery_sticky.queues.guarantees import Fence
from simulator.broker import WitnessedQueues
from simulator.scenario import Point
from simulator.terms import BROKER_GRACE, EPOCH

if TYPE_CHECKING:
    from simulator.courier import WatchedCourier
    from simulator.process import Process

T = TypeVar("T")

HESITATION = 0.01 + LINGER
"""Maximum seconds from the end of a task until its disposition is sent with the next request."""
SWEEP = 2.0
"""Seconds after which an idle driver asks the broker for all its empty slots, in case it was not told of a message."""
WAKES_IN = 0.005
"""Maximum seconds until an idle thread goes on after it was woken."""
GIVES_UP = 6.0
"""Seconds after which a broker whose slots are held by connections gives up a silent one."""
Points = tuple[Point | None, Point | None]
FETCHING = (Point.FETCH_ASKED, Point.FETCH_ANSWERED)
OPENING = (Point.OPEN_ASKED, Point.OPEN_ANSWERED)


class SteppedLine:
    """Does the same as `delivery.line.ThreadedLine`, with a driver that the broker tells of messages."""

    def __init__(self, process: Process, courier: WatchedCourier) -> None:
        self._process, self._world, self._courier = process, process.world, courier
        self._flow: Flow[None]
        self._queues: WitnessedQueues | None = None
        self._asking = self._hung_up = False
        self._idling = self._woken = False
        self._alarm = 0
        self.gave_up = False
        """Whether the broker was ever down for longer than its grace."""
        self._heard_at = 0.0
        """The time of the last exchange of messages and dispositions that was answered."""
        self._closed: list[tuple[float, SlotId]] = []
        """The slots closed since, and when."""

    # -- for the courier -----------------------------------------------------------------------

    def start(self, flow: Flow[None]) -> None:
        """See `Line.start`."""
        self._flow = flow
        self._after(self._process.rng.uniform(0, WAKES_IN), partial(self._go_on, None))

    def wake(self) -> None:
        """See `Line.wake`."""
        self._woken = True
        self._rise()

    def join(self, timeout: float) -> None:
        """See `Line.join`; there is no thread, and nobody shuts a courier down here."""

    def closes(self, slot: SlotId) -> None:
        """Note that a slot is closed. If the line is broken now, the broker has not heard all that ended in it."""
        if self._courier.down_since is not None or self._world.scenario.held:
            self._cut_off(slot)
        else:
            self._closed.append((self._world.now, slot))

    # -- for the world -------------------------------------------------------------------------

    def hear(self, slot: SlotId) -> None:
        """Note that a slot got a message: the broker tells its reader, unless the signal is lost."""
        process, world = self._process, self._world
        awaits = self._idling and self._queues is not None and slot in self._queues.awaiting
        if awaits and world.now >= process.broker_cut_until and process.rng.random() >= world.broker_losses:
            self._rise()

    def hang_up(self) -> None:
        """Note that the broker closed the connection."""
        if self._asking:
            self._hung_up = True
        elif self._queues is not None:
            self._go_on(BrokerUnavailable("the broker closed the connection"))

    def break_off(self) -> None:
        """End the connection. A broker that cares is told when the network lets it hear."""
        queues, self._queues = self._queues, None
        if queues is not None and queues.guarantees.fence is Fence.CONNECTION:
            heard_at = max(self._world.now, self._process.broker_cut_until)
            self._world.at(heard_at + self._process.rng.uniform(0, 0.05), queues.close)

    def fall_silent(self, until: float) -> None:
        """Note that the broker hears nothing until then: it may give up this connection."""
        queues, world = self._queues, self._world
        if queues is None or queues.guarantees.fence is not Fence.CONNECTION or until < world.now + GIVES_UP:
            return
        world.after(GIVES_UP, queues.close)
        world.at(until, partial(self._process.outcome, partial(self._learn_of_end, queues)))

    def _learn_of_end(self, queues: WitnessedQueues) -> None:
        if queues is self._queues:
            self.hang_up()

    # -- one request at a time -----------------------------------------------------------------

    def _go_on(self, answer: object) -> None:
        """Let the flow take in an answer or an error, and perform its next request."""
        self._alarm += 1
        self._asking = self._hung_up = self._idling = False
        if isinstance(answer, BrokerUnavailable):
            for _, slot in self._closed:
                self._cut_off(slot)
            self._closed.clear()
        flow = self._flow
        self._perform(flow.throw(answer) if isinstance(answer, Exception) else flow.send(answer))

    def _perform(self, request: Request) -> None:
        match request:
            case Connect():
                self._ask(self._world.connect, self._connected, FETCHING)
            case Close():
                self.break_off()
                self._go_on(None)
            case Pause(seconds):
                down_since = self._courier.down_since
                self.gave_up |= down_since is not None and self._process.clock >= down_since + BROKER_GRACE
                self._after(seconds, partial(self._go_on, None))
            case Unexpected(error):
                raise error
            case _:
                assert self._queues is not None, "the flow connects first"
                self._perform_at(self._queues, request)

    def _perform_at(self, queues: WitnessedQueues, request: BrokerRequest) -> None:
        match request:
            case Idle(seconds):
                self._idle(queues, self._world.now + seconds, _served(partial(queues.idle, 0.0)))
            case Fetch():
                queues.about = self._courier.consult(
                    lambda state: {one: state.outbox.about(one).content.delivery.body for one in request.dispositions}
                )
                self._ask(partial(request, queues), partial(self._fetched, request.now - EPOCH), FETCHING)
            case Open():
                self._ask(partial(request, queues), self._go_on, OPENING)
            case _:
                self._ask(partial(request, queues), self._go_on)

    def _connected(self, queues: WitnessedQueues) -> None:
        self._queues = queues
        queues.process = self._process
        self._go_on(None)

    def _fetched(self, asked: float, fetched: Fetched) -> None:
        if (ledger := self._world.witness.ledger) is not None:
            for delivery in fetched.deliveries:
                if self._courier.is_open((delivery.tenure.keyspace, delivery.tenure.slot)):
                    ledger.comes(delivery.body, self._process)
        self._heard_at = asked
        self._closed = [(at, slot) for at, slot in self._closed if at > asked - HESITATION]
        self._go_on(fetched)

    def _cut_off(self, slot: SlotId) -> None:
        self._world.witness.cuts_off(self._process, slot[1], self._heard_at - HESITATION)

    # -- idling --------------------------------------------------------------------------------

    def _idle(self, queues: WitnessedQueues, until: float, ready: set[SlotId] | BrokerUnavailable) -> None:
        """Answer with the slots that may have a message, or wait for one, or for a wake-up, or until then."""
        now = self._world.now
        if ready or self._woken or now >= until or queues.has_answers:
            self._woken = False
            self._go_on(ready)
            return
        self._idling = True
        if queues.awaiting and until > now + SWEEP:
            self._after(SWEEP, partial(self._sweep, queues, until))
        else:
            self._after(until - now + 1e-4, partial(self._look, queues))

    def _rise(self) -> None:
        if self._idling and self._queues is not None:
            self._idling = False
            self._after(self._process.rng.uniform(0, WAKES_IN), partial(self._look, self._queues))

    def _look(self, queues: WitnessedQueues) -> None:
        self._woken = False
        self._go_on(_served(partial(queues.idle, 0.0)))

    def _sweep(self, queues: WitnessedQueues, until: float) -> None:
        self._idling = False
        self._ask(partial(queues.idle, 0.0), partial(self._idle, queues, until))

    def _after(self, delay: float, do: Callable[[], None]) -> None:
        """Do something after `delay` seconds, unless the flow has gone on or something else was set since."""
        self._alarm += 1
        self._process.later(delay, partial(self._rings, self._alarm, do))

    def _rings(self, alarm: int, do: Callable[[], None]) -> None:
        if alarm == self._alarm:
            do()

    # -- a request and its answer --------------------------------------------------------------

    def _ask(
        self,
        serve: Callable[[], T],
        then: Callable[[T], None],
        points: tuple[Point | None, Point | None] = (None, None),
    ) -> None:
        """Carry a request to the broker, and its answer back; go on with the answer, or with an error."""
        self._asking = True
        process, world, (asked, answered) = self._process, self._world, points

        def take_in(answer: T | BrokerUnavailable) -> None:
            if answered is not None and process.passes(answered):
                process.outcome(partial(take_in, answer))
                return
            self._asking = False
            if self._hung_up:
                self._go_on(BrokerUnavailable("the broker closed the connection"))
            elif isinstance(answer, BrokerUnavailable):
                self._go_on(answer)
            else:
                then(answer)

        def send() -> None:
            world.ask(
                process.rng,
                world.broker_losses,
                world.now < process.broker_cut_until,
                serve=partial(_served, serve),
                answered=lambda answer: process.outcome(partial(take_in, answer)),
                failed=lambda: process.outcome(lambda: self._go_on(BrokerUnavailable("no answer"))),
            )

        # A process paused while sending has either sent its request already, or sends it when it resumes.
        if asked is not None and process.passes(asked) and process.rng.random() < 0.5:
            process.outcome(send)
        else:
            send()


def _served(serve: Callable[[], T]) -> T | BrokerUnavailable:
    try:
        return serve()
    except BrokerUnavailable as error:  # the broker has ended this connection
        return error
