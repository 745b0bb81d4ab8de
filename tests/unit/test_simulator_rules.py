"""Each rule that the simulator can judge is taken away in turn; the simulator then names the promise that breaks."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from harness.rules import Rule, broken_without, rule
from simulator.invariants import Invariant
from simulator.member import NEVER, SimulatedLease
from simulator.pool import Pool, SimulatedRun
from simulator.scenario import Kind
from simulator.terms import MARGIN, TTL

from celery_sticky.delivery.backoff import Backoff
from celery_sticky.delivery.courier import Courier
from celery_sticky.delivery.flow import CourierFlow
from celery_sticky.delivery.gate import Entry, Gate, Stage, _Slot
from celery_sticky.delivery.outbox import Outbox
from celery_sticky.delivery.rounds import Rounds
from celery_sticky.delivery.slots import SlotLifecycle
from celery_sticky.delivery.state import DeliveryState, End
from celery_sticky.keys import SlotId
from celery_sticky.membership.flow import Flow
from celery_sticky.membership.store_requests import StoreRequests
from celery_sticky.ownership import changes, machine
from celery_sticky.ownership.events import (
    BeatDone,
    Effect,
    Event,
    ReadDone,
    StoreEffect,
    StoreFailed,
    Swap,
    SwapDone,
)
from celery_sticky.ownership.holdings import Holdings
from celery_sticky.ownership.machine import Machine
from celery_sticky.ownership.view import View
from celery_sticky.ownership.watches import Watches
from celery_sticky.queues import memory as queues
from celery_sticky.queues.base import Disposition, Fetched, OpenAnswer, Opening, Outcome, Tag, Tenure, Want
from celery_sticky.queues.memory import MemoryQueues
from celery_sticky.stores.memory.store import MemoryStore

on_beat, on_read, on_store_lost = Machine._on_beat, Machine._on_read, Machine._on_store_lost
settle, bring, open_slot = MemoryQueues._settle, MemoryQueues._bring, MemoryQueues._open
gate_end, gate_settled, gate_lose, gate_add, make_ready = (
    Gate.end,
    Gate.settled,
    Gate.lose,
    Gate.add,
    Gate._make_ready,
)
start_entry, handed_over, swap = Courier.start_entry, changes._handed_over, MemoryStore.swap
opened, after_idle = SlotLifecycle._opened, CourierFlow._after_idle
ask_store, ask_and_fail = StoreRequests._ask, StoreRequests.ask


# -- The member without … ---------------------------------------------------------------------


def trust_without_end(self: SimulatedLease, keyspace: str, membership: int | None = None) -> bool:
    return self.until(keyspace) > NEVER


def sent_when_answered(self: StoreRequests, effect: StoreEffect, joins: str, sent: float) -> Flow[Event]:
    answer = yield from ask_store(self, effect, joins, sent)
    return replace(answer, sent=self._here.clock()) if isinstance(answer, BeatDone | SwapDone) else answer


def lost_is_done(self: StoreRequests, effect: StoreEffect, joins: str) -> Flow[Event]:
    answer = yield from ask_and_fail(self, effect, joins)
    if isinstance(answer, StoreFailed) and isinstance(effect, Swap):
        return SwapDone(answer.sent, effect.new, True)
    return answer


def trust_from_the_answer(self: Machine, event: BeatDone, now: float, effects: list[Effect]) -> None:
    on_beat(self, replace(event, sent=now + MARGIN), now, effects)


def revived(self: Machine, event: BeatDone, now: float, effects: list[Effect]) -> None:
    on_beat(self, replace(event, alive=True), now, effects)


def touch(self: Machine, now: float) -> None:
    self._contact = now


def fresh_at_once(self: Machine, view: View | None, event: ReadDone, now: float, effects: list[Effect]) -> None:
    self.store_lost_since = float("-inf")
    on_store_lost(self, view, event, now, effects)


def any_view(self: Machine, event: ReadDone, now: float, effects: list[Effect]) -> None:
    self._newest = (0, 0)
    on_read(self, replace(event, store_id=event.view.store_id) if event.view else event, now, effects)


def given_at_once(self: Holdings, view: View) -> frozenset[int]:
    return view.giving(self._name)


def same_epoch(view: View, slots: Sequence[int]) -> View:
    return replace(handed_over(view, slots), epoch=view.epoch)


def however_late(self: MemoryStore, old: View | None, new: View, guard: Any = None, until: Any = None) -> bool:
    return swap(self, old, new, guard)


def unconditional(self: MemoryStore, old: View | None, new: View, guard: Any = None, until: Any = None) -> bool:
    version, generation = self._version() or (0, 0)
    return swap(self, replace(old, version=version, generation=generation) if old else None, new, guard)


def lopsided(view: View) -> tuple[str | None, ...]:
    names = sorted(member.name for member in view.active)
    return tuple(names[0] if names else None for _ in range(view.slots))


# -- The gate and the courier without … --------------------------------------------------------


def add_to_no_line(self: Gate, entry: Entry) -> bool:
    entry.key = object()
    return gate_add(self, entry)


def end_frees_the_key(self: Gate, entry: Entry) -> bool:
    ended = gate_end(self, entry)
    if ended:
        self._leave_line(entry)
        entry.stage = Stage.ENDED
    return ended


def settled_frees_nothing(self: Gate, entry: Entry) -> bool:
    if entry.stage is not Stage.ENDED:
        return False
    state = self._slots[entry.slot]
    del state.running[entry]
    entry.stage = Stage.GONE
    return not state.live and self._tidy(entry.slot, state)


def lose_frees_keys(self: Gate, slot: SlotId) -> bool:
    drained = gate_lose(self, slot)
    for entry in self._slots[slot].running if slot in self._slots else ():
        line = self._lines[entry.key]
        if line[0] is not entry:
            continue
        line.popleft()
        if line:
            self._promote(line[0])
        else:
            del self._lines[entry.key]
        entry.key = object()
        self._lines[entry.key] = deque([entry])
    return drained


def ready_among_the_counted(self: Gate, entry: Entry, *, paid: bool = False) -> None:
    counted = entry in self._counted
    make_ready(self, entry, paid=paid)
    if counted:
        self._counted[entry] = None


def recall_frees_keys(self: Gate, slot: SlotId) -> None:
    if state := self._slots.get(slot):
        live = state.live
        lose_frees_keys(self, slot)
        self._slots.setdefault(slot, state).live = live


def start_whatever(self: Gate, entry: Entry, turn: int, *, trusted: bool) -> bool:
    if entry.stage in (Stage.STARTED, Stage.ENDED):
        return False
    if entry.stage is Stage.GONE or entry.slot not in self._slots:
        state = self._slots.setdefault(entry.slot, _Slot())
        self._lines.setdefault(entry.key, deque()).appendleft(entry)
        self.out, self.runnable = self.out + 1, self.runnable + 1
    else:
        state = self._slots[entry.slot]
    state.unstarted.pop(entry, None)
    state.running[entry] = None
    entry.stage = Stage.STARTED
    return True


def forget_nothing(self: Gate, state: Any) -> None:
    return None


def lose_without_confirmation(self: Gate, slot: SlotId) -> bool:
    return gate_lose(self, slot) or not self.busy(slot)


def opened_although_stopping(self: SlotLifecycle, slot: SlotId, tenure: Tenure, kept: Collection[Tag]) -> None:
    opened(self, slot, tenure, kept)
    if slot in self.stopping and self.held.get(slot) is tenure:
        self._gate.open(slot)
        self._rounds.note((slot,))


def ack_at_start(self: Courier, entry: Entry, turn: int) -> bool:
    started = start_entry(self, entry, turn)
    if started:
        self.consult(lambda state: state._put(entry, End(Outcome.ACK), self._clock()))
    return started


# -- The broker without … ----------------------------------------------------------------------


def refuses_no_equal_epoch(fence: Tenure, tenure: Tenure) -> bool:
    old = fence.incarnation == tenure.incarnation and fence.open_count >= tenure.open_count
    return fence.epoch > tenure.epoch or (fence.epoch == tenure.epoch and old)


def refuses_no_old_count(fence: Tenure, tenure: Tenure) -> bool:
    return fence.epoch > tenure.epoch or (fence.epoch == tenure.epoch and fence.incarnation != tenure.incarnation)


def settle_for_anybody(self: MemoryQueues, disposition: Disposition, fetched: Fetched, now: float) -> None:
    fence = self.broker.slot(disposition.tenure.keyspace, disposition.tenure.slot).fence
    settle(self, msgspec.structs.replace(disposition, tenure=fence or disposition.tenure), fetched, now)


def bring_to_anybody(self: MemoryQueues, want: Want, now: float, fetched: Fetched) -> None:
    fence = self.broker.slot(want.tenure.keyspace, want.tenure.slot).fence
    already = len(fetched.deliveries)
    bring(self, msgspec.structs.replace(want, tenure=fence or want.tenure), now, fetched)
    fetched.deliveries[already:] = [
        msgspec.structs.replace(d, tenure=want.tenure) for d in fetched.deliveries[already:]
    ]


def open_to_the_back(self: MemoryQueues, opening: Opening) -> OpenAnswer:
    slot = self.broker.slot(opening.tenure.keyspace, opening.tenure.slot)
    before = {step: list(messages) for step, messages in slot.lists.items()}
    answer = open_slot(self, opening)
    for step, messages in slot.lists.items():
        messages.rotate(-(len(messages) - len(before[step])))
    return answer


def open_in_reverse(self: MemoryQueues, opening: Opening) -> OpenAnswer:
    slot = self.broker.slot(opening.tenure.keyspace, opening.tenure.slot)
    before = {step: len(messages) for step, messages in slot.lists.items()}
    answer = open_slot(self, opening)
    for step, messages in slot.lists.items():
        back = [messages.popleft() for _ in range(len(messages) - before[step])]
        messages.extendleft(back)
    return answer


def open_keeping_nothing(self: MemoryQueues, opening: Opening) -> OpenAnswer:
    return open_slot(self, Opening(opening.tenure))


def bring_without_a_record(self: MemoryQueues, want: Want, now: float, fetched: Fetched) -> None:
    already = len(fetched.deliveries)
    bring(self, want, now, fetched)
    slot = self.broker.slot(want.tenure.keyspace, want.tenure.slot)
    for delivery in fetched.deliveries[already:]:
        del slot.flight[delivery.tag]


def bring_due_to_the_front(self: MemoryQueues, want: Want, now: float, fetched: Fetched) -> None:
    slot = self.broker.slot(want.tenure.keyspace, want.tenure.slot)
    while slot.fence == want.tenure and slot.deferred and slot.deferred[0][0] <= now:
        message = slot.deferred.pop(0)[2]
        slot.lists[message.priority].appendleft(message)
    bring(self, want, now, fetched)


RULES = [
    rule("trust ends", SimulatedLease, "trusted", trust_without_end, breaks={Invariant.TWO_OWNERS}),
    rule(
        "a request counts from before it was sent",
        StoreRequests,
        "_ask",
        sent_when_answered,
        breaks={Invariant.TWO_OWNERS},
    ),
    rule(
        "a swap whose answer was lost may not have happened",
        StoreRequests,
        "ask",
        lost_is_done,
        breaks={Invariant.VERSION_GAP, Invariant.TWO_OWNERS},
    ),
    rule(
        "the application hears of a loss before the next owner starts",
        Holdings,
        "tell",
        lambda self, slots: frozenset(),
        breaks={Invariant.UNTOLD_LOSS},
    ),
    rule(
        "trust counts from before the beat was sent",
        Machine,
        "_on_beat",
        trust_from_the_answer,
        breaks={Invariant.TWO_OWNERS},
        first=162,
    ),
    rule(
        "eviction takes ttl and margin",
        Machine,
        "_eviction_timeout",
        property(lambda self: TTL / 2),
        breaks={Invariant.NEEDLESS_EVICTION, Invariant.TWO_OWNERS},
    ),
    rule(
        "the counter guards an eviction",
        Watches,
        "guard",
        lambda self, members: {},
        breaks={Invariant.NEEDLESS_EVICTION},
        deaf=True,
    ),
    rule("stopwatches restart after a gap", Machine, "_touch", touch, breaks={Invariant.NEEDLESS_EVICTION}, first=14),
    rule(
        "after an outage the silent have a moment to be heard",
        Watches,
        "spare",
        lambda self, since: None,
        breaks={Invariant.NEEDLESS_EVICTION},
        first=321704977,
    ),
    rule("gone is gone", Machine, "_on_beat", revived, breaks={Invariant.TWO_OWNERS}),
    rule(
        "a lost store is replaced after ttl and margin",
        Machine,
        "_on_store_lost",
        fresh_at_once,
        breaks={Invariant.TWO_OWNERS},
    ),
    rule(
        "an older or foreign document renews nothing",
        Machine,
        "_on_read",
        any_view,
        breaks={Invariant.VERSION_GAP},
        first=17,
    ),
    rule(
        "a fence is outbid",
        Holdings,
        "refused",
        lambda self, slot, fence: False,
        breaks={Invariant.NOT_OWNED},
        kinds=(Kind.WIPE, Kind.FAIL_OVER, Kind.CRASH),
        first=39,
    ),
    rule("released is only what is drained", Holdings, "given", given_at_once, breaks={Invariant.TWO_OWNERS}),
    rule("an epoch grows with its owner", changes, "_handed_over", same_epoch, breaks={Invariant.EPOCH_SHARED}),
    rule("the plan is balanced", changes, "plan", lopsided, breaks={Invariant.UNBALANCED_PLAN}),
    rule(
        "changes made in one swap are one version",
        machine,
        "_one_step",
        lambda old, new: new,
        breaks={Invariant.VERSION_GAP},
        first=107,
    ),
    rule("a swap compares", MemoryStore, "swap", unconditional, breaks={Invariant.VERSION_GAP}),
    rule(
        "a first document that comes too late is refused",
        MemoryStore,
        "swap",
        however_late,
        breaks={Invariant.TWO_OWNERS},
        first=8_027_043,
    ),
    rule(
        "an idle owner looks into its slots now and then",
        SlotLifecycle,
        "look_around",
        lambda self: None,
        breaks={Invariant.NOT_OWNED},
        first=1_452_382_499,
    ),
    rule("one task of a key at a time", Gate, "add", add_to_no_line, breaks={Invariant.OVERLAP_SAME_WORKER}),
    rule(
        "a key is free when the disposition is confirmed",
        Gate,
        "end",
        end_frees_the_key,
        Gate,
        "settled",
        settled_frees_nothing,
        breaks={Invariant.RUN_AFTER_LATER},
        first=12,
    ),
    rule(
        "a running key stays locked when its slot is lost",
        Gate,
        "lose",
        lose_frees_keys,
        Gate,
        "recall",
        recall_frees_keys,
        breaks={Invariant.OVERLAP_SAME_WORKER},
    ),
    rule(
        "a start that waits to be counted is not among the counted ones",
        Gate,
        "_make_ready",
        ready_among_the_counted,
        breaks={Invariant.NOT_DRAINED},
    ),
    rule("a start is a reservation", Gate, "start", start_whatever, breaks={Invariant.OVERLAP_TRUSTED}, first=840),
    rule(
        "what has not started is forgotten",
        Gate,
        "_forget_unstarted",
        forget_nothing,
        breaks={Invariant.RUN_AFTER_SETTLED},
    ),
    rule(
        "dispositions are confirmed before a release",
        Gate,
        "lose",
        lose_without_confirmation,
        breaks={Invariant.RERUN_WITHOUT_FAULT},
    ),
    rule(
        "a slot given away stays shut",
        SlotLifecycle,
        "_opened",
        opened_although_stopping,
        breaks={Invariant.NOT_SETTLED},
    ),
    rule(
        "acked is what has run",
        Courier,
        "start_entry",
        ack_at_start,
        breaks={Invariant.ACKED_NEVER_RUN},
        first=1,
    ),
    rule(
        "dispositions of a lost connection go again",
        Outbox,
        "back",
        lambda self, now: None,
        breaks={Invariant.NOT_DRAINED},
    ),
    rule(
        "deferred messages are looked for when due",
        Rounds,
        "note_due",
        lambda self, slot, due: None,
        Rounds,
        "note_deferred",
        lambda self, slot, due: None,
        SlotLifecycle,
        "look_around",
        lambda self: None,
        breaks={Invariant.NOT_DRAINED},
    ),
    rule(
        "slots that have received a message are fetched from",
        CourierFlow,
        "_after_idle",
        lambda self, woken: after_idle(self, ()),
        SlotLifecycle,
        "look_around",
        lambda self: None,
        breaks={Invariant.NOT_DRAINED},
    ),
    rule(
        "what rests has its turn again",
        Backoff,
        "_add",
        lambda self, entry, wait, now: wait,
        breaks={Invariant.NOT_DRAINED},
    ),
    rule(
        "a new connection opens every slot again",
        SlotLifecycle,
        "connected",
        lambda self: None,
        breaks={Invariant.RERUN_WITHOUT_FAULT, Invariant.NOT_DRAINED, Invariant.LOST},
    ),
    rule(
        "a slot that could not be opened is opened again",
        SlotLifecycle,
        "_postpone",
        lambda self, slot, tenure, until: self._no_longer_wanted(slot, tenure),
        breaks={Invariant.NOT_OWNED, Invariant.NOT_SETTLED},
        kinds=(Kind.BROKEN,),
    ),
    rule(
        "dispositions that the broker could not apply go again",
        Outbox,
        "postpone",
        lambda self, disposition, until: self.answered(disposition),
        breaks={Invariant.NOT_DRAINED, Invariant.NOT_LEFT},
        kinds=(Kind.BROKEN,),
    ),
    rule(
        "nothing starts without trust",
        Courier,
        "start_entry",
        start_entry,
        SimulatedRun,
        "trusted",
        property(lambda self: True),
        breaks={Invariant.OVERLAP_ZOMBIE},
    ),
    rule(
        "running tasks end with trust",
        Pool,
        "_watch",
        lambda self, run: None,
        Pool,
        "thaw",
        lambda self: None,
        Pool,
        "look_at_the_lease",
        lambda self: None,
        breaks={Invariant.OVERLAP_ZOMBIE},
    ),
    rule(
        "children die with their parent", Pool, "die_with_parent", lambda self: None, breaks={Invariant.OVERLAP_ORPHAN}
    ),
    rule(
        "an opening under a lower epoch is refused",
        queues,
        "_refuses",
        lambda fence, tenure: False,
        breaks={Invariant.FENCE_BACK},
    ),
    rule(
        "an opening under an equal epoch of another is refused",
        queues,
        "_refuses",
        refuses_no_equal_epoch,
        breaks={Invariant.FENCE_SHARED},
        kinds=(Kind.WIPE, Kind.FAIL_OVER, Kind.CRASH),
    ),
    rule(
        "a late opening is refused by its count",
        queues,
        "_refuses",
        refuses_no_old_count,
        breaks={Invariant.FENCE_BACK},
    ),
    rule(
        "an old disposition is refused", MemoryQueues, "_settle", settle_for_anybody, breaks={Invariant.FORMER_TENURE}
    ),
    rule("an old fetch is refused", MemoryQueues, "_bring", bring_to_anybody, breaks={Invariant.FORMER_TENURE}),
    rule(
        "in flight goes back to the front", MemoryQueues, "_open", open_to_the_back, breaks={Invariant.FIRST_RUN_ORDER}
    ),
    rule(
        "in flight goes back in its order", MemoryQueues, "_open", open_in_reverse, breaks={Invariant.FIRST_RUN_ORDER}
    ),
    rule(
        "what runs here stays in flight",
        MemoryQueues,
        "_open",
        open_keeping_nothing,
        breaks={Invariant.RERUN_WITHOUT_FAULT},
    ),
    rule(
        "a tag names one delivery, also to a broker that counts again",
        Tenure,
        "trip",
        lambda self, number: "",
        breaks={Invariant.SETTLED_ANOTHER},
        kinds=(Kind.BROKER_BACK,),
    ),
    rule(
        "what has ended here ends with its next delivery",
        DeliveryState,
        "_end_again",
        lambda self, entry, end, now: None,
        breaks={Invariant.RERUN_WITHOUT_FAULT},
        kinds=(Kind.BROKER_BACK,),
    ),
    rule("fetched is moved into flight", MemoryQueues, "_bring", bring_without_a_record, breaks={Invariant.LOST}),
    rule(
        "deferred takes its place when due",
        MemoryQueues,
        "_bring",
        bring_due_to_the_front,
        breaks={Invariant.FIRST_RUN_ORDER},
    ),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_without_the_rule_its_promise_is_broken(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_without(rule, monkeypatch, placed=False)
