"""The courier's delivery state: its messages, from the fetch to the confirmed end. No thread, no clock, no broker.

The courier asks it for requests to send to the broker, sends them, and feeds the answers back. Threads that share a
delivery state hold one lock around every call, so that reports leave in the order of the events.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from celery_sticky.delivery.backoff import Backoff
from celery_sticky.delivery.gate import Entry, Gate, Stage
from celery_sticky.delivery.key_claims import KeyClaims
from celery_sticky.delivery.message_memory import MessageMemory
from celery_sticky.delivery.outbox import Outbox
from celery_sticky.delivery.rounds import Rounds
from celery_sticky.delivery.run_claims import Grant
from celery_sticky.delivery.slots import SlotLifecycle
from celery_sticky.envelope import Envelope, restamped
from celery_sticky.errors import AssignmentFailed, RunAbandoned, StickyError
from celery_sticky.keys import SlotId
from celery_sticky.message import STAMP_HEADER
from celery_sticky.ownership.events import Event
from celery_sticky.queues.base import Delivery, Disposition, Fetched, Outcome, Tag, Want
from celery_sticky.queues.guarantees import FULL, Fence, Guarantees
from celery_sticky.slots import Slot

BATCH = 64
"""Most messages that one fetch brings."""
IN_A_SLOT = 4
"""Messages requested from each slot at least: one look into a slot serves all of them."""
AHEAD = 32
"""Runnable messages kept in addition to those that the pool runs at a time."""
MOST_HOPS = 16
"""Most times in a row that a message is passed on while neither the members nor the pins change."""
LONE_STARTS = 2
"""Number of last counted starts of a message (its last start, its burial) that run beside no other counted one."""


UNREMEMBERED = (Outcome.UNCOUNT_START, Outcome.UNCLAIM, Outcome.MOVE)
"""Dispositions of messages that have not run. One that is delivered here again is decided about again, in its turn."""


class Item(Struct, frozen=True):
    """The content of a gate entry: the delivery and its parsed envelope."""

    delivery: Delivery
    envelope: Envelope


class End(Struct, frozen=True):
    """The disposition of the message of a task that has released its key."""

    outcome: Outcome
    due: float = 0.0
    body: bytes | None = None
    reason: str = ""
    to: Slot = 0
    error: StickyError | None = None
    """The error for those who wait for the task, sent once the broker has confirmed that the message is buried."""
    finishes: bool = True
    """Whether the run has ended, for the ledger; False: it has not run, or another delivery has its claim."""
    abandoned: bool = False
    """Whether the run was claimed and never finished as far as is known: a person decides whether to run it again."""


class DeliveryState:
    """The messages of one worker: fetched, running, ended and unconfirmed ones, and the slots that they come from.

    `report` sends an event to a keyspace's member and must not block. `concurrency` returns how many tasks the pool
    runs at a time right now. `now` is in seconds since the epoch throughout.
    """

    def __init__(
        self,
        report: Callable[[str, Event], None],
        *,
        worker: str,
        concurrency: Callable[[], int],
        max_waiting: int,
        max_attempts: int,
        max_waiting_bytes: int = 64 * 1024 * 1024,
        claim_ahead: int | None = None,
        guarantees: Guarantees = FULL,
    ) -> None:
        """`claim_ahead`: most runs that are claimed and wait for their start; None: as many as the pool runs."""
        self.gate = Gate()
        self.claims = KeyClaims(self.gate)
        self.outbox = Outbox(guarantees.company)
        self.rounds = Rounds()
        self.backoff = Backoff()
        self.slots = SlotLifecycle(
            self.gate,
            self.rounds,
            report,
            self._note_starts,
            held_by_connection=guarantees.fence is Fence.CONNECTION,
        )
        self.refused: list[tuple[Envelope, StickyError]] = []
        """Messages buried before they started, and why, until the courier collects them here."""
        self._counts_starts = guarantees.counts_starts
        self._worker, self._concurrency = worker, concurrency
        self._max_waiting, self._max_attempts = max_waiting, max_attempts
        self._max_waiting_bytes = max_waiting_bytes
        self._claim_ahead = claim_ahead
        self.discarded = self.abandoned = 0
        """Messages whose run was claimed by another copy or has finished, and abandoned runs, since the start."""
        self._memory = MessageMemory()
        self._errors: dict[Entry, StickyError] = {}

    # -- slots and the connection --------------------------------------------------------------

    def stop(self, slot: SlotId, now: float) -> None:
        """Start nothing more in a slot, and take back claims and counted starts of runs that will not happen here."""
        for entry in self.gate.claimed(slot):
            if entry.run is not None and entry.run.once and (self.gate.end(entry) or self.gate.end_waiting(entry)):
                self._put(entry, End(Outcome.UNCLAIM), now)
        for entry in self.gate.suspects(slot) if self._counts_starts else ():
            if entry.start_counted and (self.gate.end(entry) or self.gate.end_waiting(entry)):
                # A counted start without a run: after a few such handovers the message would be buried as poison.
                self._put(entry, End(Outcome.UNCOUNT_START), now)
                entry.adrift = True  # it has not run: if this slot is opened here again, it goes back to its queue
        self.slots.stop(slot)

    def connected(self, now: float) -> None:
        """Handle a new connection: request that every slot be opened again and resend unanswered dispositions."""
        self.outbox.back(now)
        self.slots.connected()

    # -- runs ----------------------------------------------------------------------------------

    def take(self, most: int, may: Callable[[SlotId], bool], at_once: int = sys.maxsize) -> list[Entry]:
        """Hand out at most `at_once` entries whose slot `may` start tasks now, so that the pool has at most `most`."""
        entries = self.gate.take(min(at_once, most - self.gate.out), may)
        held = self.slots.held
        for entry in entries:
            # A task that ran when its slot was reopened and did not finish runs again under another tenure than the
            # one it was fetched under. That tenure's epoch is the task's fencing token.
            item: Item = entry.content
            tenure = held.get(entry.slot, item.delivery.tenure)
            if tenure != item.delivery.tenure:
                entry.content = Item(replace(item.delivery, tenure=tenure), item.envelope)
        return entries

    def again(self, entry: Entry, now: float, *, counted: bool, cause: str = "") -> None:
        """Give a started task that did not finish another turn in its place, if the slot is still ours."""
        entry.cause = cause
        if self._gives_claim_back(entry, now):
            return
        if entry.claim is not None:
            self.claims.prepare(entry)
        if not self.gate.again(entry, counted=counted) and not self.gate.holds(entry.slot):
            self.slots.drained(entry.slot)

    def rest(self, entry: Entry, turn: int, now: float, *, after_run: bool, cause: str) -> None:
        """Retry a message later that could not start or that its task gave back; the message itself is sound."""
        if (entry.stage is Stage.HANDED and entry.turn != turn) or entry.stage not in (Stage.HANDED, Stage.STARTED):
            return  # it was taken back in the meantime
        if self._gives_claim_back(entry, now):
            return
        if entry.claim is not None:
            self.claims.prepare(entry)
        if not self.gate.rest(entry, turn):
            if not self.gate.holds(entry.slot):
                self.slots.drained(entry.slot)
        elif after_run:
            self.backoff.note_requeue(entry, cause, now)
        else:
            self.backoff.note_failure(entry, cause, now)

    def _gives_claim_back(self, entry: Entry, now: float) -> bool:
        """Return whether the slot of an entry is lost, and the claim of its run, which has not begun, is given back."""
        once = entry.run is not None and entry.run.once
        if not once or self.gate.is_open(entry.slot) or not self.gate.end(entry):
            return False
        self._put(entry, End(Outcome.UNCLAIM), now)
        return True

    def rouse(self, now: float) -> bool:
        """Give their turn to the entries whose retry is due; True if there were any."""
        if self.backoff.next_due is None:
            return False
        due = list(self.backoff.due(now))
        for entry in due:
            self.gate.rouse(entry)
        return bool(due)

    def end(self, entry: Entry, end: End, now: float) -> bool:
        """Settle an entry whose task has released its key. True if the disposition should go at once."""
        if not self.gate.end(entry):
            return False
        self.abandoned += end.abandoned
        return self._put(entry, end, now) or self._in_a_hurry()

    def move(self, entry: Entry, to: Slot, now: float, seen: str = "") -> bool:
        """Pass a message that has not started on to another queue of its keyspace.

        Do nothing while an earlier entry of its key is adrift: if that ends, this may be its message, which has ended.
        Return False while the run of an earlier one is about to begin: if it never does, that message must go first.
        `seen` describes the members and the pin behind this decision. Workers that see the same but disagree would pass
        the message back and forth forever: `MOST_HOPS` stops them.
        """
        if self.gate.is_behind_unbegun(entry):
            return False
        start_counted = entry.start_counted
        if entry.stage is Stage.ENDED or self.gate.is_behind_adrift(entry) or not self.gate.withdraw(entry):
            return True
        item: Item = entry.content
        stamp = dict(item.envelope.headers[STAMP_HEADER])
        hops = int(stamp.get("hops") or 0) + 1 if stamp.get("seen") == seen else 1
        stamp |= {"hops": hops, "seen": seen}
        if entry.attempts is not None:
            stamp["starts"] = max(0, entry.attempts - start_counted)  # the counted start has not happened
        if hops > MOST_HOPS:
            reason = f"passed on {MOST_HOPS} times: the workers disagree on where key {stamp.get('key')!r} belongs"
            self._put(entry, _refusal(AssignmentFailed(reason)), now)
        else:
            self._put(entry, End(Outcome.MOVE, body=restamped(item.delivery.raw(), stamp), to=to), now)
            if entry.may_hold_claim:
                self._note_starts(entry)  # the claim is given back with the message; it may come again before that
            # If the slot is opened here again first, it goes back to its queue: the broker may have lost newer data, so
            # that earlier messages of its key, which were passed on, stand there again.
            entry.adrift = True
        return True

    def refuse(self, entry: Entry, error: StickyError, now: float) -> None:
        """Bury a message that has not started, and tell those who wait for its task why."""
        if not self.gate.is_behind_adrift(entry) and self.gate.withdraw(entry):
            self._put(entry, _refusal(error), now)

    # -- what to send --------------------------------------------------------------------------

    def dispositions(self, now: float) -> list[Disposition]:
        """Return the dispositions to send now."""
        self.outbox.come_due(now)
        prepared = self.gate.has_uncounted and self._mark(now)
        prepared = (self.gate.run_claims and self._claim(now)) or prepared
        goes_at = self.outbox.goes_at
        if goes_at is None or not (prepared or now >= goes_at or self._in_a_hurry()):
            return []
        return self.outbox.take(self._stamp)

    def _mark(self, now: float) -> bool:
        due = list(self.gate.uncounted(self._concurrency(), wary=max(0, self._max_attempts - LONE_STARTS)))
        for entry in due:
            if self._counts_starts:
                self._put(entry, End(Outcome.COUNT_START), now)
            else:
                self._count_here(entry, now)
        return bool(due)

    def _claim(self, now: float) -> bool:
        most = self._concurrency() if self._claim_ahead is None else self._claim_ahead
        due = list(self.gate.run_claims.take(most))
        for entry in due:
            self._put(entry, End(Outcome.CLAIM), now)
        return bool(due)

    def _count_here(self, entry: Entry, now: float) -> None:
        """Count a start that the broker does not count: a task that kills its processes here is buried at the limit."""
        if entry.adrift or entry.orphan:
            self._drop(entry)
            if not entry.adrift:  # its message may be in flight here: have it put back, as it would be if adrift
                self.slots.reopen(entry.slot)
        else:
            self._on_start_counted(entry, (entry.attempts or 0) + 1, now)

    def _drop(self, entry: Entry) -> None:
        """Forget an entry whose start was not counted or claimed: its message does not belong to this tenure."""
        if entry.stage is Stage.READY:
            self._note_starts(entry)
        self.gate.forget(entry)

    def wants(self, now: float, *, company: bool) -> list[Want]:
        """Return the slots to fetch from now. `company`: a round trip takes place in any case."""
        self.rounds.come_due(now)
        if not self.rounds.any or self.gate.bytes >= self._max_waiting_bytes:
            return []
        gate, concurrency = self.gate, self._concurrency()
        window = concurrency + AHEAD
        room = min(window - gate.runnable, self._max_waiting - gate.waiting - len(gate.limited))
        if room <= 0 or (room < window // 2 and gate.runnable > concurrency and not company):
            return []  # a round trip for a handful of messages is wasteful while the pool is busy
        batch = min(BATCH, room)
        slots = self.rounds.pick(max(1, batch // IN_A_SLOT), self._may_bring)
        return [Want(self.slots.held[slot], batch // len(slots)) for slot in slots]

    def _may_bring(self, slot: SlotId) -> bool:
        """Return whether to fetch from a slot now. One hot key must not fill the whole waiting room."""
        gate = self.gate
        if not gate.is_open(slot) or self.slots.waits(slot):
            return False
        if gate.bytes_of(slot) >= self._max_waiting_bytes // 8:
            return False
        return gate.held(slot) < max(BATCH, self._max_waiting // 8)

    def _in_a_hurry(self) -> bool:
        """Return whether a disposition is urgent: a key or a count holds up an idle pool, or a slot is leaving."""
        gate = self.gate
        if self.outbox.full or self.slots.stopping or gate.has_uncounted:
            return True
        return (gate.waiting > 0 or self.rounds.any) and gate.runnable <= self._concurrency()

    def _stamp(self, entry: Entry, disposition: Disposition) -> Disposition:
        # After an opening, the broker settles kept deliveries only under the new tenure. The same holds in a slot that
        # we no longer own: until its next owner opens it, the fence is the one we set.
        tenure = self.slots.fences.get(entry.slot)
        return disposition if tenure is None or tenure == disposition.tenure else replace(disposition, tenure=tenure)

    def _put(self, entry: Entry, end: End, now: float) -> bool:
        item: Item = entry.content
        info = self._info(entry, end, now) if end.outcome is Outcome.BURY else ""
        if end.error is not None:
            self._errors[entry] = end.error
        starts = max(1, (entry.attempts or 0) - entry.base + (end.outcome is Outcome.COUNT_START))
        claim = entry.run if _concerns_ledger(entry, end) else None
        if claim is not None and entry.claimants and end.outcome in (Outcome.UNCLAIM, Outcome.MOVE):
            claim = replace(claim, earlier=entry.claimants)
        disposition = Disposition(
            end.outcome, item.delivery.tenure, entry.tag, end.due, end.body, info, end.to, starts, claim
        )
        return self.outbox.put(entry, disposition, now)

    def _info(self, entry: Entry, end: End, now: float) -> str:
        envelope: Envelope = entry.content.envelope
        stamp = envelope.headers.get("sticky")
        run = {"run": entry.run.run, "abandoned": end.abandoned} if entry.run is not None else {}
        return json.dumps({
            "reason": end.reason,
            "task": envelope.task,
            "id": envelope.task_id,
            "key": stamp.get("key") if isinstance(stamp, dict) else None,
            "at": now,
            "worker": self._worker,
            **run,
        })  # fmt: skip

    # -- answers -------------------------------------------------------------------------------

    def take_in(self, fetched: Fetched, now: float) -> None:
        """Process the answer to a round trip, except its deliveries: these are parsed first, then admitted."""
        for disposition in fetched.confirmed:
            entry, _ = self.outbox.answered(disposition)
            if disposition.outcome is Outcome.COUNT_START:
                attempts = fetched.counted_starts[disposition.tenure.keyspace, disposition.tenure.slot, disposition.tag]
                self._on_start_counted(entry, attempts + entry.base, now)
                continue
            if disposition.outcome is Outcome.CLAIM:
                place = (disposition.tenure.keyspace, disposition.tenure.slot, disposition.tag)
                self._on_claimed(entry, fetched.claims[place], now)
                continue
            self._settle(entry)
            if disposition.outcome is Outcome.UNCLAIM and self.gate.is_open(entry.slot):
                self.slots.reopen(entry.slot)  # the slot came back, and the message is still in flight
            if self._errors and (error := self._errors.pop(entry, None)) is not None:
                self.refused.append((entry.content.envelope, error))
            if disposition.outcome is Outcome.DEFER and self.gate.is_open(entry.slot):
                self.rounds.note_deferred(entry.slot, disposition.due)
        for disposition in fetched.refused:
            self._on_refused(disposition, now)
        for disposition, reason in fetched.failed:
            at = self.slots.unsettled.note((disposition.tenure.keyspace, disposition.tenure.slot), reason, now)
            if disposition.outcome in (Outcome.COUNT_START, Outcome.CLAIM):
                entry, _ = self.outbox.answered(disposition)
                if disposition.outcome is Outcome.CLAIM:
                    self.gate.run_claims.again(entry)
                self.gate.hold_back(entry)  # it must not block the counted starts of other slots
                self.backoff.wait(entry, at - now, now)
            else:
                self.outbox.postpone(disposition, at)
        self.slots.take_in(fetched, now)

    def admit(self, entry: Entry, due: float | None, now: float) -> None:
        """Let a delivery in, or settle it at once if it is not due yet or has ended here under a lost tenure.

        `due` is when the message should run, in seconds since the epoch, or None.
        """
        end = self._recall(entry) if self._memory else None
        if end is not None:
            if self.gate.add_ended(entry):  # no later message of its key starts before this is confirmed
                self._put(entry, end, now)
            else:
                self._memory.note_end(entry.content.delivery.identity, end)
        elif due is not None and due > now:
            self._put(entry, End(Outcome.DEFER, due=due, finishes=False), now)
        elif entry.claim is None:
            self.gate.add(entry)
        else:
            self.claims.prepare(entry)
            if self.gate.add(entry):
                self.claims.note(entry)

    def _recall(self, entry: Entry) -> End | None:
        """Return how this message ended here earlier, if it did; apply the starts that were counted here."""
        delivery: Delivery = entry.content.delivery
        end, starts = self._memory.recall(delivery.identity)
        if starts is None:
            return end
        entry.claimants = starts.claimants
        if starts.attempts is None:
            return end
        if starts.epoch == delivery.tenure.epoch:
            entry.attempts, entry.start_counted = starts.attempts, starts.start_counted
        else:
            entry.attempts = max(starts.attempts, entry.attempts or 0)
        return end

    def bury(self, entry: Entry, reason: str, now: float) -> None:
        """Bury an unreadable delivery at once."""
        self._put(entry, End(Outcome.BURY, reason=reason), now)

    def _settle(self, entry: Entry) -> None:
        if self.gate.settled(entry):
            self.slots.drained(entry.slot)

    def _on_start_counted(self, entry: Entry, attempts: int, now: float) -> None:
        if attempts < self._max_attempts:
            self.gate.start_counted(entry, attempts)
        elif self.gate.end(entry):
            self._put(entry, End(Outcome.BURY, reason=_endless(entry, attempts)), now)

    def _on_claimed(self, entry: Entry, holder: Tag | None, now: float) -> None:
        """Process the answer to a claim: `holder` is the delivery that holds it; None: the run has finished."""
        if not entry.unstarted or entry.grant is not Grant.ASKED:
            return  # it was given up meanwhile
        if holder == entry.tag or holder in entry.claimants:
            self.gate.granted(entry)
        elif self.gate.end(entry) or self.gate.end_waiting(entry):
            if holder is None or self.gate.has(entry.slot[0], holder):
                self.discarded += 1
                self._put(entry, End(Outcome.ACK, finishes=False), now)
            else:
                self.abandoned += 1
                self._put(entry, abandonment(f"its run was claimed under {holder.trip} and never finished"), now)

    def _on_refused(self, disposition: Disposition, now: float) -> None:
        entry, unanswered = self.outbox.answered(disposition)
        self.slots.look_into(entry.slot)  # its fence may be another worker's
        if disposition.outcome is Outcome.COUNT_START:
            self._drop(entry)
            return
        if disposition.outcome is Outcome.CLAIM:
            self._drop(entry)
            self.gate.run_claims.again(entry)  # if it waits for its turn, the claim is asked for again then
            return
        if disposition.outcome is Outcome.UNCLAIM:
            self._note_starts(entry)  # the claim stands: if the message comes again, the run may start
        error = self._errors.pop(entry, None)
        if unanswered and disposition.outcome is Outcome.BURY:
            # Most likely it is buried. If we remembered this end, a message that a person requeues would be buried.
            if error is not None:
                self.refused.append((entry.content.envelope, error))
        elif disposition.outcome not in UNREMEMBERED and entry.stage is Stage.ENDED:
            self._end_again(entry, _end_of(disposition, error), now)
        self._settle(entry)

    def _end_again(self, entry: Entry, end: End, now: float) -> None:
        """Apply this end to the message if it is delivered here again: its task has run."""
        identity = entry.content.delivery.identity
        again = [other for other in self.gate.behind(entry) if other.content.delivery.identity == identity]
        for other in again:
            self.gate.end_waiting(other)
            self._put(other, end, now)
        if not again:
            self._memory.note_end(identity, end)

    def _note_starts(self, entry: Entry) -> None:
        delivery: Delivery = entry.content.delivery
        self._memory.note_starts(delivery.identity, entry, delivery.tenure.epoch)


def abandonment(cause: str) -> End:
    """Return the end of a run that was claimed and may have been done in part: it is not run again."""
    error = RunAbandoned(f"{cause}; it may have run, and is not run again unless a person retries it")
    return End(Outcome.BURY, reason=str(error), error=error, abandoned=True)


def _concerns_ledger(entry: Entry, end: End) -> bool:
    """Return whether an end says something of the entry's run to the ledger."""
    match end.outcome:
        case Outcome.ACK | Outcome.DEFER | Outcome.BURY:
            return end.finishes
        case Outcome.MOVE:
            return entry.may_hold_claim
        case Outcome.CLAIM | Outcome.UNCLAIM:
            return True
    return False


def _end_of(disposition: Disposition, error: StickyError | None) -> End:
    """Return the end that a disposition was made of."""
    info = json.loads(disposition.info) if disposition.info else {}
    return End(
        disposition.outcome,
        disposition.due,
        disposition.body,
        info.get("reason", ""),
        disposition.to,
        error,
        disposition.claim is not None,
        info.get("abandoned", False),
    )


def _endless(entry: Entry, attempts: int) -> str:
    why = f"the last time: {entry.cause}" if entry.cause else "its process died each time"
    return f"started {attempts} times and never finished: {why}"


def _refusal(error: StickyError) -> End:
    return End(Outcome.BURY, reason=str(error), error=error)
