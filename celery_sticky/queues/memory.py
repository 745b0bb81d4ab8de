"""Slot queues in the memory of one process: the contract in plain Python, and a test double.

A `MemoryBroker` takes the place of a server; any number of `MemoryQueues` are its clients.
"""

from __future__ import annotations

import json
import threading
import time
from bisect import bisect
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from itertools import count

from celery_sticky.errors import Fenced, SlotBroken
from celery_sticky.keys import DEFAULT_PREFIX, SlotId, slot_of_queue
from celery_sticky.queues.base import Delivery, Disposition, Fetched, OpenAnswer, Opening, Outcome, Tag, Tenure, Want
from celery_sticky.queues.guarantees import FULL, Guarantees, Order
from celery_sticky.queues.inspection import Dead, Depth, dead_slot, run_of, sent_at
from celery_sticky.queues.memory_ledger import Ledger
from celery_sticky.queues.memory_slot import STEPS, Message, SlotQueue
from celery_sticky.slots import Slot


class MemoryBroker:
    """The messages. Its lock makes each method of its clients one step.

    `returns` is the order in which deliveries go back: a broker in memory can behave as either kind.
    """

    def __init__(self, prefix: str = DEFAULT_PREFIX, returns: Order = Order.FETCH) -> None:
        self.prefix, self._returns = prefix, returns
        self.changed = threading.Condition()
        self.slots: dict[SlotId, SlotQueue] = {}
        self.dead: dict[str, dict[str, tuple[str, Message]]] = {}
        self.ledgers: dict[str, Ledger] = defaultdict(Ledger)
        self._places = count(1)

    def publish(self, queue: str | SlotId, body: bytes, priority: int = 0) -> None:
        """Add a message to the back of a slot queue, given by name or as (keyspace, slot)."""
        if isinstance(queue, str):
            slot = slot_of_queue(queue, self.prefix)
            if slot is None:
                raise ValueError(f"{queue!r} is not a slot queue")
            queue = slot
        step = STEPS[bisect(STEPS, max(priority, 0)) - 1]
        with self.changed:
            self.append(self.slot(*queue), Message(step, body))
            self.changed.notify_all()

    def append(self, slot: SlotQueue, message: Message) -> None:
        """Add a message to the back of its list."""
        message.place = next(self._places)
        slot.lists[message.priority].append(message)

    def put_back(self, slot: SlotQueue, keep: Collection[Tag] = ()) -> list[Message]:
        """Put deliveries in flight back to the front of their lists."""
        back = [slot.flight.pop(tag) for tag in sorted(slot.flight.keys() - set(keep), reverse=True)]
        for message in back:
            slot.lists[message.priority].appendleft(message)
        if self._returns is Order.QUEUE:
            for priority, waiting in slot.lists.items():
                slot.lists[priority] = deque(sorted(waiting, key=lambda message: message.place))
        return back

    def slot(self, keyspace: str, number: Slot) -> SlotQueue:
        """Return a slot, empty if it was never used."""
        slot_id = (keyspace, number)
        if slot_id not in self.slots:
            self.slots[slot_id] = SlotQueue()
        return self.slots[slot_id]


@cache
def process_broker(prefix: str) -> MemoryBroker:
    """Return the broker that the whole process shares."""
    return MemoryBroker(prefix)


class MemoryQueues:
    """A client of a `MemoryBroker`; see `SlotQueues` for each method."""

    guarantees: Guarantees = FULL

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker = broker
        self._drained: dict[SlotId, Tenure] = {}
        self._trips = 0
        self._woken = False

    def open(self, openings: Sequence[Opening]) -> Sequence[OpenAnswer]:
        """Set the fences, then put back deliveries in flight, last fetched first."""
        with self.broker.changed:
            answers = [self._open(opening) for opening in openings]
            self.broker.changed.notify_all()
            return answers

    def fetch(self, wants: Sequence[Want], dispositions: Sequence[Disposition], now: float) -> Fetched:
        """Settle, then fetch."""
        fetched = Fetched()
        self._trips += 1
        with self.broker.changed:
            for disposition in dispositions:
                self._settle(disposition, fetched, now)
            for want in wants:
                self._bring(want, now, fetched)
        return fetched

    def idle(self, timeout: float) -> set[SlotId]:
        """Wait on the broker's condition."""
        deadline = time.monotonic() + timeout
        with self.broker.changed:
            while not (ready := {slot_id for slot_id in self._drained if self.broker.slot(*slot_id).waiting}):
                left = deadline - time.monotonic()
                if self._woken or left <= 0:
                    break
                self.broker.changed.wait(left)
            self._woken = False
            for slot_id in ready:
                del self._drained[slot_id]
            return ready

    def wake(self) -> None:
        """Interrupt this client's `idle`."""
        with self.broker.changed:
            self._woken = True
            self.broker.changed.notify_all()

    def release(self, tenures: Sequence[Tenure]) -> None:
        """Stop waiting for the slots under these tenures."""
        for tenure in tenures:
            slot_id = (tenure.keyspace, tenure.slot)
            if self._drained.get(slot_id) == tenure:
                del self._drained[slot_id]

    def depths(self, slots: Collection[SlotId]) -> Mapping[SlotId, Depth]:
        """See `SlotQueues.depths`."""
        with self.broker.changed:
            return {slot_id: _depth(self.broker.slot(*slot_id)) for slot_id in slots}

    def dead(self, keyspace: str, *, after: str = "", limit: int | None = None) -> Sequence[Dead]:
        """See `SlotQueues.dead`."""
        with self.broker.changed:
            found = [Dead(name, info) for name, (info, _) in self.broker.dead.get(keyspace, {}).items()]
        names = [one.id for one in found]
        start = names.index(after) + 1 if after in names else 0
        return found[start:] if limit is None else found[start : start + limit]

    def dead_message(self, keyspace: str, dead_id: str) -> Dead | None:
        """See `SlotQueues.dead_message`."""
        with self.broker.changed:
            found = self.broker.dead.get(keyspace, {}).get(dead_id)
            return Dead(dead_id, found[0], found[1].body) if found is not None else None

    def dead_counts(self, keyspaces: Collection[str]) -> Mapping[str, int | SlotBroken]:
        """See `SlotQueues.dead_counts`."""
        with self.broker.changed:
            return {keyspace: len(self.broker.dead.get(keyspace, {})) for keyspace in keyspaces}

    def trim_dead(self, keyspace: str, *, limit: int, before: float) -> int:
        """See `SlotQueues.trim_dead`."""
        with self.broker.changed:
            found = self.broker.dead.get(keyspace, {})
            dropped = 0
            for name, (info, _) in list(found.items()):
                at = json.loads(info).get("at")
                if not (0 < limit < len(found) or (isinstance(at, int | float) and at < before)):
                    break
                del found[name]
                dropped += 1
            return dropped

    def trim_ledger(self, keyspace: str, *, before: float) -> int:
        """See `SlotQueues.trim_ledger`."""
        with self.broker.changed:
            return self.broker.ledgers[keyspace].trim(before)

    def forget_run(self, keyspace: str, run: str) -> None:
        """See `SlotQueues.forget_run`."""
        with self.broker.changed:
            self.broker.ledgers[keyspace].forget(run)

    def requeue(self, keyspace: str, dead_id: str) -> bool:
        """See `SlotQueues.requeue`."""
        with self.broker.changed:
            slot, found = dead_slot(dead_id), self.broker.dead.get(keyspace, {}).pop(dead_id, None)
            if slot is None or found is None:
                return False
            info, message = found
            if run := run_of(info):
                self.broker.ledgers[keyspace].forget(run)
            self.broker.publish((keyspace, slot), message.body, message.priority)
            return True

    def drop(self, keyspace: str, dead_id: str) -> bool:
        """See `SlotQueues.drop`."""
        with self.broker.changed:
            return self.broker.dead.get(keyspace, {}).pop(dead_id, None) is not None

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def _has(self, tenure: Tenure) -> bool:
        """Return whether requests under this tenure are served."""
        return self.broker.slot(tenure.keyspace, tenure.slot).fence == tenure

    def _open(self, opening: Opening) -> OpenAnswer:
        tenure = opening.tenure
        slot = self.broker.slot(tenure.keyspace, tenure.slot)
        fence = slot.fence
        if fence is not None and _refuses(fence, tenure):
            return Fenced(fence.epoch, fence.incarnation)
        slot.fence = tenure
        self._drained.pop((tenure.keyspace, tenure.slot), None)
        for message in self.broker.put_back(slot, opening.keep):
            if fence is not None and fence.incarnation != tenure.incarnation:
                message.counted_starts = message.counted_starts or 0
        return tuple(slot.flight)

    def _settle(self, disposition: Disposition, fetched: Fetched, now: float) -> None:
        tenure, tag = disposition.tenure, disposition.tag
        slot = self.broker.slot(tenure.keyspace, tenure.slot)
        if not self._has(tenure) or tag not in slot.flight:
            fetched.refused.append(disposition)
            return
        fetched.confirmed.append(disposition)
        message = slot.flight[tag]
        if disposition.outcome is Outcome.COUNT_START:
            message.counted_starts = max(message.counted_starts or 0, disposition.starts)
            fetched.counted_starts[tenure.keyspace, tenure.slot, tag] = message.counted_starts
            return
        if disposition.outcome is Outcome.UNCOUNT_START:
            if message.counted_starts and message.counted_starts == disposition.starts:
                message.counted_starts -= 1
            return
        if (claim := disposition.claim) is not None:
            ledger, settles = self.broker.ledgers[tenure.keyspace], disposition.outcome
            if settles is Outcome.CLAIM:
                fetched.claims[tenure.keyspace, tenure.slot, tag] = ledger.claim(claim, tag)
            elif settles in (Outcome.UNCLAIM, Outcome.MOVE):
                ledger.give_back(claim, tag)
            else:
                ledger.finish(claim, now)
        if disposition.outcome in (Outcome.CLAIM, Outcome.UNCLAIM):
            return
        del slot.flight[tag]
        if disposition.outcome is Outcome.DEFER:
            deferred = Message(message.priority, disposition.body or message.body)
            slot.deferred.append((disposition.due, tag.number, deferred))
            slot.deferred.sort(key=lambda item: item[:2])
        elif disposition.outcome is Outcome.MOVE:
            self.broker.publish((tenure.keyspace, disposition.to), disposition.body or message.body, message.priority)
        elif disposition.outcome is Outcome.BURY:
            dead = self.broker.dead.setdefault(tenure.keyspace, {})
            dead[f"{tenure.slot}-{tag.number}"] = (disposition.info, message)

    def _bring(self, want: Want, now: float, fetched: Fetched) -> None:
        tenure, slot_id = want.tenure, (want.tenure.keyspace, want.tenure.slot)
        slot = self.broker.slot(*slot_id)
        self._drained.pop(slot_id, None)
        if not self._has(tenure):
            fetched.lost.add(slot_id)
            return
        while slot.deferred and slot.deferred[0][0] <= now:
            self.broker.append(slot, slot.deferred.pop(0)[2])
        for message in slot.waiting[: max(want.limit, 0)]:
            slot.lists[message.priority].popleft()
            slot.seq += 1
            tag = Tag(slot.seq, tenure.trip(self._trips))
            slot.flight[tag] = message
            fetched.deliveries.append(Delivery(tenure, tag, message.priority, message.body, message.counted_starts))
        if not slot.waiting:
            fetched.drained.add(slot_id)
            self._drained[slot_id] = tenure
        if slot.deferred:
            fetched.due[slot_id] = slot.deferred[0][0]


def _refuses(fence: Tenure, tenure: Tenure) -> bool:
    if fence.epoch != tenure.epoch:
        return fence.epoch > tenure.epoch
    return fence.incarnation != tenure.incarnation or fence.open_count >= tenure.open_count


def _depth(slot: SlotQueue) -> Depth:
    waiting = slot.waiting
    return Depth(len(waiting), len(slot.deferred), len(slot.flight), sent_at(waiting[0].body) if waiting else None)
