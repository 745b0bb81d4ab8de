"""The courier's loop, as a flow: it opens slots, fetches messages into the gate and settles ended tasks.

Each turn combines everything that is due into one round trip. The flow does no I/O and never waits: it yields
`requests`, is sent the answers, and decides what follows with the delivery state, under the courier's lock. That lock
is never held over a request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from celery_sticky.delivery.dead_trimmer import DeadTrimmer
from celery_sticky.delivery.intake import TaskSink, read
from celery_sticky.delivery.ledger_trimmer import LedgerTrimmer
from celery_sticky.delivery.requests import (
    BrokerFlow,
    Close,
    Connect,
    Fetch,
    Flow,
    Idle,
    Open,
    Pause,
    Release,
    Unexpected,
)
from celery_sticky.delivery.state import DeliveryState
from celery_sticky.errors import BrokerUnavailable
from celery_sticky.keys import SlotId
from celery_sticky.keyspace import DeadBounds
from celery_sticky.ownership.events import BrokerDown, BrokerUp, Event
from celery_sticky.platform.native import Section
from celery_sticky.queues.base import Delivery, Fetched, OpenAnswer, Want
from celery_sticky.queues.guarantees import FULL, Guarantees

logger = logging.getLogger("celery_sticky.courier")

IDLE = 30.0
"""Longest time in seconds that the courier idles without a wake-up."""
LOOK = 30.0
"""Seconds between two looks into open slots that have brought nothing."""
UNTRUSTED = 0.25
"""Seconds between two offers of entries that could not start for lack of trust."""
SHORTEST = 0.001
"""Shortest wait for a token, in seconds: a sum of fractions may fall just short of a whole one."""
RETRY_FIRST, RETRY_LAST = 0.05, 2.0
"""Seconds between attempts to reach a lost broker: the first pause and the longest."""


@dataclass(frozen=True, slots=True)
class CourierConfig:
    """The configuration of a courier. Times are in seconds."""

    keyspaces: Collection[str]
    worker: str
    max_waiting: int
    max_waiting_bytes: int
    max_attempts: int
    broker_grace: float
    placed: Collection[str] = ()
    """The keyspaces among `keyspaces` whose keys must be claimed."""
    guarantees: Guarantees = FULL
    """Those of the broker's driver."""
    claim_ahead: int | None = None
    """Most runs that are claimed in the ledger and wait for their start; None: as many as the pool runs at a time."""
    ledgers: Collection[str] = ()
    """The keyspaces among `keyspaces` with tasks that use a ledger."""
    ledger_retention: float = 86400.0
    """For how long a ledger knows a run that has finished."""
    dead_bounds: Mapping[str, DeadBounds] = field(default_factory=dict)
    """Keyspace -> the bounds of its dead queue."""


class CourierFlow:
    """The loop of a courier, and what it knows of its connection.

    `report` tells a keyspace's member an event, `unclaimed` tells its placer that messages came. Neither may block.
    """

    def __init__(
        self,
        config: CourierConfig,
        state: DeliveryState,
        lock: Section,
        report: Callable[[str, Event], None],
        unclaimed: Callable[[str], None],
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._config, self._state, self._lock = config, state, lock
        self._report, self._unclaimed = report, unclaimed
        self._clock, self._monotonic = clock, monotonic
        self._placed = frozenset(config.placed)
        self._dead_trimmer = DeadTrimmer(config.dead_bounds)
        self._ledger_trimmer = LedgerTrimmer(config.ledgers, config.ledger_retention)
        self._connected = False
        self.running = True
        """Set to False, and wake the flow, to end it."""
        self.idling = False
        """Whether it has found nothing to do and waits, or is about to: then a change must wake it."""
        self.decided = False
        """Whether decisions about keys may have made entries ready since the last turn."""
        self._next_look = 0.0
        """When to look into the open slots again, in seconds since the epoch."""
        self.down_since: float | None = None
        """When the broker was lost, on the monotonic clock; None: it is there."""

    def run(self, sink: TaskSink) -> Flow[None]:
        """Work until `running` is False. After each error connect again, with growing pauses, and reopen the slots."""
        self._sink = sink
        pause = RETRY_FIRST
        while self.running:
            try:
                if not self._connected:
                    yield Connect()
                    self._connected = True
                    yield from self._reopen_all()
                yield from self._turn()
                pause = RETRY_FIRST
                continue
            except BrokerUnavailable as error:
                yield from self._lose(error)
            except Exception as error:
                yield Unexpected(error)
                yield from self._lose(None)
            yield Pause(pause)
            pause = min(pause * 2, RETRY_LAST)
        yield Close()

    # -- the connection ------------------------------------------------------------------------

    def _lose(self, error: BrokerUnavailable | None) -> Flow[None]:
        self._connected = self.idling = False
        yield Close()
        with self._lock:
            self._state.slots.disconnected()
        if self.down_since is None:
            self.down_since = self._monotonic()
            logger.warning("broker lost: %s; running tasks continue, their outcomes are kept until it is back", error)
            for keyspace in self._config.keyspaces:
                self._report(keyspace, BrokerDown())
        if self._monotonic() >= self.down_since + self._config.broker_grace:
            with self._lock:
                self._state.slots.give_up_ended()

    def _reopen_all(self) -> BrokerFlow[None]:
        with self._lock:
            self._state.connected(self._clock())
        yield from self._open_slots()
        if self.down_since is not None:
            self.down_since = None
            logger.info("broker is back: the slots are open again")
            for keyspace in self._config.keyspaces:
                self._report(keyspace, BrokerUp())

    def _open_slots(self) -> BrokerFlow[None]:
        while True:
            with self._lock:
                openings = self._state.slots.openings()
            if not openings:
                return
            answers: Sequence[OpenAnswer] = yield Open(openings)
            now = self._clock()
            with self._lock:
                for opening, answer in zip(openings, answers, strict=True):
                    self._state.slots.answered(opening.tenure, answer, now)

    def _release(self) -> BrokerFlow[None]:
        with self._lock:
            given = self._state.slots.to_release.copy()
        yield Release([tenure for tenure, _ in given.values()])
        with self._lock:
            self._state.slots.released(given)

    # -- a turn --------------------------------------------------------------------------------

    def _turn(self) -> BrokerFlow[None]:
        """Release, open, settle and fetch what is due, then look, or wait, for messages in empty slots."""
        state, now = self._state, self._clock()
        if state.slots.to_release:
            yield from self._release()
        if state.slots.opens_at is not None:
            with self._lock:
                state.slots.open_again(now)
        if state.slots.to_open:
            yield from self._open_slots()
            now = self._clock()
        if not now < self._next_look <= now + LOOK:  # also if the clock was set back
            self._next_look = now + LOOK
            with self._lock:
                state.slots.look_around()
        with self._lock:
            unanswered, roused = state.outbox.unanswered, state.rouse(now)
            dispositions = state.dispositions(now)
            wants = state.wants(now, company=bool(dispositions))
            self.idling = not (dispositions or wants or state.slots.to_open or state.slots.to_release)
            decided, self.decided = self.decided or roused, False
        if dispositions or wants or unanswered:
            fetched: Fetched = yield Fetch(wants, dispositions, now)
            if fetched.confirmed or fetched.refused or fetched.failed:
                self.idling = False
            self._take_in(wants, fetched, now)
        elif decided and state.gate.has_ready:
            self._sink.ready()
        if now >= self._dead_trimmer.next_look:
            yield from self._dead_trimmer.keep(self._config.keyspaces, now)
        if now >= self._ledger_trimmer.next_look:
            yield from self._ledger_trimmer.keep(now)
        # Busy or not, look which of the empty slots have received a message since.
        woken: Collection[SlotId] = yield Idle(self._idle_for(now) if self.idling else 0.0)
        self._after_idle(woken)

    def _take_in(self, wants: Sequence[Want], fetched: Fetched, now: float) -> None:
        state = self._state
        with self._lock:
            state.take_in(fetched, now)
            state.slots.mended(wants, fetched)
            refused, state.refused = state.refused, []
        if refused:
            self._sink.refused(refused)
        if fetched.deliveries:
            self._admit(fetched.deliveries, now)
        if state.gate.has_ready:
            self._sink.ready()

    def _admit(self, deliveries: Collection[Delivery], now: float) -> None:
        sink, placed = self._sink, self._placed
        entries = [read(delivery, sink, placed=delivery.tenure.keyspace in placed) for delivery in deliveries]
        state = self._state
        with self._lock:
            for entry, due, reason in entries:
                if reason:
                    state.bury(entry, reason, now)
                else:
                    state.admit(entry, due, now)
        if placed:
            for keyspace in placed & {delivery.tenure.keyspace for delivery in deliveries}:
                self._unclaimed(keyspace)

    def _after_idle(self, woken: Collection[SlotId]) -> None:
        state = self._state
        with self._lock:
            self.idling = False
            if woken:
                state.rounds.note(slot for slot in woken if state.gate.is_open(slot))
            if state.gate.limited:
                state.gate.resume()
        if state.gate.has_ready:
            self._sink.ready()  # retry entries that could not start for lack of trust

    def _idle_for(self, now: float) -> float:
        state = self._state
        ends = [now + (UNTRUSTED if state.gate.has_ready else IDLE), self._dead_trimmer.next_look]
        ends += [self._ledger_trimmer.next_look, self._next_look]
        dues = (state.outbox.goes_at, state.rounds.next_due, state.slots.opens_at, state.backoff.next_due)
        ends += [end for end in dues if end is not None]
        if (token_in := state.gate.limited.due_in()) is not None:
            ends.append(now + max(token_in, SHORTEST))
        return max(0.0, min(ends) - now)
