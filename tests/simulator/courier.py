"""A courier without a thread: the real `DeliveryState` decides on requests; each request and answer is one step."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from celery_sticky.delivery.courier import IDLE, RETRY_FIRST, RETRY_LAST, have_claimed
from celery_sticky.delivery.envelope import parse
from celery_sticky.delivery.gate import Entry
from celery_sticky.delivery.outbox import LINGER
from celery_sticky.delivery.state import DeliveryState, End, Item
from celery_sticky.errors import Fenced
from celery_sticky.keys import SlotId
from celery_sticky.ownership.events import BrokerDown, BrokerUp
from celery_sticky.queues.base import Delivery, Fetched, Tag, Tenure
from simulator.broker import WitnessedQueues
from simulator.scenario import Point
from simulator.terms import BROKER_GRACE, EPOCH, KEYSPACE, MAX_ATTEMPTS, MAX_WAITING

if TYPE_CHECKING:
    from simulator.process import Process

T = TypeVar("T")

HESITATION = 0.01 + LINGER
"""Maximum seconds from the end of a task until its disposition is sent with the next request."""


class SteppedCourier:
    """Does the same as `delivery.courier.Courier`, in the same order."""

    def __init__(self, process: Process) -> None:
        self._process, self._world, self._pool = process, process.world, process.pool
        self.delivery_state = DeliveryState(
            process.report,
            worker=process.name,
            concurrency=process.pool.concurrency,
            max_waiting=MAX_WAITING,
            max_attempts=MAX_ATTEMPTS,
        )
        self._placed = process.world.scenario.placement is not None
        self._queues: WitnessedQueues | None = None
        self._asking = self._reopening = self._hung_up = False
        self._down_since: float | None = None
        self.gave_up = False
        """Whether the broker was ever down for longer than its grace; then slots go with unconfirmed dispositions."""
        self._told_at = 0.0
        """The time of the last request that was answered."""
        self._lost: list[SlotId] = []
        """Slots lost since the current request."""
        self._alarm = 0
        self._pause = RETRY_FIRST

    @property
    def _now(self) -> float:
        return self._world.now + EPOCH

    # -- for the member ------------------------------------------------------------------------

    def open(self, slot: SlotId, epoch: int, incarnation: str) -> None:
        """See `Courier.open`."""
        self.delivery_state.open(slot, epoch, incarnation)
        self._wake()

    def stop(self, slot: SlotId) -> None:
        """See `Courier.stop`."""
        self.delivery_state.stop(slot, self._now)
        self._wake()

    def close(self, slot: SlotId) -> None:
        """See `Courier.close`."""
        self.delivery_state.close(slot)
        if self._down_since is not None:
            self._cut_off(slot)
        elif self._asking:
            self._lost.append(slot)
        self._wake()

    # -- for the placer ------------------------------------------------------------------------

    def trusts(self, _: str) -> bool:
        """See `Courier.trusts`."""
        return self._process.trusts

    def consult(self, ask: Callable[[DeliveryState], T]) -> T:
        """See `Courier.consult`."""
        return ask(self.delivery_state)

    def decide(self, tell: Callable[[DeliveryState, float], None]) -> None:
        """See `Courier.decide`."""
        tell(self.delivery_state, self._now)
        self._process.learns_of_claims()
        self._wake()

    # -- for the pool --------------------------------------------------------------------------

    def take(self, most: int) -> list[Entry]:
        """See `Courier.take`."""
        return self.delivery_state.take(most, lambda _: self._process.trusts)

    def start_entry(self, entry: Entry, turn: int) -> bool:
        """See `Courier.start_entry`."""
        if self.delivery_state.gate.start(entry, turn, trusted=self._process.trusts):
            return True
        self.delivery_state.gate.put_back(entry, turn)
        return False

    def again(self, entry: Entry, *, counted: bool) -> None:
        """See `Courier.again`."""
        self.delivery_state.again(entry, counted=counted)
        self._wake()

    def end(self, entry: Entry, end: End) -> None:
        """See `Courier.end`."""
        if self.delivery_state.end(entry, end, self._now):
            self._wake()

    # -- one request at a time -----------------------------------------------------------------

    def hear(self, slot: SlotId) -> None:
        """Note that a slot got a message."""
        if self.delivery_state.gate.is_open(slot):
            self._wake()

    def _wake(self) -> None:
        if not self._asking:
            self._go_on_in(self._process.rng.uniform(0, 0.005))

    def _go_on_in(self, delay: float) -> None:
        self._alarm += 1
        self._world.after(delay, partial(self._rings, self._alarm))

    def _rings(self, alarm: int) -> None:
        if alarm == self._alarm:
            self._process.outcome(self._go_on)

    def _go_on(self) -> None:
        """Make the next request, or wait until there is one."""
        if self._asking:
            return
        queues, delivery_state = self._queues, self.delivery_state
        if queues is None:
            self._ask(Point.FETCH_ASKED, Point.FETCH_ANSWERED, self._world.connect, self._connected)
        elif (opening := delivery_state.next_to_open()) is not None:
            self._open(queues, *opening)
        else:
            self._reopened()
            now = self._now
            dispositions = delivery_state.dispositions(now)
            wants = delivery_state.wants(now, company=bool(dispositions))
            if dispositions or wants:
                queues.about = {
                    disposition: delivery_state.outbox.about(disposition).content.delivery.body
                    for disposition in dispositions
                }
                fetch = partial(queues.fetch, wants, dispositions, now)
                self._ask(Point.FETCH_ASKED, Point.FETCH_ANSWERED, fetch, partial(self._fetched, now))
            else:
                self._idle(queues, now)

    def _idle(self, queues: WitnessedQueues, now: float) -> None:
        delivery_state = self.delivery_state
        woken = queues.idle(0.0)
        delivery_state.rounds.note(slot for slot in woken if delivery_state.gate.is_open(slot))
        if delivery_state.gate.has_ready:
            self._pool.ready()
        ends = [now + (0.25 if delivery_state.gate.has_ready else IDLE)]
        ends += [end for end in (delivery_state.outbox.goes_at, delivery_state.rounds.next_due) if end is not None]
        self._go_on_in(1e-4 if woken else max(0.0, min(ends) - now) + 1e-4)

    def _connected(self, queues: WitnessedQueues) -> None:
        self._queues = queues
        self.delivery_state.reopen_all(self._now)
        self._reopening = True

    def _reopened(self) -> None:
        if self._reopening and self._down_since is not None:
            self._down_since = None
            self._process.report(KEYSPACE, BrokerUp())
        self._reopening = False

    def _open(self, queues: WitnessedQueues, tenure: Tenure, keep: tuple[Tag, ...]) -> None:
        def serve() -> Collection[Tag] | Fenced:
            try:
                return queues.open(tenure, keep)
            except Fenced as fenced:
                return fenced

        def take(answer: Collection[Tag] | Fenced) -> None:
            if isinstance(answer, Fenced):
                self.delivery_state.fenced(tenure, answer.epoch)
            else:
                self.delivery_state.opened(tenure, answer)

        self._ask(Point.OPEN_ASKED, Point.OPEN_ANSWERED, serve, take)

    def _fetched(self, asked: float, fetched: Fetched) -> None:
        self._told_at = asked - EPOCH
        self.delivery_state.take_in(fetched, asked)
        for envelope, error in self.delivery_state.refused:
            self._world.note(self._process.origin, "%s is told: %s", envelope.task_id, error)
        self.delivery_state.refused = []
        for delivery in fetched.deliveries:
            self._admit(delivery, asked)
        if fetched.deliveries and self._process.placer is not None:
            self._process.placer.wake()
        if self.delivery_state.gate.has_ready:
            self._pool.ready()

    def _admit(self, delivery: Delivery, now: float) -> None:
        slot = (delivery.tenure.keyspace, delivery.tenure.slot)
        envelope = parse(delivery.body)
        key = self._pool.lock_of(slot, envelope)
        entry = Entry(slot, delivery.tag, key, Item(delivery, envelope), attempts=delivery.attempts)
        if self._placed:
            have_claimed(entry, envelope)
            entry.claim = (KEYSPACE, str(envelope.headers["key"]))  # the same name, with the hash it has here
        self.delivery_state.admit(entry, self._pool.due_of(envelope), now)

    def hang_up(self) -> None:
        """Note that the broker closed the connection."""
        if self._asking:
            self._hung_up = True
        elif self._queues is not None:
            self._failed()

    # -- the line to the broker ----------------------------------------------------------------

    def _ask(self, asked: Point, answered: Point, serve: Callable[[], T], take: Callable[[T], None]) -> None:
        self._asking = True
        process, world = self._process, self._world

        def take_in(answer: T) -> None:
            if process.passes(answered):
                process.outcome(partial(take_in, answer))
                return
            if self._hung_up:
                self._failed()
                return
            self._asking = False
            self._lost.clear()
            self._pause = RETRY_FIRST
            take(answer)
            self._go_on()

        def send() -> None:
            world.ask(
                process.rng,
                world.broker_losses,
                world.now < process.broker_cut_until,
                serve=serve,
                answered=lambda answer: process.outcome(partial(take_in, answer)),
                failed=lambda: process.outcome(self._failed),
            )

        # A process paused while sending has either sent its request already, or sends it when it resumes.
        if process.passes(asked) and process.rng.random() < 0.5:
            process.outcome(send)
        else:
            send()

    def _cut_off(self, slot: SlotId) -> None:
        self._world.witness.cuts_off(self._process, slot[1], self._told_at - HESITATION)

    def _failed(self) -> None:
        self._asking = self._hung_up = False
        for slot in self._lost:
            self._cut_off(slot)
        self._lost.clear()
        self._queues = None
        if self._down_since is None:
            self._down_since = self._world.now
            self._process.report(KEYSPACE, BrokerDown())
        elif self._world.now >= self._down_since + BROKER_GRACE:
            self.gave_up = True
            self.delivery_state.give_up_ended()
        self._go_on_in(self._pause)
        self._pause = min(self._pause * 2, RETRY_LAST)
