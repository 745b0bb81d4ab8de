"""The courier of a worker: the one thread that speaks to the broker driver.

It opens slots, fetches messages into the gate and settles ended tasks, combined in one round trip at a time. Its
delivery state (`state`) decides what to send. One lock guards that state; it is never held across I/O.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Protocol, TypeVar

from celery_sticky.delivery.dead_bounds import DeadBounds
from celery_sticky.delivery.envelope import Envelope, parse
from celery_sticky.delivery.gate import Entry
from celery_sticky.delivery.limited import Bucket
from celery_sticky.delivery.state import DeliveryState, End, Item
from celery_sticky.errors import BrokerUnavailable, Fenced, SlotBroken, StickyError
from celery_sticky.keys import SlotId
from celery_sticky.message import STAMP_HEADER, Stamp
from celery_sticky.ownership.events import BrokerDown, BrokerUp, Event
from celery_sticky.platform.native import Section, start_thread
from celery_sticky.queues.base import Delivery, SlotQueues

logger = logging.getLogger("celery_sticky.courier")

Answer = TypeVar("Answer")

IDLE = 30.0
"""Longest time in seconds that the courier idles without a wake-up."""
SHORTEST = 0.001
"""Shortest wait for a token, in seconds: a sum of fractions may fall just short of a whole one."""
UNREAD = Envelope({}, {}, "", "", b"")
RETRY_FIRST, RETRY_LAST = 0.05, 2.0
"""Seconds between attempts to reach a lost broker: the first pause and the longest."""


class TaskSink(Protocol):
    """The task sink: what the courier needs from the Celery side. Called in the courier's thread."""

    def concurrency(self) -> int:
        """Return how many tasks the pool runs at a time right now."""

    def lock_of(self, slot: SlotId, envelope: Envelope) -> Hashable:
        """Return the lock that the task of this message holds while it runs; raise a `StickyError` to bury it."""

    def due_of(self, envelope: Envelope) -> float | None:
        """Return when the message should run, in seconds since the epoch, or None."""

    def ready(self) -> None:
        """Note that entries can be taken now."""

    def refused(self, messages: Collection[tuple[Envelope, StickyError]]) -> None:
        """Tell those who wait for these messages that they were buried before they started. Must not block."""


class Courier:
    """The worker's access to its slot queues. Any thread may call the public methods."""

    def __init__(
        self,
        connect: Callable[[], SlotQueues],
        report: Callable[[str, Event], None],
        trusted: Callable[[str], bool],
        *,
        keyspaces: Collection[str],
        worker: str,
        max_waiting: int,
        max_waiting_bytes: int,
        max_attempts: int,
        dead_bounds: DeadBounds,
        broker_grace: float,
        placed: Collection[str] = (),
        unclaimed: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._placed, self._unclaimed = frozenset(placed), unclaimed
        self._connect, self._report, self._trusted = connect, report, trusted
        self._keyspaces, self._broker_grace = keyspaces, broker_grace
        self._lock = Section()
        self._state = DeliveryState(
            report,
            worker=worker,
            concurrency=lambda: self._sink.concurrency(),
            max_waiting=max_waiting,
            max_waiting_bytes=max_waiting_bytes,
            max_attempts=max_attempts,
        )
        self._dead_bounds = dead_bounds
        self._queues: SlotQueues | None = None
        self._running = True
        self._idling = False
        self._decided = False
        self._down_since: float | None = None
        self._thread: threading.Thread | None = None

    def start(self, sink: TaskSink) -> None:
        """Start to work for `host`."""
        self._sink = sink
        self._thread = start_thread(self._run, "sticky-courier")

    def flush(self, timeout: float) -> None:
        """Wait at most `timeout` seconds until the broker has confirmed every disposition."""
        deadline = time.monotonic() + timeout
        while len(self._state.outbox) and self._down_since is None and time.monotonic() < deadline:
            self._wake()
            time.sleep(0.005)

    def shutdown(self, timeout: float) -> None:
        """Settle what is left within `timeout` seconds and end the thread; do nothing if it was never started."""
        if self._thread is None:
            return
        deadline = time.monotonic() + timeout
        self.flush(timeout)
        self._running = False
        self._idling = True
        self._wake()
        self._thread.join(max(0.1, deadline - time.monotonic()))

    # -- for the member ------------------------------------------------------------------------

    def open(self, slot: SlotId, epoch: int, incarnation: str) -> None:
        """Open a slot; reports `Opened` or `OpenRefused`."""
        with self._lock:
            self._state.open(slot, epoch, incarnation)
        self._wake()

    def stop(self, slot: SlotId) -> None:
        """Start nothing more in a slot; reports `Drained` once nothing of it runs here and everything is settled."""
        with self._lock:
            self._state.stop(slot, time.time())
        self._wake()

    def close(self, slot: SlotId) -> None:
        """Forget a slot that another worker owns already; a task of it that runs here keeps its key locked."""
        with self._lock:
            self._state.close(slot)
        self._wake()

    def is_open(self, slot: SlotId) -> bool:
        """Return whether messages of the slot may start here."""
        with self._lock:
            return self._state.gate.is_open(slot)

    # -- for the placers -----------------------------------------------------------------------

    def trusts(self, keyspace: str) -> bool:
        """Return whether the lease in this keyspace is trusted now."""
        return self._trusted(keyspace)

    def consult(self, ask: Callable[[DeliveryState], Answer]) -> Answer:
        """Return what `ask` reads from the delivery state. `ask` must not block."""
        with self._lock:
            return ask(self._state)

    def decide(self, tell: Callable[[DeliveryState, float], None]) -> None:
        """Let `tell` apply decisions about keys to the delivery state at the current time. `tell` must not block."""
        with self._lock:
            tell(self._state, time.time())
            self._decided = True
        self._wake()

    def limit(self, buckets: Mapping[str, Bucket]) -> None:
        """Limit the rate of these kinds of tasks from now on, and of no others. Buckets are used under the lock."""
        with self._lock:
            self._state.gate.limit(buckets)
        self._wake()

    # -- for the Celery side -------------------------------------------------------------------

    def take(self, most: int, at_once: int = sys.maxsize) -> list[Entry]:
        """Hand out at most `at_once` entries now, so that the pool has at most `most`."""
        with self._lock:
            return self._state.take(most, lambda slot: self._trusted(slot[0]), at_once)

    def start_entry(self, entry: Entry, turn: int) -> bool:
        """Reserve the start of an entry; False: it must not start, the caller forgets it."""
        trusted = self._trusted(entry.slot[0])
        with self._lock:
            if self._state.gate.start(entry, turn, trusted=trusted):
                return True
            self._state.gate.put_back(entry, turn)
            return False

    def put_back_all(self) -> None:
        """Make all entries ready again that were handed out: their holder has dropped them."""
        with self._lock:
            self._state.gate.put_back_all()

    def again(self, entry: Entry, *, counted: bool, cause: str = "") -> None:
        """Give a started task that did not finish another turn in its place, if the slot is still ours.

        If `counted`, the broker counts the next start first, and the message is buried at the limit. `cause` says why
        the task did not finish, unless a process died.
        """
        if self._lock.later(lambda: self.again(entry, counted=counted, cause=cause)):
            return
        with self._lock:
            self._state.again(entry, counted=counted, cause=cause)
        self._wake()

    def rest(self, entry: Entry, turn: int, *, after_run: bool, cause: str) -> None:
        """Retry an entry later, in its place: it could not start, or (`after_run`) its task gave the message back."""
        if self._lock.later(lambda: self.rest(entry, turn, after_run=after_run, cause=cause)):
            return
        with self._lock:
            self._state.rest(entry, turn, time.time(), after_run=after_run, cause=cause)
        self._wake()

    def end(self, entry: Entry, end: End) -> None:
        """Settle the message of a task that has released its key, then free the key. Only the first call counts."""
        if self._lock.later(lambda: self.end(entry, end)):
            return
        with self._lock:
            hurry = self._state.end(entry, end, time.time())
        if hurry:
            self._wake()

    def counts(self) -> dict[str, int]:
        """Return the numbers of running, runnable, waiting, rate-limited and unconfirmed entries, and of their keys."""
        with self._lock:
            gate = self._state.gate
            running = sum(gate.slots_running().values())
            return {
                "running": running,
                "runnable": gate.runnable,
                "waiting": gate.waiting,
                "limited": len(gate.limited),
                "unconfirmed": len(self._state.outbox),
                "keys": gate.keys,
            }

    def running_by_slot(self) -> dict[SlotId, int]:
        """Return how many tasks of each slot run here or await confirmation."""
        with self._lock:
            return self._state.gate.slots_running()

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        pause = RETRY_FIRST
        while self._running:
            try:
                if self._queues is None:
                    self._queues = self._connect()
                    self._reopen_all(self._queues)
                self._turn(self._queues)
                pause = RETRY_FIRST
                continue
            except BrokerUnavailable as error:
                self._on_broker_lost(error)
            except Exception:
                logger.exception("the courier met an unexpected error; it reconnects and opens its slots again")
                self._on_broker_lost(None)
            self._give_up_ended()
            time.sleep(pause)
            pause = min(pause * 2, RETRY_LAST)
        if self._queues is not None:
            self._queues.close()

    def _wake(self) -> None:
        # Only out of `idle`, and once: in any other state the courier checks everything before it idles.
        queues = self._queues
        if queues is not None and self._idling:
            self._idling = False
            queues.wake()

    def _on_broker_lost(self, error: BrokerUnavailable | None) -> None:
        queues, self._queues = self._queues, None
        if queues is not None:
            queues.close()
        if self._down_since is None:
            self._down_since = time.monotonic()
            logger.warning("broker lost: %s; running tasks continue, their outcomes are kept until it is back", error)
            for keyspace in self._keyspaces:
                self._report(keyspace, BrokerDown())

    def _give_up_ended(self) -> None:
        if self._down_since is not None and time.monotonic() >= self._down_since + self._broker_grace:
            with self._lock:
                self._state.give_up_ended()

    def _reopen_all(self, queues: SlotQueues) -> None:
        with self._lock:
            self._state.reopen_all(time.time())
        self._open_slots(queues)
        if self._down_since is not None:
            self._down_since = None
            logger.info("broker is back: the slots are open again")
            for keyspace in self._keyspaces:
                self._report(keyspace, BrokerUp())

    def _open_slots(self, queues: SlotQueues) -> None:
        while True:
            with self._lock:
                opening = self._state.next_to_open()
            if opening is None:
                return
            tenure, keep = opening
            try:
                kept = queues.open(tenure, keep)
            except Fenced as fenced:
                logger.warning("slot %s of keyspace %s: %s", tenure.slot, tenure.keyspace, fenced)
                with self._lock:
                    self._state.fenced(tenure, fenced.epoch)
            except SlotBroken as broken:
                with self._lock:
                    self._state.open_failed(tenure, str(broken), time.time())
            else:
                with self._lock:
                    self._state.opened(tenure, kept)

    def _turn(self, queues: SlotQueues) -> None:
        state = self._state
        now = time.time()
        if state.opens_at is not None:
            with self._lock:
                state.open_again(now)
        if state.to_open:
            self._open_slots(queues)
            now = time.time()
        with self._lock:
            roused = state.rouse(now)
            dispositions = state.dispositions(now)
            wants = state.wants(now, company=bool(dispositions))
            self._idling = not (dispositions or wants or state.to_open)
            decided, self._decided = self._decided or roused, False
        if dispositions or wants:
            fetched = queues.fetch(wants, dispositions, now)
            with self._lock:
                state.take_in(fetched, now)
                state.mended(wants, fetched)
                refused, state.refused = state.refused, []
            if refused:
                self._sink.refused(refused)
            self._admit(fetched.deliveries, now)
            if self._placed:
                for keyspace in self._placed & {delivery.tenure.keyspace for delivery in fetched.deliveries}:
                    self._unclaimed(keyspace)
            if state.gate.has_ready:
                self._sink.ready()
        elif decided and state.gate.has_ready:
            self._sink.ready()
        self._dead_bounds.keep(queues, self._keyspaces, now)
        # Busy or not, look which of the empty slots have received a message since.
        woken = queues.idle(self._idle_for(now) if self._idling else 0.0)
        with self._lock:
            self._idling = False
            state.rounds.note(slot for slot in woken if state.gate.is_open(slot))
        self._resume_limited()
        if state.gate.has_ready:
            self._sink.ready()  # retry entries that could not start for lack of trust

    def _idle_for(self, now: float) -> float:
        state = self._state
        ends = [now + (0.25 if state.gate.has_ready else IDLE), self._dead_bounds.next_look]
        dues = (state.outbox.goes_at, state.rounds.next_due, state.opens_at, state.backoff.next_due)
        ends += [end for end in dues if end is not None]
        if (token_in := state.gate.limited.due_in()) is not None:
            ends.append(now + max(token_in, SHORTEST))
        return max(0.0, min(ends) - now)

    def _resume_limited(self) -> None:
        if self._state.gate.limited:
            with self._lock:
                self._state.gate.resume()

    def _admit(self, deliveries: Collection[Delivery], now: float) -> None:
        read = [self._read(delivery) for delivery in deliveries]
        state = self._state
        with self._lock:
            for entry, due, reason in read:
                if reason:
                    state.bury(entry, reason, now)
                else:
                    state.admit(entry, due, now)

    def _read(self, delivery: Delivery) -> tuple[Entry, float | None, str]:
        """Return the entry of a delivery, when it is due, and the reason to bury it or an empty string."""
        slot, due = (delivery.tenure.keyspace, delivery.tenure.slot), None
        entry = Entry(slot, delivery.tag, None, Item(delivery, UNREAD), delivery.attempts, size=len(delivery.body))
        try:
            envelope = parse(delivery.body)
            entry.content, entry.kind = Item(delivery, envelope), envelope.task
            entry.key = self._sink.lock_of(slot, envelope)
            due = self._sink.due_of(envelope)
            if slot[0] in self._placed:
                have_claimed(entry, envelope)
        except MemoryError:
            raise
        except Exception as error:  # a key function may fail in any way on arguments that it does not expect
            reason = str(error) if isinstance(error, StickyError) else f"its key cannot be read: {error!r:.300}"
            logger.error("a message in slot %s of keyspace %s is buried: %s", slot[1], slot[0], reason)
            return entry, None, reason
        return entry, due, ""


def have_claimed(entry: Entry, envelope: Envelope) -> None:
    """Note that the key must be claimed, and add the starts that were counted in earlier queues."""
    stamp = Stamp.from_header(envelope.headers[STAMP_HEADER])
    entry.claim = (stamp.keyspace, stamp.key)
    if stamp.starts is not None:
        entry.base = stamp.starts
        entry.attempts = (entry.attempts or 0) + stamp.starts
