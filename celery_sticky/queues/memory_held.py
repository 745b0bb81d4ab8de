"""A second broker in memory, whose slots are held by connections as with AMQP: for tests.

It knows no epochs, counts no starts, has no priorities, and cannot say what is deferred or in flight. It answers a
disposition with the request after the one that brought it. A connection's end gives back all that it holds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from celery_sticky.errors import BrokerUnavailable, SlotHeld
from celery_sticky.keys import DEFAULT_PREFIX, SlotId
from celery_sticky.queues.base import Disposition, Fetched, OpenAnswer, Opening, Tenure, Want
from celery_sticky.queues.guarantees import FULL, Fence, Order
from celery_sticky.queues.inspection import Depth
from celery_sticky.queues.memory import MemoryBroker, MemoryQueues

HELD = replace(
    FULL,
    counts_starts=False,
    claims_runs=False,
    epochs_outlive_store=False,
    fence=Fence.CONNECTION,
    priorities=(0,),
    returns=Order.QUEUE,
    company=8,
)


class HeldBroker(MemoryBroker):
    """The messages, and which connection holds each slot."""

    def __init__(self, prefix: str = DEFAULT_PREFIX) -> None:
        super().__init__(prefix, Order.QUEUE)
        self.holders: dict[SlotId, HeldQueues] = {}

    def publish(self, queue: str | SlotId, body: bytes, priority: int = 0) -> None:
        """Add a message to the back of a slot queue; its priority is ignored."""
        super().publish(queue, body)

    def let_go(self, slot_ids: Collection[SlotId]) -> None:
        """Put back what is in flight in these slots, which nobody holds then."""
        for slot_id in slot_ids:
            slot = self.slot(*slot_id)
            slot.fence = None
            del self.holders[slot_id]
            self.put_back(slot)
        self.changed.notify_all()


class HeldQueues(MemoryQueues):
    """A connection to a `HeldBroker`; see `SlotQueues` for each method."""

    guarantees = HELD

    def __init__(self, broker: HeldBroker) -> None:
        super().__init__(broker)
        self.broker: HeldBroker = broker
        self.closed = False
        self._later = Fetched()
        """The answers to the dispositions of earlier requests."""

    def open(self, openings: Sequence[Opening]) -> Sequence[OpenAnswer]:
        """See `SlotQueues.open`."""
        self._check()
        return super().open(openings)

    def fetch(self, wants: Sequence[Want], dispositions: Sequence[Disposition], now: float) -> Fetched:
        """Settle, then fetch; answer the dispositions of the request before."""
        self._check()
        fetched = super().fetch(wants, dispositions, now)
        before, self._later = self._later, Fetched()
        for name in ("confirmed", "refused", "failed"):
            getattr(self._later, name).extend(getattr(fetched, name))
            setattr(fetched, name, getattr(before, name))
        return fetched

    def idle(self, timeout: float) -> set[SlotId]:
        """Wait, unless there are answers."""
        self._check()
        return super().idle(0.0 if self.answered else timeout)

    @property
    def answered(self) -> bool:
        """Whether there are answers for the next fetch."""
        return bool(self._later.confirmed or self._later.refused or self._later.failed)

    def release(self, tenures: Sequence[Tenure]) -> None:
        """Give slots back."""
        self._check()
        super().release(tenures)
        with self.broker.changed:
            self.broker.let_go([(tenure.keyspace, tenure.slot) for tenure in tenures if self._has(tenure)])

    def close(self) -> None:
        """End the connection: give everything back."""
        with self.broker.changed:
            self.closed = True
            self.broker.let_go([slot_id for slot_id, holder in self.broker.holders.items() if holder is self])

    def depths(self, slots: Collection[SlotId]) -> Mapping[SlotId, Depth]:
        """See `SlotQueues.depths`."""
        found = super().depths(slots)
        return {slot: replace(depth, deferred=None, in_flight=None) for slot, depth in found.items()}

    def _check(self) -> None:
        if self.closed:
            raise BrokerUnavailable("the connection is closed")

    def _has(self, tenure: Tenure) -> bool:
        return self.broker.holders.get((tenure.keyspace, tenure.slot)) is self and super()._has(tenure)

    def _open(self, opening: Opening) -> OpenAnswer:
        slot_id = (opening.tenure.keyspace, opening.tenure.slot)
        if self.broker.holders.setdefault(slot_id, self) is not self:
            return SlotHeld()
        slot = self.broker.slot(*slot_id)
        slot.fence = opening.tenure
        self._drained.pop(slot_id, None)
        self.broker.put_back(slot, opening.keep)
        return tuple(slot.flight)
