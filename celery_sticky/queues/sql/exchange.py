"""Fetches and settles: judges dispositions by memory, carries the trip out, and then changes memory.

A trip that only acknowledges and fetches is one statement where the dialect can; every other is a transaction that
holds the fences of its slots.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from celery_sticky.keys import SlotId
from celery_sticky.queues.base import Delivery, Disposition, Fetched, Outcome, Tag, Want
from celery_sticky.queues.sql.apart import BECAUSE_OF_A_SLOT, divided, failure, is_of_a_slot
from celery_sticky.queues.sql.deferrals import next_due, wake
from celery_sticky.queues.sql.fences import read_fences
from celery_sticky.queues.sql.late_commits import LateCommits
from celery_sticky.queues.sql.ledger import settle_runs
from celery_sticky.queues.sql.one_statement import OneStatement
from celery_sticky.queues.sql.open_slot import InFlight, OpenSlot
from celery_sticky.queues.sql.portable import Portable
from celery_sticky.queues.sql.settlement import Settlement, carry_out, conclude, judged
from celery_sticky.queues.sql.trip import Carrier, Found, Trip, Wanted
from celery_sticky.sql import Database, Runner


@dataclass(frozen=True, slots=True)
class Carried:
    """A trip, and what it has done."""

    trip: Trip
    held: set[int]
    """The queues whose fence is ours."""
    found: list[Found]
    late: set[int]
    """See `Haul`."""
    dues: dict[int, float | None]
    """Queue -> when the next deferred message is due, where that may have changed."""


class Exchange:
    """The slots that one driver has opened, and its trips."""

    def __init__(self, database: Database, late: LateCommits, prefix: str) -> None:
        self.slots: dict[SlotId, OpenSlot] = {}
        self._database, self._late, self._prefix = database, late, prefix
        one = database.dialect.name == "postgresql"
        self._carrier: Carrier = OneStatement(database) if one else Portable(database)
        self._session = uuid.uuid4().hex
        self._trips = 0
        self._left: dict[str, int] = {}
        """Flight record -> the number of its deliveries that have not ended."""
        self._ended: set[str] = set()
        """Flight records to delete."""

    def name_record(self) -> str:
        """Return the key of a new flight record. A driver that starts again in the same process has other keys."""
        self._trips += 1
        return f"{self._session}.{self._trips}"

    def trip(self, wants: Sequence[Want], dispositions: Sequence[Disposition], now: float) -> Fetched:
        """Apply dispositions, then fetch. All tenures are of one incarnation: a flight record belongs to one."""
        fetched, wanted = Fetched(), list[Wanted]()
        for want in wants:
            slot = self.slots.get((want.tenure.keyspace, want.tenure.slot))
            if slot is None or slot.tenure != want.tenure:
                fetched.lost.add((want.tenure.keyspace, want.tenure.slot))
            else:
                wanted.append(Wanted(slot, max(want.limit, 0)))
        settlement = judged(self.slots, dispositions)
        slots = {one.slot.queue: one.slot for one in wanted} | {step.slot.queue: step.slot for step in settlement.steps}
        if not slots:
            fetched.refused += settlement.refused
            return fetched
        try:
            self._late.age(one.slot for one in wanted)
            carried = self._carry(wanted, settlement, slots, now)
        except BECAUSE_OF_A_SLOT as error:
            if not is_of_a_slot(self._database, error):
                self.forget(slots.values())
                raise
            return self._apart(wants, dispositions, now, error)
        self._conclude(fetched, carried, settlement, slots)
        fetched.lost |= {one.slot.id for one in wanted if one.slot.queue not in carried.held}
        self._bring(fetched, carried)
        late = [one for turn in sorted(carried.late) if (one := carried.trip.wanted[turn]).slot.queue in carried.held]
        if late and self._late.look(slot for slot, _ in late):
            fetched.add(self.trip([Want(slot.tenure, limit) for slot, limit in late], (), now))
        return fetched

    def _apart(
        self, wants: Sequence[Want], dispositions: Sequence[Disposition], now: float, error: Exception
    ) -> Fetched:
        """Carry a trip out in parts, after it has failed as a whole and had no effect."""
        parts = divided(wants, dispositions)
        if len(parts) == 1:
            return failure(wants, dispositions, error)
        fetched = Fetched()
        for some_wants, some_dispositions in parts:
            fetched.add(self.trip(some_wants, some_dispositions, now))
        return fetched

    def forget(self, slots: Iterable[OpenSlot]) -> None:
        """Forget slots of which it is not known what happened. Their flight records stay for the next opening."""
        for slot in slots:
            self.slots.pop(slot.id, None)
            for delivery in slot.flight.values():
                self._left.pop(delivery.record, None)

    def replace(self, slot: OpenSlot) -> None:
        """Remember a slot that was opened, instead of its former opening."""
        former = self.slots.get(slot.id)
        if former is not None:
            self._end(delivery.record for delivery in former.flight.values())
        self.slots[slot.id] = slot
        for delivery in slot.flight.values():
            self._left[delivery.record] = self._left.get(delivery.record, 0) + 1

    def _carry(
        self, wanted: Sequence[Wanted], settlement: Settlement, slots: Mapping[int, OpenSlot], now: float
    ) -> Carried:
        deferring = {step.slot.queue for step in settlement.of(Outcome.DEFER)}
        waking = {one.slot.queue for one in wanted if one.slot.is_due(now) or one.slot.queue in deferring}
        if self._carrier.alone and settlement.only_acks and not waking:
            trip = self._plan(wanted, settlement, slots.values())
            return Carried(trip, *self._carrier.carry(trip, None), {})
        with self._database.transaction() as inside:
            held = self._lock(inside, slots)
            settlement.keep(held)
            settle_runs(settlement, inside, self._database, self._prefix, now)
            carry_out(settlement, inside, self._database, self._prefix)
            for queue in sorted(waking & held):
                wake(inside, self._database.dialect, slots[queue], now)
            kept = [one for one in wanted if one.slot.queue in held]
            trip = self._plan(kept, settlement, [slots[queue] for queue in held])
            haul = self._carrier.carry(trip, inside)
            changed = (waking | deferring) & held
            dues = next_due(inside, changed)
        return Carried(trip, held, haul.found, haul.late, {queue: dues.get(queue) for queue in changed})

    def _plan(self, wanted: Sequence[Wanted], settlement: Settlement, slots: Iterable[OpenSlot]) -> Trip:
        every = list(slots)
        incarnation = every[0].tenure.incarnation.encode() if every else b""
        record = self.name_record()
        return Trip(incarnation, record, self._trips, wanted, every, settlement.places, sorted(self._ended))

    def _lock(self, inside: Runner, slots: Mapping[int, OpenSlot]) -> set[int]:
        """Lock the fences of slots until the transaction ends; return the queues whose fence is still ours."""
        fences = read_fences(inside, self._database.dialect, slots, self._database.dialect.share)
        return {
            queue
            for queue, slot in slots.items()
            if (found := fences.get(queue)) is not None
            and (found.opening, found.incarnation) == (slot.opening, slot.tenure.incarnation.encode())
        }

    def _conclude(
        self, fetched: Fetched, carried: Carried, settlement: Settlement, slots: Mapping[int, OpenSlot]
    ) -> None:
        """Change memory as the database has changed."""
        self._ended.difference_update(carried.trip.ended)
        settlement.keep(carried.held)
        self._end(conclude(settlement, fetched))
        for queue, due in carried.dues.items():
            slots[queue].due = due
        for queue in slots.keys() - carried.held:
            lost = self.slots.pop(slots[queue].id)
            self._end(delivery.record for delivery in lost.flight.values())

    def _end(self, records: Iterable[str]) -> None:
        """Note that a delivery of each of these records has ended."""
        for record in records:
            if record not in self._left:
                continue
            self._left[record] -= 1
            if not self._left[record]:
                del self._left[record]
                self._ended.add(record)

    def _bring(self, fetched: Fetched, carried: Carried) -> None:
        trip, more = carried.trip, set[int]()
        brought = [one for one in carried.found if one.body is not None]
        for turn, priority, number, body in carried.found:
            slot = trip.wanted[turn].slot
            if body is None:
                more.add(turn)
                continue
            tag = Tag(slot.next_number, slot.tenure.trip(trip.number))
            slot.note(tag, InFlight(priority, number, trip.record))
            fetched.deliveries.append(Delivery(slot.tenure, tag, priority, body, slot.suspects.get(number)))
        if brought:
            self._left[trip.record] = len(brought)
        for turn, (slot, _) in enumerate(trip.wanted):
            if slot.queue not in carried.held:
                continue
            if turn not in more and turn not in carried.late:
                fetched.drained.add(slot.id)
            if slot.due is not None:
                fetched.due[slot.id] = slot.due
