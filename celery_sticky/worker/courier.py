"""The courier of a worker: everything said to the broker driver is said here, in one thread.

It opens slots, fetches into the gate, and settles what has ended, all in one round trip at a time. One lock guards the
gate and what hangs on it; it is never held across I/O.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, replace
from typing import Protocol

from celery_sticky.errors import BrokerUnavailable, Fenced, StickyError
from celery_sticky.ownership.events import BrokerDown, BrokerUp, Drained, Event, Opened, OpenRefused
from celery_sticky.ownership.gate import Entry, Gate, SlotId
from celery_sticky.queues.base import Act, Delivery, Fetched, SlotQueues, Tenure, Verdict, Want
from celery_sticky.worker.envelope import Envelope, parse
from celery_sticky.worker.native import Section, start_thread
from celery_sticky.worker.outbox import Outbox
from celery_sticky.worker.rounds import Rounds

logger = logging.getLogger("celery_sticky.courier")

BATCH = 64
"""Messages a fetch brings at most."""
IN_A_SLOT = 4
"""Messages asked for in each slot, or more: the server looks into a slot once for all of them."""
AHEAD = 32
"""Runnable messages kept beyond what the pool can run at a time."""
IDLE = 30.0
"""Seconds the courier idles at most, while nothing wakes it."""
UNREAD = Envelope({}, {}, "", "", b"")
RETRY_FIRST, RETRY_LAST = 0.05, 2.0
"""Seconds between attempts to reach a lost broker."""


@dataclass(frozen=True, slots=True)
class Item:
    """What an entry of the gate carries: the delivery, read."""

    delivery: Delivery
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class End:
    """What is to become of the message of a task that has let go of its key."""

    act: Act
    due: float = 0.0
    body: bytes | None = None
    reason: str = ""


class Host(Protocol):
    """What the courier asks of the Celery side. Called in the courier's thread."""

    def concurrency(self) -> int:
        """Return how many tasks the pool runs at a time, now."""

    def lock_of(self, slot: SlotId, envelope: Envelope) -> Hashable:
        """Return what the task of this message locks while it runs; raise a `StickyError` to have it buried."""

    def due_of(self, envelope: Envelope) -> float | None:
        """Return when the message wants to run, in seconds since the epoch, or None."""

    def ready(self) -> None:
        """Entries may be taken now."""


class Courier:
    """The slot queues as the rest of the worker sees them. Public methods may be called from any thread."""

    def __init__(
        self,
        connect: Callable[[], SlotQueues],
        report: Callable[[str, Event], None],
        trusted: Callable[[str], bool],
        *,
        keyspaces: Collection[str],
        worker: str,
        max_waiting: int,
        max_attempts: int,
        broker_grace: float,
    ) -> None:
        self._connect, self._report, self._trusted = connect, report, trusted
        self._keyspaces, self._worker = keyspaces, worker
        self._max_waiting, self._max_attempts, self._broker_grace = max_waiting, max_attempts, broker_grace
        self._lock = Section()
        self._gate = Gate()
        self._outbox = Outbox()
        self._rounds = Rounds()
        self._tenures: dict[SlotId, Tenure] = {}
        self._to_open: dict[SlotId, Tenure] = {}
        self._stopping: set[SlotId] = set()
        self._counts: dict[SlotId, int] = {}
        self._queues: SlotQueues | None = None
        self._running = True
        self._idling = False
        self._down_since: float | None = None

    def start(self, host: Host) -> None:
        """Begin to work for `host`."""
        self._host = host
        self._thread = start_thread(self._run, "sticky-courier")

    def flush(self, timeout: float) -> None:
        """Wait at most `timeout` seconds for the broker to confirm every verdict."""
        deadline = time.monotonic() + timeout
        while len(self._outbox) and self._down_since is None and time.monotonic() < deadline:
            self._wake()
            time.sleep(0.005)

    def shutdown(self, timeout: float) -> None:
        """Settle what is left, within `timeout` seconds, and end the thread."""
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
            self._stopping.discard(slot)
            self._to_open[slot] = self._next_tenure(slot, epoch, incarnation)
        self._wake()

    def stop(self, slot: SlotId) -> None:
        """Start nothing more of a slot; reports `Drained` when nothing of it runs here and all is settled."""
        with self._lock:
            self._to_open.pop(slot, None)
            self._rounds.forget(slot)
            self._stopping.add(slot)
            drained = self._gate.lose(slot)
        if drained:
            self._on_drained(slot)
        self._wake()

    def close(self, slot: SlotId) -> None:
        """Forget a slot that is somebody else's already; what runs of it keeps its key locked until it ends."""
        with self._lock:
            self._to_open.pop(slot, None)
            self._rounds.forget(slot)
            self._stopping.discard(slot)
            self._gate.lose(slot)
            self._tenures.pop(slot, None)
        self._wake()

    def is_open(self, slot: SlotId) -> bool:
        """Whether messages of the slot may start here."""
        with self._lock:
            return self._gate.is_open(slot)

    # -- for the Celery side -------------------------------------------------------------------

    def take(self, most: int) -> list[Entry]:
        """Hand out entries so that at most `most` are with the pool."""
        with self._lock:
            return self._gate.take(most - self._gate.out, lambda slot: self._trusted(slot[0]))

    def start_entry(self, entry: Entry, turn: int) -> bool:
        """Reserve the start of an entry; False: it must not start, forget it."""
        trusted = self._trusted(entry.slot[0])
        with self._lock:
            if self._gate.start(entry, turn, trusted=trusted):
                return True
            self._gate.put_back(entry, turn)
            return False

    def put_back_all(self) -> None:
        """Whoever held the entries that were handed out has dropped them."""
        with self._lock:
            self._gate.put_back_all()

    def again(self, entry: Entry, *, counted: bool) -> None:
        """A started task came to no end: give it another turn in its place, if the slot still is ours.

        Counted, it is marked at the broker first, and buried at the limit.
        """
        if self._lock.later(lambda: self.again(entry, counted=counted)):
            return
        with self._lock:
            drained = not self._gate.again(entry, counted=counted) and self._is_drained(entry.slot)
        if drained:
            self._on_drained(entry.slot)
        self._wake()

    def end(self, entry: Entry, end: End) -> None:
        """The task has let go of its key: settle its message, then free the key. Only the first call counts."""
        if self._lock.later(lambda: self.end(entry, end)):
            return
        with self._lock:
            if not self._gate.end(entry):
                return
            wake = self._put(entry, end) or self._in_a_hurry()
        if wake:
            self._wake()

    def counts(self) -> dict[str, int]:
        """Return how many entries run, are runnable, wait behind their key, or await confirmation, and their keys."""
        with self._lock:
            gate = self._gate
            running = sum(gate.slots_running().values())
            return {
                "running": running,
                "runnable": gate.runnable,
                "waiting": gate.waiting,
                "unconfirmed": len(self._outbox),
                "keys": gate.keys,
            }

    def running_by_slot(self) -> dict[SlotId, int]:
        """Return how many tasks of each slot run here or await their confirmation."""
        with self._lock:
            return self._gate.slots_running()

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
                logger.exception("the courier met an error it does not know; it opens its slots anew")
                self._on_broker_lost(None)
            self._give_up_ended()
            time.sleep(pause)
            pause = min(pause * 2, RETRY_LAST)
        if self._queues is not None:
            self._queues.close()

    def _wake(self) -> None:
        # Only out of `idle`, and once: whatever else the courier does, it looks at everything before it idles.
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
            logger.warning("broker lost: %s; running tasks go on, their verdicts are kept", error)
            for keyspace in self._keyspaces:
                self._report(keyspace, BrokerDown())

    def _give_up_ended(self) -> None:
        """Let slots go that wait for nothing but a broker which is away for longer than its grace.

        The verdicts are kept. The next owner may run such a task again, before anything later of its key.
        """
        with self._lock:
            if self._down_since is None or time.monotonic() < self._down_since + self._broker_grace:
                return
            drained = [slot for slot in self._stopping if not self._gate.busy(slot)]
        for slot in drained:
            self._on_drained(slot)

    def _reopen_all(self, queues: SlotQueues) -> None:
        with self._lock:
            self._outbox.back(time.time())
            for slot, tenure in (self._tenures | self._to_open).items():
                self._to_open[slot] = self._next_tenure(slot, tenure.epoch, tenure.incarnation)
        self._open_slots(queues)
        if self._down_since is not None:
            self._down_since = None
            logger.info("broker is back: %d slots are open again", len(self._tenures))
            for keyspace in self._keyspaces:
                self._report(keyspace, BrokerUp())

    def _turn(self, queues: SlotQueues) -> None:
        if self._to_open:
            self._open_slots(queues)
        now = time.time()
        with self._lock:
            verdicts = self._verdicts(now)
            wants = self._wants(now, company=bool(verdicts))
            self._idling = not (verdicts or wants or self._to_open)
        if verdicts or wants:
            self._take_in(queues.fetch(wants, verdicts, now))
        # Busy or not, look which of the empty slots have got a message since.
        woken = queues.idle(self._idle_for(now) if self._idling else 0.0)
        with self._lock:
            self._idling = False
            self._rounds.note(slot for slot in woken if self._gate.is_open(slot))
        if self._gate.has_ready:
            self._host.ready()  # what could not start, for want of trust, is tried again

    def _idle_for(self, now: float) -> float:
        ends = [now + (0.25 if self._gate.has_ready else IDLE)]
        ends += [end for end in (self._outbox.goes_at, self._rounds.next_due) if end is not None]
        return max(0.0, min(ends) - now)

    # -- opening -------------------------------------------------------------------------------

    def _next_tenure(self, slot: SlotId, epoch: int, incarnation: str) -> Tenure:
        count = self._counts[slot] = self._counts.get(slot, 0) + 1
        return Tenure(slot[0], slot[1], epoch, incarnation, count)

    def _open_slots(self, queues: SlotQueues) -> None:
        while self._to_open:
            with self._lock:
                slot, tenure = next(iter(self._to_open.items()), (None, None))
                if slot is None or tenure is None:
                    return  # stopped or closed meanwhile
                # What has not started goes back to its queue with the opening, so it must not start from here.
                self._gate.recall(slot)
                keep = self._gate.kept(slot)
            try:
                queues.open(tenure, keep)
            except Fenced as fenced:
                self._on_fenced(slot, tenure, fenced)
            else:
                self._on_opened(slot, tenure)

    def _on_opened(self, slot: SlotId, tenure: Tenure) -> None:
        with self._lock:
            if self._to_open.get(slot) is not tenure:
                # Stopped, closed or opened anew meanwhile. What runs of a stopped slot is settled under this tenure.
                if slot in self._stopping:
                    self._tenures[slot] = tenure
                return
            del self._to_open[slot]
            self._tenures[slot] = tenure
            if slot in self._stopping:
                return
            self._gate.open(slot)
            self._rounds.note((slot,))
        self._report(slot[0], Opened(slot[1], tenure.epoch))

    def _on_fenced(self, slot: SlotId, tenure: Tenure, fenced: Fenced) -> None:
        logger.warning("slot %s of keyspace %s: %s", slot[1], slot[0], fenced)
        with self._lock:
            if self._to_open.get(slot) is tenure:
                del self._to_open[slot]
            self._tenures.pop(slot, None)
            self._rounds.forget(slot)
            self._gate.lose(slot)
        self._report(slot[0], OpenRefused(slot[1], fenced.epoch))

    def _is_drained(self, slot: SlotId) -> bool:
        return slot in self._stopping and not self._gate.kept(slot)

    def _on_drained(self, slot: SlotId) -> None:
        with self._lock:
            if slot not in self._stopping:
                return
            self._stopping.discard(slot)
            self._tenures.pop(slot, None)
        self._report(slot[0], Drained(slot[1]))

    # -- fetching ------------------------------------------------------------------------------

    def _wants(self, now: float, *, company: bool) -> list[Want]:
        self._rounds.come_due(now)
        if not self._rounds.any:
            return []
        gate, concurrency = self._gate, self._host.concurrency()
        window = concurrency + AHEAD
        room = min(window - gate.runnable, self._max_waiting - gate.waiting)
        if room <= 0 or (room < window // 2 and gate.runnable > concurrency and not company):
            return []  # a round trip for a handful of messages is a waste while the pool is busy
        # One hot key must not fill the whole waiting room.
        a_slot = max(BATCH, self._max_waiting // 8)
        batch = min(BATCH, room)
        most = max(1, batch // IN_A_SLOT)
        slots = self._rounds.pick(most, lambda slot: gate.held(slot) < a_slot and gate.is_open(slot))
        return [Want(self._tenures[slot], batch // len(slots)) for slot in slots]

    def _take_in(self, fetched: Fetched) -> None:
        drained: list[SlotId] = []
        with self._lock:
            for verdict in fetched.confirmed:
                entry = self._outbox.answered(verdict.tenure, verdict.tag)
                if verdict.act is Act.MARK:
                    self._on_marked(entry, fetched.marks[verdict.tenure.keyspace, verdict.tenure.slot, verdict.tag])
                elif self._gate.settled(entry):
                    drained.append(entry.slot)
                if verdict.act is Act.DEFER and self._gate.is_open(entry.slot):
                    self._rounds.note_deferred(entry.slot, verdict.due)
            for verdict in fetched.refused:
                entry = self._outbox.answered(verdict.tenure, verdict.tag)
                self._on_refused(entry, verdict)
                if verdict.act is Act.MARK:
                    self._gate.forget(entry)
                elif self._gate.settled(entry):
                    drained.append(entry.slot)
            self._rounds.drained(fetched.drained)
            for slot, due in fetched.due.items():
                self._rounds.note_due(slot, due)
            for slot in fetched.lost:
                # Somebody has moved the fence: open again, and learn from the answer who owns the slot.
                if tenure := self._tenures.get(slot):
                    self._to_open[slot] = self._next_tenure(slot, tenure.epoch, tenure.incarnation)
        for delivery in fetched.deliveries:
            self._admit(delivery)
        for slot in drained:
            self._on_drained(slot)
        if self._gate.has_ready:
            self._host.ready()

    def _admit(self, delivery: Delivery) -> None:
        slot = (delivery.tenure.keyspace, delivery.tenure.slot)
        entry = Entry(slot, delivery.tag, None, Item(delivery, UNREAD), attempts=delivery.attempts)
        try:
            envelope = parse(delivery.body)
            entry.content = Item(delivery, envelope)
            entry.key = self._host.lock_of(slot, envelope)
            end = self._foregone(delivery, envelope)
        except StickyError as error:
            logger.error("a message in slot %s of keyspace %s is buried: %s", slot[1], slot[0], error)
            end = End(Act.BURY, reason=str(error))
        with self._lock:
            if end is None:
                self._gate.add(entry)
            else:
                self._put(entry, end)

    def _foregone(self, delivery: Delivery, envelope: Envelope) -> End | None:
        """Return what becomes of a message that does not run now: it is not due, or ended here under a lost tenure."""
        if self._gate.remembers and (end := self._gate.recollect(_digest(delivery.body))) is not None:
            return end if isinstance(end, End) else None
        due = self._host.due_of(envelope)
        return End(Act.DEFER, due=due) if due is not None and due > time.time() else None

    # -- settling ------------------------------------------------------------------------------

    def _put(self, entry: Entry, end: End) -> bool:
        item: Item = entry.content
        verdict = Verdict(end.act, item.delivery.tenure, entry.tag, end.due, end.body, self._info(entry, end))
        return self._outbox.put(entry, verdict, time.time())

    def _info(self, entry: Entry, end: End) -> str:
        if end.act is not Act.BURY:
            return ""
        envelope: Envelope = entry.content.envelope
        stamp = envelope.headers.get("sticky")
        return json.dumps({
            "reason": end.reason,
            "task": envelope.task,
            "id": envelope.task_id,
            "key": stamp.get("key") if isinstance(stamp, dict) else None,
            "at": time.time(),
            "worker": self._worker,
        })  # fmt: skip

    def _in_a_hurry(self) -> bool:
        """Whether somebody waits for the verdicts: a key or a mark, while the pool idles; a slot that is given away."""
        gate = self._gate
        starving = gate.runnable <= self._host.concurrency() and (gate.waiting > 0 or self._rounds.any)
        return starving or gate.has_unmarked or self._outbox.full or bool(self._stopping)

    def _verdicts(self, now: float) -> list[Verdict]:
        marks = [self._put(entry, End(Act.MARK)) for entry in self._gate.unmarked(self._host.concurrency())]
        goes_at = self._outbox.goes_at
        if goes_at is None or not (marks or now >= goes_at or self._in_a_hurry()):
            return []
        return self._outbox.take(self._stamp)

    def _stamp(self, entry: Entry, verdict: Verdict) -> Verdict:
        # After an opening a kept delivery is settled under the new tenure; without one the broker refuses it.
        return replace(verdict, tenure=self._tenures.get(entry.slot, verdict.tenure))

    def _on_marked(self, entry: Entry, attempts: int) -> None:
        if attempts < self._max_attempts:
            self._gate.marked(entry, attempts)
        elif self._gate.end(entry):
            reason = f"started {attempts} times and never came to an end: its process died each time"
            self._put(entry, End(Act.BURY, reason=reason))

    def _on_refused(self, entry: Entry, verdict: Verdict) -> None:
        if verdict.act is Act.MARK or self._tenures.get(entry.slot) == verdict.tenure:
            return  # under the tenure we hold: it was settled by a request whose answer was lost
        # The message will be delivered to somebody. Should that be us, its task is not run a second time.
        item: Item = entry.content
        self._gate.remember(_digest(item.delivery.body), End(verdict.act, verdict.due, verdict.body, "refused once"))


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()
