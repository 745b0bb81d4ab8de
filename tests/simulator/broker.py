"""The memory broker, observed by a witness at each step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from celery_sticky.errors import SlotBroken
from celery_sticky.keys import SlotId
from celery_sticky.queues.base import Disposition, Fetched, OpenAnswer, Opening, Outcome, Tenure, Want
from celery_sticky.queues.guarantees import Fence
from celery_sticky.queues.memory import MemoryBroker, MemoryQueues
from celery_sticky.queues.memory_held import HeldBroker, HeldQueues
from celery_sticky.slots import Slot
from simulator.invariants import Witness

if TYPE_CHECKING:
    from simulator.process import Process

UNUSABLE = "a record is unusable"


class Observed(MemoryBroker):
    """An observed broker. If keys are `placed`, queues have names, whose hash differs between processes."""

    def __init__(
        self, witness: Witness, told: Callable[[Slot], None], clock: Callable[[], float], *, placed: bool
    ) -> None:
        super().__init__()
        self.witness, self.told, self.placed = witness, told, placed
        self.unusable: dict[Slot, float] = {}
        """Slots that it cannot work on, and until when."""
        self._clock = clock

    def is_broken(self, slot: Slot) -> bool:
        """Return whether a record of the slot is unusable now."""
        return bool(self.unusable) and self._clock() < self.unusable.get(slot, 0.0)

    def publish(self, queue: str | SlotId, body: bytes, priority: int = 0) -> None:
        """Put a message into a queue, also when it is moved there, and notify its reader."""
        assert not isinstance(queue, str), "the simulator gives queues by keyspace and slot"
        super().publish(queue, body, priority)
        self.told(queue[1])

    def snapshot(self) -> Any:
        """Return a copy of the broker's state."""
        return deepcopy((self.slots, self.dead, self.ledgers))

    def roll_back(self, snapshot: Any) -> None:
        """Restore the state of the copy."""
        self.slots, self.dead, self.ledgers = deepcopy(snapshot)

    def connect(self) -> WitnessedQueues:
        """Return a new connection."""
        return WitnessedQueues(self)

    def bodies(self) -> Mapping[bytes, Slot]:
        """Return every unsettled message with the queue in which it waits, is deferred or is in flight."""
        found: dict[bytes, Slot] = {}
        for (_, number), slot in self.slots.items():
            deferred = [message for _, _, message in slot.deferred]
            found |= {message.body: number for message in (*slot.waiting, *slot.flight.values(), *deferred)}
        return found

    def fences(self) -> Mapping[Slot, Tenure]:
        """Return the fence of each slot that has one."""
        return {number: slot.fence for (_, number), slot in self.slots.items() if slot.fence is not None}


class ObservedHeld(Observed, HeldBroker):
    """An observed broker whose slots are held by connections."""

    def roll_back(self, snapshot: Any) -> None:
        """Restore the state of the copy: no connection outlives that."""
        super().roll_back(snapshot)
        for queues in self.holders.values():
            queues.closed = True
        self.holders.clear()
        for slot in self.slots.values():
            slot.fence = None
            self.put_back(slot)

    def connect(self) -> WitnessedQueues:
        """Return a new connection."""
        return WitnessedHeld(self)

    def let_go(self, slot_ids: Collection[SlotId]) -> None:
        """Put back what is in flight: if a worker has finished it, no other worker knows that."""
        for slot_id in slot_ids:
            for message in self.slot(*slot_id).flight.values():
                self.witness.cannot_settle(message.body)
        super().let_go(slot_ids)


class InOrder(set[SlotId]):
    """Queues in an order that does not depend on their hash, so that a seed always produces the same world."""

    def __iter__(self) -> Iterator[SlotId]:
        return iter(sorted(super().__iter__(), key=str))


class WitnessedQueues(MemoryQueues):
    """A client of the broker. It shows the witness the broker's state before and after each verb."""

    def __init__(self, broker: Observed) -> None:
        super().__init__(broker)
        self.broker: Observed = broker
        self.about: Mapping[Disposition, bytes] = {}
        """The messages that the dispositions of the next request concern."""
        self.process: Process | None = None
        """Whose connection it is, once that has learned of it."""
        self._witness = broker.witness

    @property
    def has_answers(self) -> bool:
        """Whether answers to dispositions wait for the next fetch."""
        return False

    @property
    def awaiting(self) -> Collection[SlotId]:
        """The slots that it has found empty: it is told when one of them gets a message."""
        return self._drained.keys()

    def fetch(self, wants: Sequence[Want], dispositions: Sequence[Disposition], now: float) -> Fetched:
        """Settle, then deliver."""
        tenures = [*(want.tenure for want in wants), *(disposition.tenure for disposition in dispositions)]
        fences = {tenure.slot: self.broker.slot(tenure.keyspace, tenure.slot).fence for tenure in tenures}
        fetched = super().fetch(wants, dispositions, now)
        if self.broker.placed:
            fetched.lost = InOrder(fetched.lost)
        self._witness.brings(fetched, fences)
        for keyspace in {tenure.keyspace for tenure in tenures}:
            self._count(keyspace, fences)
        return fetched

    def idle(self, timeout: float) -> set[SlotId]:
        """Return the queues that have new messages."""
        woken = super().idle(timeout)
        return InOrder(woken) if self.broker.placed else woken

    def _open(self, opening: Opening) -> OpenAnswer:
        tenure = opening.tenure
        if self.broker.is_broken(tenure.slot):
            return SlotBroken(UNUSABLE)
        slot = self.broker.slot(tenure.keyspace, tenure.slot)
        fence, flight = slot.fence, dict(slot.flight)
        answer = super()._open(opening)
        if not isinstance(answer, Exception):
            same = fence is not None and fence.incarnation == tenure.incarnation
            if (ledger := self._witness.ledger) is not None and self.process is not None and same:
                for tag in flight.keys() - slot.flight.keys():
                    ledger.goes_back(flight[tag].body, self.process)
            if self.guarantees.fence is Fence.EPOCH:
                self._witness.opens(tenure)
            self._count(tenure.keyspace, {tenure.slot})
        return answer

    def _settle(self, disposition: Disposition, fetched: Fetched, now: float) -> None:
        slot = self.broker.slot(disposition.tenure.keyspace, disposition.tenure.slot)
        message = slot.flight.get(disposition.tag)
        if self.broker.is_broken(disposition.tenure.slot):
            fetched.failed.append((disposition, UNUSABLE))
            if message is not None:
                self._witness.cannot_settle(message.body)
            return
        ledger, claim = self._witness.ledger, disposition.claim
        unclaimed = claim is not None and claim.run not in self.broker.ledgers[disposition.tenure.keyspace].claimed
        settled = len(fetched.confirmed)
        super()._settle(disposition, fetched, now)
        if message is not None and len(fetched.confirmed) > settled:
            if ledger is not None and claim is not None and disposition.outcome is Outcome.CLAIM and unclaimed:
                assert self.process is not None, "only a connection that somebody has sends dispositions"
                ledger.claims(claim, self.process, disposition.tenure)
            self._witness.settles(disposition, slot.fence, message.body, meant=self.about.get(disposition))
            if disposition.outcome is Outcome.MOVE:
                beside = (*slot.flight.values(), *slot.lists[message.priority])
                left = [other.body for other in beside if other.priority == message.priority]
                self._witness.moves(disposition, message.body, left)

    def _bring(self, want: Want, now: float, fetched: Fetched) -> None:
        slot_id = (want.tenure.keyspace, want.tenure.slot)
        if self.broker.is_broken(want.tenure.slot):
            self._drained.pop(slot_id, None)
            fetched.broken[slot_id] = UNUSABLE
            return
        slot = self.broker.slot(*slot_id)
        if slot.fence == want.tenure:
            for _, _, message in takewhile(lambda item: item[0] <= now, slot.deferred):
                self._witness.comes_due(message.body)
        super()._bring(want, now, fetched)

    def _count(self, keyspace: str, slots: Collection[Slot]) -> None:
        for number in slots:
            slot = self.broker.slot(keyspace, number)
            waiting = sum(len(messages) for messages in slot.lists.values())
            self._witness.counts(number, waiting + len(slot.flight) + len(slot.deferred))


class WitnessedHeld(WitnessedQueues, HeldQueues):
    """A connection to a broker whose slots are held by connections."""

    broker: ObservedHeld

    @property
    def has_answers(self) -> bool:
        """Whether answers to dispositions wait for the next fetch."""
        return self.answered
