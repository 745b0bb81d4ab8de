"""The slots of a worker at the broker: wanted, open, stopping, given back, broken or held by another connection.

Each opening has a tenure of its own, with the next open count. So the broker refuses a late request of an earlier one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice

from celery_sticky.delivery.broken_slots import BrokenSlots
from celery_sticky.delivery.gate import Entry, Gate
from celery_sticky.delivery.rounds import Rounds
from celery_sticky.errors import Fenced, SlotBroken, SlotHeld
from celery_sticky.keys import SlotId
from celery_sticky.ownership.events import Drained, Event, Opened, OpenRefused
from celery_sticky.queues.base import Delivery, Fetched, OpenAnswer, Opening, Tag, Tenure, Want

logger = logging.getLogger("celery_sticky.courier")

OPENINGS = 64
"""Most slots that one request opens, so that no request takes long."""
HELD = "another worker's connection to the broker still holds it"
WAITS_FOR_IT = "Nothing is fetched from this slot until that worker gives it back or its connection ends"
STANDS_STILL = "Nothing is fetched from this slot until that key is repaired or deleted"
UNSETTLED = "Tasks that ended in this slot keep their message and key until the broker accepts their outcome"
HELD_PAUSE, LAST_HELD_PAUSE = 0.1, 2.0
"""Shortest and longest pause between two tries to open a slot that another connection holds, in seconds."""


class SlotLifecycle:
    """Where each slot of the worker stands between its first opening and its end here. Guarded by the courier's lock.

    `report` sends an event to a keyspace's member and must not block. `recalled` is told each unstarted entry with
    counted starts or a claim before its message goes back to its queue. `held_by_connection`: the broker fences by
    connection, so slots are given back to it. `now` is in seconds since the epoch throughout.
    """

    def __init__(
        self,
        gate: Gate,
        rounds: Rounds,
        report: Callable[[str, Event], None],
        recalled: Callable[[Entry], None],
        *,
        held_by_connection: bool,
    ) -> None:
        self._gate, self._rounds, self._report, self._recalled = gate, rounds, report, recalled
        self._held_by_connection, self._connected = held_by_connection, False
        self.to_open: dict[SlotId, Tenure] = {}
        """The slots to open now, and the tenure under which to open each."""
        self.held: dict[SlotId, Tenure] = {}
        """The slots that are open here, also while they are given away."""
        self.fences: dict[SlotId, Tenure] = {}
        """The last opening of each slot, also of those that are no longer ours: the fence, until the next owner's."""
        self.stopping: set[SlotId] = set()
        """The slots that are being given away: nothing more of them starts."""
        self.to_release: dict[SlotId, tuple[Tenure, bool]] = {}
        """The slots to give back at the broker: the tenure of each, and whether it is `Drained` then."""
        self.unsettled = BrokenSlots(UNSETTLED)
        """The slots in which the broker could not apply a disposition."""
        self._broken = BrokenSlots(STANDS_STILL)
        self._elsewhere = BrokenSlots(WAITS_FOR_IT, level=logging.WARNING, first=HELD_PAUSE, last=LAST_HELD_PAUSE)
        self._postponed: dict[SlotId, tuple[float, Tenure]] = {}
        self._counts: dict[SlotId, int] = {}
        self._newest: dict[SlotId, int] = {}
        """The highest delivery number since the slot was last opened."""

    # -- for the member and the placer ---------------------------------------------------------

    def open(self, slot: SlotId, epoch: int, incarnation: str) -> None:
        """Request that a slot be opened; reports `Opened` or `OpenRefused`."""
        self.stopping.discard(slot)
        self._postponed.pop(slot, None)
        self._want(slot, epoch, incarnation)

    def stop(self, slot: SlotId) -> None:
        """Start nothing more in a slot; reports `Drained` once nothing of it runs here and everything is settled."""
        opening = self.to_open.get(slot)
        self.stopping.add(slot)
        self._forget(slot)
        if self._gate.lose(slot):
            self.drained(slot, opening)

    def close(self, slot: SlotId) -> None:
        """Forget a slot that another worker owns already; a task of it that runs here keeps its key locked."""
        tenure = self.held.pop(slot, None)
        self.stopping.discard(slot)
        if slot in self.to_release:
            self.to_release[slot] = (self.to_release[slot][0], False)
        self._give_back(slot, tenure, drained=False)
        self._forget(slot)
        for entry in self._gate.claimed(slot):
            self._recalled(entry)  # if the slot comes back before another worker opens it, its run may start
        self._gate.lose(slot)

    def look_into(self, slot: SlotId) -> None:
        """Fetch from a slot with the next round trip, even if no message is known to wait there.

        Another worker may have moved the fence and taken the messages: only a fetch reveals that.
        """
        if self._gate.is_open(slot):
            self._rounds.note((slot,))

    def look_around(self) -> None:
        """Fetch from open slots with the next round trips, though no message is known to wait: many of them in turns.

        A worker that stood still may have moved the fence of a slot under a higher epoch, which came from a store that
        has lost it since. Then only a fetch reveals that, and no message may ever come that causes one.
        """
        self._rounds.note(slot for slot in self._rounds.next_of(self.held) if self._gate.is_open(slot))

    # -- the connection ------------------------------------------------------------------------

    def connected(self) -> None:
        """Handle a new connection: request that every slot be opened again that is held, wanted or postponed."""
        self._connected = True
        postponed = {slot: tenure for slot, (_, tenure) in self._postponed.items()}
        self._postponed.clear()
        for slot, tenure in (self.held | postponed | self.to_open).items():
            self._want(slot, tenure.epoch, tenure.incarnation)

    def disconnected(self) -> None:
        """Note that there is no connection any more: slots that it held are given back by that."""
        self._connected = False
        self.released(self.to_release.copy())

    def give_up_ended(self) -> None:
        """Let go of slots that wait only for a broker that has been away for too long.

        Their dispositions are kept. The next owner may run such a task again, before any later task of its key.
        """
        for slot in [slot for slot in self.stopping if not self._gate.busy(slot)]:
            self.drained(slot)

    # -- openings and their answers ------------------------------------------------------------

    def openings(self) -> list[Opening]:
        """Return the next slots to open, with the tags that stay here; an opening puts unstarted messages back."""
        openings = []
        for slot, tenure in islice(self.to_open.items(), OPENINGS):
            for entry in dict.fromkeys((*self._gate.suspects(slot), *self._gate.claimed(slot))):
                self._recalled(entry)
            self._gate.recall(slot)
            openings.append(Opening(tenure, tuple(self._gate.kept(slot))))
        return openings

    def answered(self, tenure: Tenure, answer: OpenAnswer, now: float) -> None:
        """Process the broker's answer to an opening."""
        slot = (tenure.keyspace, tenure.slot)
        match answer:
            case Fenced():
                logger.warning("slot %s of keyspace %s: %s", tenure.slot, tenure.keyspace, answer)
                self._fenced(slot, tenure, answer.epoch)
            case SlotBroken():
                self._postpone(slot, tenure, self._broken.note(slot, str(answer), now))
            case SlotHeld():
                self._postpone(slot, tenure, self._elsewhere.note(slot, HELD, now))
            case _:
                self._opened(slot, tenure, answer)

    def _opened(self, slot: SlotId, tenure: Tenure, kept: Collection[Tag]) -> None:
        # The broker knows the deliveries `kept`, which stay here. A stopped slot is opened to settle its tasks only.
        self._newest[slot] = 0
        self._gate.set_adrift(slot, kept)
        self._broken.mended((slot,))
        self._elsewhere.mended((slot,))
        self.fences[slot] = tenure
        wanted = self._no_longer_wanted(slot, tenure)  # False if it was stopped, closed or reopened meanwhile
        if wanted or slot in self.stopping:
            self.held[slot] = tenure
        if wanted and slot not in self.stopping:
            self._gate.open(slot)
            self._rounds.note((slot,))
            self._report(tenure.keyspace, Opened(tenure.slot, tenure.epoch))
        elif slot not in self.held and slot not in self.to_open:
            self._give_back(slot, tenure, drained=False)

    def _fenced(self, slot: SlotId, tenure: Tenure, fence: int) -> None:
        # The slot has another owner: its fence stands at the epoch `fence`.
        self._no_longer_wanted(slot, tenure)
        self.held.pop(slot, None)
        self._rounds.forget(slot)
        self._gate.lose(slot)
        self._report(tenure.keyspace, OpenRefused(tenure.slot, fence))

    def _postpone(self, slot: SlotId, tenure: Tenure, until: float) -> None:
        """Request a slot again that could not be opened, but later, unless it is no longer wanted like this."""
        if self._no_longer_wanted(slot, tenure):
            self._postponed[slot] = (until, tenure)
            self._rounds.forget(slot)

    def open_again(self, now: float) -> None:
        """Request the slots again whose retry time has come."""
        for slot, (at, tenure) in list(self._postponed.items()):
            if at <= now:
                del self._postponed[slot]
                self._want(slot, tenure.epoch, tenure.incarnation)

    @property
    def opens_at(self) -> float | None:
        """The time of the next attempt to open a slot that could not be opened, or None."""
        return min(at for at, _ in self._postponed.values()) if self._postponed else None

    def waits(self, slot: SlotId) -> bool:
        """Return whether the slot is to be opened, now or later."""
        return slot in self.to_open or slot in self._postponed

    def reopen(self, slot: SlotId) -> None:
        """Request that a slot be opened again, if it is held; one that was postponed waits for its time."""
        if slot not in self._postponed and (tenure := self.held.get(slot)):
            self._want(slot, tenure.epoch, tenure.incarnation)

    # -- the end of a slot here ----------------------------------------------------------------

    def drained(self, slot: SlotId, opening: Tenure | None = None) -> None:
        """Let a slot go, if it is being given away; the request for an `opening` may be on its way."""
        if slot in self.stopping:
            self.stopping.discard(slot)
            tenure = self.held.pop(slot, None) or opening
            self._forget(slot)  # a new connection may have requested it, to settle the messages that are now done
            self._give_back(slot, tenure, drained=True)

    def _give_back(self, slot: SlotId, tenure: Tenure | None, *, drained: bool) -> None:
        """Give a slot back at the broker, if the connection holds it there, and then report that it is drained."""
        if tenure is not None and self._held_by_connection and self._connected:
            _, before = self.to_release.get(slot, (None, False))
            self.to_release[slot] = (tenure, drained or before)
        elif drained:
            self._report(slot[0], Drained(slot[1]))

    def released(self, slots: Mapping[SlotId, tuple[Tenure, bool]]) -> None:
        """Note that the broker has taken these slots back (a part of `to_release`)."""
        for slot, given in slots.items():
            if self.to_release.get(slot) is given:  # else it was opened or closed meanwhile
                del self.to_release[slot]
                if given[1]:
                    self._report(slot[0], Drained(slot[1]))

    # -- what a round trip shows ---------------------------------------------------------------

    def take_in(self, fetched: Fetched, now: float) -> None:
        """Note which slots are empty, broken, lost or brought messages; drop deliveries that must come again."""
        repeated = self._note_numbers(fetched.deliveries)
        self._rounds.drained(fetched.drained)
        for slot, due in fetched.due.items():
            if self._gate.is_open(slot):
                self._rounds.note_due(slot, due)
        for slot, reason in fetched.broken.items():
            at = self._broken.note(slot, reason, now)
            if self._gate.is_open(slot):
                self._rounds.drained((slot,))
                self._rounds.note_due(slot, at)
        for slot in fetched.lost:
            # Somebody has moved the fence: open again. The answer says who owns the slot.
            self.reopen(slot)
        for slot in repeated:  # the broker counts from the start, so a tag may name two messages
            self._gate.set_adrift(slot)
            self.reopen(slot)
        if repeated:
            fetched.deliveries[:] = [
                d for d in fetched.deliveries if (d.tenure.keyspace, d.tenure.slot) not in repeated
            ]

    def _note_numbers(self, deliveries: Iterable[Delivery]) -> set[SlotId]:
        """Record which slots brought messages, and the highest number of each; return slots whose numbers went back."""
        newest, served, repeated = self._newest, dict[SlotId, None](), set[SlotId]()
        for delivery in deliveries:
            tenure, number = delivery.tenure, delivery.tag.number
            slot = (tenure.keyspace, tenure.slot)
            if number <= newest.get(slot, 0):
                repeated.add(slot)
            newest[slot] = number
            served[slot] = None
        self._rounds.served(served)
        return repeated

    def mended(self, wants: Iterable[Want], fetched: Fetched) -> None:
        """Record which broken slots work again."""
        if self._broken.any:
            slots = ((want.tenure.keyspace, want.tenure.slot) for want in wants)
            self._broken.mended(slot for slot in slots if slot not in fetched.broken and slot not in fetched.lost)
        if self.unsettled.any:
            failed = {(disposition.tenure.keyspace, disposition.tenure.slot) for disposition, _ in fetched.failed}
            slots = ((disposition.tenure.keyspace, disposition.tenure.slot) for disposition in fetched.confirmed)
            self.unsettled.mended(slot for slot in slots if slot not in failed)

    # -- inside --------------------------------------------------------------------------------

    def _forget(self, slot: SlotId) -> None:
        self.to_open.pop(slot, None)
        self._postponed.pop(slot, None)
        for troubles in (self._broken, self._elsewhere, self.unsettled):
            troubles.forget(slot)
        self._rounds.forget(slot)

    def _no_longer_wanted(self, slot: SlotId, tenure: Tenure) -> bool:
        """Take back the request to open a slot under this tenure; False if there is none."""
        if self.to_open.get(slot) is not tenure:
            return False
        del self.to_open[slot]
        return True

    def _want(self, slot: SlotId, epoch: int, incarnation: str) -> None:
        count = self._counts[slot] = self._counts.get(slot, 0) + 1
        self.to_open[slot] = Tenure(slot[0], slot[1], epoch, incarnation, count)
