"""What one member does: when it joins, trusts, evicts, opens, gives away and leaves. The clock is a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_sticky.ownership import changes
from celery_sticky.ownership.events import (
    BeatDone,
    BrokerDown,
    BrokerUp,
    CloseSlot,
    DrainAsked,
    Drained,
    Effect,
    Event,
    Evicted,
    HeartbeatHeard,
    HostDown,
    HostUp,
    LeaveAsked,
    LoopAnswers,
    LoopSilent,
    LoseSlots,
    Opened,
    OpenRefused,
    OpenSlot,
    Read,
    ReadDone,
    Refuse,
    SendBeat,
    StopJobs,
    StopSlot,
    StoreFailed,
    Swap,
    SwapDone,
    TasksDrained,
    Tick,
    ViewChanged,
    WasEvicted,
)
from celery_sticky.ownership.holdings import SlotState
from celery_sticky.ownership.machine import ANNOUNCED_MEMBERS, Machine, MemberConfig, Phase
from celery_sticky.ownership.needs import Need
from celery_sticky.ownership.view import STALLED, Member, MemberState, View

TTL, MARGIN, SETTLE, GRACE = 12.0, 2.0, 3.0, 30.0
TIMEOUT = TTL + MARGIN
SLOTS = 4
STORE = "run-1"
RTT = 0.01

E = TypeVar("E")


def config(name: str = "a", **others: Any) -> MemberConfig:
    given = {"origin": f"{name}0", "slots": SLOTS, "hash": "h", "ttl": TTL, "margin": MARGIN, "settle": SETTLE}
    return MemberConfig(name=name, broker_grace=GRACE, **{**given, **others})


def document(*names: str, slots: int = SLOTS, version: int = 1, generation: int = 3, epochs: int = 0) -> View:
    """A settled document with these members, whose incarnations are `<name>x`."""
    view = changes.fresh(slots=slots, hash="h", generation=generation, version=1, store_id=STORE, epochs=epochs)
    for name in names:
        view = changes.join(view, Member(name, f"{name}x"), settle=True)
    if names:
        view = changes.replan(view)
    return replace(view, version=version)


class Bench:
    """A machine, its clock, and a store that does as it is told."""

    def __init__(self, view: View | None = None, *, now: float = 100.0, **others: Any) -> None:
        self.now = now
        self.machine = Machine(config(**others), now)
        self.view = view
        self.store_id = STORE
        self.counters: dict[str, int] = {}
        if view is not None:
            self.counters = {m.incarnation: 1 for m in view.members.values()}
        self.said: list[Effect] = []
        """Every effect so far."""

    def step(self, event: Event) -> list[Effect]:
        effects = self.machine.step(event, self.now)
        asked = [e for e in effects if isinstance(e, Read | SendBeat | Swap)]
        assert len(asked) <= 1, "at most one store effect in a step"
        assert not asked or effects[-1] is asked[0], "and it is the last"
        self.said += effects
        return effects

    def answer(self, effect: Effect) -> Event | None:
        """What the store makes of an effect, at once."""
        sent, self.now = self.now, self.now + RTT
        match effect:
            case Read():
                return ReadDone(self.view, dict(self.counters), self.store_id, clock=5000.0)
            case SendBeat(incarnation, announce):
                alive = incarnation in self.counters
                if alive:
                    self.counters[incarnation] += 1
                version, generation = (self.view.version, self.view.generation) if self.view else (0, 0)
                told = {} if announce else dict(self.counters)
                return BeatDone(sent, alive, version, generation, self.store_id, told)
            case Swap(old, new, guard):
                current = self.view and (self.view.version, self.view.generation)
                done = current == (old and (old.version, old.generation)) and guard.items() <= self.counters.items()
                if done:
                    self.put(new)
                return SwapDone(sent, new, done)
        self.now = sent
        return None

    def put(self, view: View) -> None:
        """Have this document in the store, as if another member had written it."""
        self.view = view
        self.counters = {m.incarnation: self.counters.get(m.incarnation, 0) for m in view.members.values()}

    def give(self, event: Event) -> list[Effect]:
        """Take a step, and every one that follows from the answers of the store; return all effects."""
        every: list[Effect] = []
        following: Event | None = event
        while following is not None:
            event, following = following, None
            for effect in self.step(event):
                every.append(effect)
                following = self.answer(effect) or following
        return every

    def run(self, seconds: float) -> list[Effect]:
        """Let time pass; every tick comes when it was asked for."""
        until, every, stuck = self.now + seconds, list[Effect](), 0
        while (due := self.machine.wake_at(self.now)) <= until:
            assert due >= self.now
            stuck = stuck + 1 if due == self.now else 0
            assert stuck < 10, "it asks for ticks and does nothing with them"
            self.now = max(due, self.now)
            every += self.give(Tick())
        self.now = max(self.now, until)
        return every

    def heartbeats(self, seconds: float, *names: str, hear: bool = True) -> list[Effect]:
        """Let time pass while these members are alive."""
        every: list[Effect] = []
        for _ in range(round(seconds)):
            every += self.run(1.0)
            for name in names:
                self.heartbeat(name, hear=hear)
        return every

    def heartbeat(self, name: str, *, hear: bool = True) -> None:
        assert self.view is not None
        incarnation = self.view.members[name].incarnation
        self.counters[incarnation] += 1
        if hear:
            self.give(HeartbeatHeard(incarnation, self.counters[incarnation]))

    def join(self) -> Bench:
        self.give(Tick())
        assert self.phase is Phase.IN
        return self

    def open_all(self) -> Bench:
        for slot, state in sorted(self.machine.slots.items()):
            assert state is SlotState.OPENING
            self.give(Opened(slot, self.known.epoch[slot]))
        return self

    @property
    def known(self) -> View:
        assert self.machine.view is not None
        return self.machine.view

    @property
    def phase(self) -> Phase:
        return self.machine.phase

    @property
    def standing(self) -> MemberState:
        return self.known.members["a"].state

    def state(self, slot: int) -> SlotState:
        return self.machine.slots[slot]

    @property
    def trusts(self) -> bool:
        return self.machine.trusts(self.now)


def kinds(effects: Sequence[Effect], kind: type[E]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]


def one(effects: Sequence[Effect], kind: type[E]) -> E:
    (found,) = kinds(effects, kind)
    return found


def alone() -> Bench:
    """A member on its own, with every slot open."""
    bench = Bench(document()).join()
    bench.run(SETTLE + 1)
    return bench.open_all()


def with_peer(**others: Any) -> Bench:
    """A member that has opened its half of the slots; `b` has the others."""
    bench = Bench(document("b"), **others).join()
    assert bench.view is not None
    bench.put(changes.release(bench.view, "b", bench.view.giving("b")))
    bench.give(ViewChanged(bench.view.version))
    return bench.open_all()


def standing_of(bench: Bench) -> MemberState:
    """What `bench.standing` is now: mypy takes it for what it was at the last `assert`."""
    return bench.standing


# -- Joining -----------------------------------------------------------------------------------


def test_the_first_member_settles_before_it_plans() -> None:
    bench = Bench(document()).join()
    assert bench.known.unowned == frozenset(range(SLOTS))
    assert not kinds(bench.run(SETTLE - 0.5), OpenSlot)
    assert len(kinds(bench.run(1.0), OpenSlot)) == SLOTS
    assert bench.known.settled


def test_members_that_come_while_one_settles_share_at_the_first_plan() -> None:
    bench = Bench(document()).join()
    assert bench.view is not None
    bench.put(changes.join(bench.view, Member("b", "bx"), settle=True))
    bench.give(ViewChanged(bench.view.version))
    bench.run(SETTLE + 1)
    assert [len(bench.known.owned_by(name)) for name in "ab"] == [2, 2]


def test_where_slots_are_owned_a_member_joins_into_the_plan() -> None:
    bench = Bench(document("b")).join()
    assert bench.known.target.count("a") == SLOTS // 2
    assert bench.known.owned_by("a") == frozenset()
    assert not kinds(bench.said, OpenSlot)


def test_members_without_weight_leave_slots_alone() -> None:
    bench = Bench(document(), weight=0).join()
    assert not kinds(bench.run(10 * SETTLE), Swap)
    assert bench.known.unowned == frozenset(range(SLOTS))


@pytest.mark.parametrize("configured", [{"slots": 8}, {"hash": "other"}])
def test_a_member_with_other_slots_or_another_hash_is_refused_and_told_which_side_has_what(configured: Any) -> None:
    bench = Bench(document("b"), **configured)
    refused = one(bench.give(Tick()), Refuse)
    assert not refused.name_taken
    assert f"{SLOTS} slots and hash 'h'" in refused.reason
    assert str(next(iter(configured.values()))) in refused.reason
    assert bench.phase is Phase.REFUSED
    assert bench.give(Tick()) == []
    assert bench.machine.wake_at(bench.now) == float("inf")


def test_a_name_whose_counter_changes_three_times_is_taken() -> None:
    bench = Bench(document("a"))
    bench.give(Tick())
    for _ in range(2):
        bench.heartbeat("a")
        bench.run(2.0)
    assert not kinds(bench.said, Refuse), "two heartbeats may have been in flight when its process died"
    bench.heartbeat("a")
    assert one(bench.run(3.0), Refuse).name_taken
    assert bench.phase is Phase.REFUSED


def test_a_name_whose_counter_stands_still_is_taken_over_after_ttl_and_margin() -> None:
    bench = Bench(document("a"))
    assert not kinds(bench.run(TIMEOUT - 0.1), Swap)
    swap = one(bench.run(TTL / 6 + 0.2), Swap)
    assert swap.guard == {"ax": 1}
    assert swap.new.members["a"].incarnation == bench.machine.incarnation
    assert bench.phase is Phase.IN


def test_a_name_whose_incarnation_is_proven_dead_is_taken_over_at_once() -> None:
    bench = Bench(document("a", "b"), dead_incarnation="ax").join()
    swap = one(bench.said, Swap)
    assert swap.guard == {"ax": 1}
    assert set(swap.new.members) == {"a", "b"}
    assert swap.new.version == 2


# -- Trust -------------------------------------------------------------------------------------


def test_trust_is_counted_from_before_the_heartbeat_was_sent() -> None:
    """Guards: trust ends at the clock before the last successful beat, or joining swap, was sent, + ttl - margin."""
    bench = Bench(document("b"))
    joined = bench.now + RTT  # the read before it
    bench.join()
    assert bench.machine.trust_until == joined + TTL - MARGIN
    bench.now = joined + TTL / 3
    assert one(bench.step(Tick()), SendBeat).incarnation == bench.machine.incarnation
    sent, bench.now = bench.now, bench.now + 2.5
    bench.step(BeatDone(sent, True, bench.known.version, bench.known.generation, STORE))
    assert bench.machine.trust_until == sent + TTL - MARGIN


def test_trust_ends_when_no_heartbeat_is_answered_and_slots_stay_open_meanwhile() -> None:
    bench = alone()
    until = bench.machine.trust_until
    while bench.now < until + 5:
        bench.now = max(bench.machine.wake_at(bench.now), bench.now + RTT)
        if bench.step(Tick()):
            bench.step(StoreFailed(bench.now))
        assert bench.trusts == (bench.now < until)
    assert set(bench.machine.slots.values()) == {SlotState.OPEN}


def test_a_heartbeat_is_sent_three_times_in_a_lease() -> None:
    bench = alone()
    assert len(kinds(bench.run(4 * TTL), SendBeat)) in (11, 12)
    assert not kinds(bench.run(TTL), Read), "nothing has changed: nothing is read"


def test_up_to_64_members_announce_their_heartbeats_and_beyond_each_learns_all_with_its_own() -> None:
    few = Bench(document(*(f"n{n}" for n in range(ANNOUNCED_MEMBERS - 1)), slots=70), slots=70).join()
    heartbeat = few.run(TTL / 3 + 1)
    assert (one(heartbeat, SendBeat).announce, kinds(heartbeat, Read)) == (True, [])
    many = Bench(document(*(f"n{n}" for n in range(ANNOUNCED_MEMBERS)), slots=70), slots=70).join()
    heartbeat = many.run(TTL / 3 + 1)
    assert (one(heartbeat, SendBeat).announce, kinds(heartbeat, Read)) == (False, [])


def test_in_a_crowd_a_silent_member_is_evicted_all_the_same() -> None:
    """Guards: counters that come with one's own heartbeat count as looked at."""
    names = [f"n{n}" for n in range(ANNOUNCED_MEMBERS)]
    bench = Bench(document(*names, slots=70), slots=70).join()
    end = bench.now + 3 * (TTL + MARGIN)
    silent = f"{names[0]}x-0" if f"{names[0]}x-0" in bench.counters else f"{names[0]}x"
    while bench.now < end and names[0] in bench.known.members:
        for incarnation in bench.counters.keys() - {silent, bench.machine.incarnation}:
            bench.counters[incarnation] += 1
        bench.run(TTL / 6)
    assert names[0] not in bench.known.members
    assert set(names[1:]) <= bench.known.members.keys()


# -- Eviction ----------------------------------------------------------------------------------


def test_a_silent_member_is_evicted_after_ttl_and_margin_and_not_before() -> None:
    """Guards: an observer evicts only after it saw a counter unchanged for ttl + margin on its own clock."""
    bench = with_peer()
    bench.heartbeat("b")
    assert not kinds(bench.run(TIMEOUT - 0.1), Swap)
    theirs = bench.known.owned_by("b")
    effects = bench.run(0.2)
    swap = one(effects, Swap)
    assert set(swap.new.members) == {"a"}
    assert bench.known.owned_by("a") == frozenset(range(SLOTS))
    evicted = one(effects, Evicted)
    assert (evicted.name, evicted.slots) == ("b", len(theirs)) and evicted.silence >= TIMEOUT
    assert bench.machine.dead == {"b"}


def test_the_counter_that_stood_still_guards_the_eviction() -> None:
    """Guards: an eviction has the counter as its swap's guard."""
    bench = with_peer()
    bench.heartbeats(TIMEOUT - 2, "b")
    bench.heartbeats(4, "b", hear=False)  # from now on every signal is lost
    tried = bench.heartbeats(TIMEOUT, "b", hear=False)
    assert kinds(tried, Swap), "it must have tried, or this shows nothing"
    assert all(swap.guard for swap in kinds(tried, Swap))
    assert set(bench.known.members) == {"a", "b"}
    assert not kinds(bench.said, Evicted), "nobody was evicted"


def test_a_member_that_is_heard_is_not_evicted() -> None:
    bench = with_peer()
    assert not kinds(bench.heartbeats(5 * TIMEOUT, "b"), Swap)


def test_stopwatches_start_again_after_a_gap_in_ones_own_reads() -> None:
    """Guards: an observer restarts its stopwatches after a gap in its own reads."""
    bench = with_peer()
    bench.now += 10 * TTL  # suspended, or without a store
    back = bench.now
    bench.counters[bench.machine.incarnation] = 1  # nobody could evict us either
    assert not kinds(bench.run(TIMEOUT - 0.5), Swap)
    swap = one(bench.run(1.0), Swap)
    assert swap.guard == {"bx": 1}
    assert bench.now >= back + TIMEOUT


def test_after_an_outage_a_silent_member_has_a_moment_to_be_heard_once() -> None:
    """Guards: a member was evicted in the moment in which the store came back, before it could try again."""
    bench = with_peer()
    bench.heartbeat("b")
    bench.run(TIMEOUT - 0.2)
    outage = bench.now
    bench.step(StoreFailed(bench.now))
    bench.now += 2.0
    assert not kinds(bench.run(0.9), Swap), "only now the store answers again"
    bench.step(StoreFailed(bench.now))
    assert one(bench.run(0.6), Swap).guard, "the same silence is not shortened twice"
    assert bench.now < outage + 3.6


def test_without_trust_nobody_is_evicted() -> None:
    bench = with_peer()
    bench.machine.trust_until = bench.now
    for _ in range(60):
        bench.now += 1.0
        effects = bench.step(Tick())
        assert not kinds(effects, Swap)
        if effects:
            bench.step(StoreFailed(bench.now))
            bench.machine._touch(bench.now)  # its reads are answered


def test_what_is_heard_of_a_member_that_is_gone_is_of_no_consequence() -> None:
    bench = alone()
    bench.give(HeartbeatHeard("gone-1", 7))
    assert not kinds(bench.run(3 * TIMEOUT), Swap)


def test_a_member_without_a_counter_is_evicted_without_a_guard() -> None:
    """The swap's version is guard enough: counters are made by swaps alone."""
    bench = with_peer()
    del bench.counters["bx"]
    bench.give(ViewChanged(bench.known.version + 1))
    bench.run(TIMEOUT + 1)
    assert set(bench.known.members) == {"a"}


def test_several_silent_members_are_evicted_in_one_swap() -> None:
    bench = Bench(document("b", "c")).join()
    (swap,) = kinds(bench.run(TIMEOUT + 1), Swap)
    assert swap.guard == {"bx": 1, "cx": 1}
    assert swap.new.version == swap.old.version + 1 if swap.old else False
    assert set(bench.known.members) == {"a"}


def test_an_eviction_whose_answer_was_lost_is_reported_when_it_is_seen() -> None:
    bench = with_peer()
    bench.heartbeat("b")
    bench.run(TIMEOUT - 0.1)
    bench.now += 0.2
    swap = one(bench.step(Tick()), Swap)
    bench.put(swap.new)
    assert not kinds(bench.step(StoreFailed(bench.now)), Evicted)
    assert [evicted.name for evicted in kinds(bench.run(1), Evicted)] == ["b"]


def test_a_member_that_leaves_is_not_called_dead() -> None:
    bench = with_peer()
    bench.heartbeat("b")
    bench.put(changes.leave(bench.known, "b"))
    bench.run(TTL / 3)
    assert bench.view is not None
    bench.put(changes.release(bench.view, "b", sorted(bench.view.giving("b"))))
    bench.give(ViewChanged(bench.view.version))
    assert "b" not in bench.known.members and bench.machine.dead == frozenset()


# -- Gone --------------------------------------------------------------------------------------


def test_an_evicted_member_closes_everything_and_joins_again_as_another_incarnation() -> None:
    """Guards: an evicted incarnation's beat is answered gone and never revives it."""
    bench = with_peer()
    assert bench.view is not None
    old, mine = bench.machine.incarnation, sorted(bench.machine.slots)
    bench.put(changes.evict(bench.view, "a"))
    bench.now += TTL
    bench.step(Tick())
    effects = bench.step(BeatDone(bench.now, False, bench.view.version, bench.view.generation, STORE))
    assert bench.machine.trust_until == float("-inf")
    assert [e.slot for e in kinds(effects, CloseSlot)] == mine
    told = one(effects, WasEvicted)
    assert told.incarnation == old and told.silence > TTL and effects[0] is told, "before the slots are closed"
    assert bench.machine.slots == {}
    bench.give(ReadDone(bench.view, dict(bench.counters), STORE, 0))
    assert bench.phase is Phase.IN
    assert bench.machine.incarnation != old


def test_a_member_that_a_view_lacks_is_gone_too() -> None:
    bench = with_peer()
    assert bench.view is not None
    bench.put(changes.evict(bench.view, "a"))
    effects = bench.give(ViewChanged(bench.view.version))
    assert kinds(effects, CloseSlot)
    assert kinds(effects, WasEvicted)
    assert bench.machine.incarnation == "a0-1"


def test_who_left_and_finds_its_broker_again_at_that_moment_was_not_evicted() -> None:
    bench = with_peer()
    bench.give(BrokerDown())
    for stop in kinds(bench.heartbeats(GRACE + 2, "b"), StopSlot)[:-1]:
        bench.give(Drained(stop.slot))
    assert bench.standing is MemberState.LEAVING
    bench.give(BrokerUp())
    assert bench.view is not None
    bench.put(changes.release(bench.view, "a", sorted(bench.view.giving("a"))))  # its answer was lost
    bench.give(ViewChanged(bench.view.version))
    assert bench.machine.incarnation == "a0-1" and not kinds(bench.said, WasEvicted)


# -- A lost or rolled-back store ---------------------------------------------------------------


def lost(bench: Bench, how: str) -> None:
    assert bench.view is not None
    match how:
        case "missing":
            bench.view, bench.counters = None, {}
        case "restarted":
            bench.store_id = "run-2"
        case "rolled back":
            bench.view = replace(bench.view, version=bench.view.version - 1)


LOST = ("missing", "restarted", "rolled back")


@pytest.mark.parametrize("how", LOST)
def test_a_lost_store_renews_nothing_and_a_fresh_document_comes_after_ttl_and_margin(how: str) -> None:
    """Guards: lost or rolled-back store: nobody joins, evicts or renews; after ttl + margin a fresh document."""
    bench = with_peer()
    until, before = bench.machine.trust_until, bench.known
    lost(bench, how)
    effects = bench.run(TIMEOUT)
    assert bench.machine.trust_until == until
    assert not kinds(effects, Swap)
    assert len(kinds(effects, SendBeat)) == 1
    assert set(bench.machine.slots.values()) == {SlotState.OPEN}
    assert not bench.trusts
    fresh = kinds(bench.run(TTL), Swap)[0].new
    assert (fresh.members, fresh.store_id) == ({}, bench.store_id)
    assert fresh.generation > before.generation
    assert min(fresh.epoch) > before.max_epoch
    assert bench.phase is Phase.IN
    assert bench.machine.incarnation == "a0-1"
    assert kinds(bench.said, CloseSlot)


def test_where_no_broker_knows_epochs_a_fresh_document_begins_above_the_clock_of_the_store() -> None:
    """Guards: a store that lost its data does not count epochs from the start again."""
    bench = Bench(None, epochs_outlive_store=False)
    fresh = kinds(bench.run(TIMEOUT + TTL), Swap)[0].new
    assert set(fresh.epoch) == {5001}


@pytest.mark.parametrize("how", ["missing", "restarted"])
def test_nobody_joins_a_lost_store(how: str) -> None:
    bench = Bench(document("b"))
    lost(bench, how)
    assert not kinds(bench.run(TIMEOUT - 0.1), Swap)
    fresh, join = kinds(bench.run(TTL / 6 + 1), Swap)
    assert (fresh.new.members, list(join.new.members)) == ({}, ["a"])


@pytest.mark.parametrize("change", [{"store_id": "run-2"}, {"generation": 9}, {"version": 0}])
def test_a_heartbeat_that_another_document_answers_renews_nothing(change: Any) -> None:
    bench = with_peer()
    until = bench.machine.trust_until
    bench.now += TTL / 3
    bench.step(Tick())
    known = bench.known
    answer = BeatDone(bench.now, True, known.version, known.generation, STORE)
    assert kinds(bench.step(replace(answer, **change)), Read)
    assert bench.machine.trust_until == until


def test_a_store_that_comes_back_as_it_was_is_used_on() -> None:
    bench = with_peer()
    lost(bench, "restarted")
    bench.run(TTL / 2)
    bench.store_id = STORE
    bench.heartbeats(TIMEOUT, "b")
    assert bench.trusts
    assert bench.machine.incarnation == "a0-0"


def test_after_a_gap_the_wait_for_a_fresh_document_begins_again() -> None:
    """Another may have written one meanwhile, which was lost too."""
    bench = with_peer()
    lost(bench, "missing")
    bench.run(TTL)
    bench.now += 10 * TTL
    assert not kinds(bench.run(TIMEOUT - 0.1), Swap)


def test_a_store_that_is_lost_once_more_is_waited_for_once_more() -> None:
    """A member that joined the document that came between the two losses may trust its lease still."""
    bench = Bench(None)
    swaps: list[Swap] = []
    while not swaps:
        bench.now = bench.machine.wake_at(bench.now)
        bench.step(Tick())
        swaps = kinds(bench.step(ReadDone(None, {}, STORE, 5000.0)), Swap)
    bench.give(SwapDone(bench.now, swaps[0].new, False))
    assert not kinds(bench.run(TIMEOUT - 0.1), Swap)
    assert kinds(bench.run(TTL / 6 + 0.2), Swap)


def test_a_document_that_came_between_two_losses_restarts_the_wait() -> None:
    """Who joined it may trust its lease still, though we have never seen it as this store's."""
    bench = Bench(None)
    bench.run(TIMEOUT - 0.5)
    bench.view = replace(document("b", generation=7), store_id="another run's")
    assert not kinds(bench.run(TIMEOUT - 1), Swap)
    assert kinds(bench.run(TTL / 6 + 2), Swap)


def test_looks_at_a_lost_store_that_are_too_far_apart_restart_the_wait() -> None:
    """A document may have come, settled, and gone between them."""
    bench = Bench(None)
    bench.run(TIMEOUT - 0.5)
    bench.now += max(SETTLE, TTL / 6) + 0.1
    assert not kinds(bench.run(TIMEOUT - 1), Swap)
    assert kinds(bench.run(TTL / 6 + 2), Swap)


def test_a_fresh_document_settles_again_however_long_the_one_before_had_no_owners() -> None:
    bench = Bench(document()).join()
    bench.run(SETTLE - 0.5)
    assert bench.view is not None
    fresh = changes.fresh(slots=SLOTS, hash="h", generation=9, version=bench.view.version + 1, store_id=STORE)
    bench.put(changes.join(fresh, Member("b", "bx"), settle=True))
    bench.give(ViewChanged(fresh.version + 1))
    assert not kinds(bench.run(SETTLE - 0.5), OpenSlot)
    assert kinds(bench.run(1.5), OpenSlot)


def test_a_generation_grows_with_the_stores_own_clock() -> None:
    bench = Bench(None)
    bench.run(TIMEOUT + TTL)
    assert bench.known.generation == 5000 * 1_000_000


def test_documents_written_within_one_second_differ_in_their_generation() -> None:
    """A store that lost everything is at the same version soon; a swap of the first document must not meet the second.

    Nor may an older generation come from a clock that went back.
    """
    first, second = changes.generation_after(0, 5000.000_001), changes.generation_after(0, 5000.000_003)
    assert first < second == changes.generation_after(first, 5000.000_003)
    assert changes.generation_after(second, 4000.0) == second + 1


# -- Swaps -------------------------------------------------------------------------------------


def test_who_loses_a_race_reads_again_at_once_and_swaps_a_moment_later() -> None:
    bench = Bench(document("b"))
    bench.step(Tick())
    swap = one(bench.step(ReadDone(bench.view, bench.counters, STORE, 0)), Swap)
    assert bench.view is not None
    bench.put(changes.join(bench.view, Member("c", "cx")))
    assert one(bench.step(SwapDone(bench.now, swap.new, False)), Read)
    assert bench.step(ReadDone(bench.view, bench.counters, STORE, 0)) == []
    due = bench.machine.wake_at(bench.now)
    assert 0 < due - bench.now < 0.1
    bench.now = due
    again = one(bench.step(Tick()), Swap)
    assert set(again.new.members) == {"a", "b", "c"}


def test_members_differ_in_when_they_try_again() -> None:
    dues = set()
    for jitter in (0.0, 0.3, 0.6):
        bench = with_peer()
        bench.machine.config = config(jitter=jitter)
        bench.step(StoreFailed(bench.now))
        dues.add(bench.machine.wake_at(bench.now) - bench.now)
    assert len(dues) == 3


def test_a_joining_swap_without_an_answer_is_tried_again_as_another_incarnation() -> None:
    bench = Bench(document("b"))
    bench.step(Tick())
    first = one(bench.step(ReadDone(bench.view, bench.counters, STORE, 0)), Swap)
    bench.put(first.new)  # it arrived
    bench.step(StoreFailed(bench.now))
    assert bench.machine.incarnation == "a0-1"
    assert not bench.trusts
    bench.run(1.0)
    assert bench.phase is Phase.IN
    assert bench.known.members["a"].incarnation == "a0-1"


def given_away() -> tuple[Bench, Swap]:
    """A member that has to give its slots to `b`, drained, with its swap sent."""
    bench = with_peer()
    assert bench.view is not None
    bench.put(changes.leave(bench.view, "a"))
    stopped = kinds(bench.give(ViewChanged(bench.view.version)), StopSlot)
    assert bench.machine.slots == {s.slot: SlotState.STOPPING for s in stopped}
    first, *rest = stopped
    for stop in rest:
        bench.machine.step(Drained(stop.slot), bench.now, more=True)  # together with the first, in one swap
    return bench, one(bench.step(Drained(first.slot)), Swap)


def test_a_release_that_took_place_without_an_answer_is_found_by_reading() -> None:
    bench, swap = given_away()
    bench.put(swap.new)
    bench.give(StoreFailed(bench.now))
    bench.run(1.0)
    assert bench.machine.incarnation == "a0-1", "it left, and has joined again"
    assert not set(bench.machine.slots.values()) & {SlotState.OPEN, SlotState.STOPPING}


def test_a_release_that_did_not_take_place_is_sent_again_and_announced_once() -> None:
    bench, swap = given_away()
    bench.give(StoreFailed(bench.now))
    again = kinds(bench.run(1.0), Swap)[0]
    assert again.new.owner == swap.new.owner
    assert len(kinds(bench.said, LoseSlots)) == 1


def test_without_an_answer_nothing_is_assumed_open_again() -> None:
    """A swap whose answer was lost is never assumed either way: what it would have given away stays closed."""
    bench, _ = given_away()
    bench.give(StoreFailed(bench.now))
    assert set(bench.machine.slots.values()) == {SlotState.DRAINED}


# -- Slots -------------------------------------------------------------------------------------


def test_a_slot_is_stopped_drained_told_of_and_released_in_that_order() -> None:
    """Guards: stop, let running tasks end and have their dispositions confirmed, then swap(release)."""
    bench = alone()
    bench.put(changes.join(bench.known, Member("b", "bx")))
    effects = bench.give(ViewChanged(bench.known.version + 1))
    stopped = {effect.slot for effect in kinds(effects, StopSlot)}
    assert len(stopped) == SLOTS // 2
    assert not kinds(bench.run(2.0), Swap), "nothing is given away while its tasks run"
    slot = min(stopped)
    effects = bench.give(Drained(slot))
    assert [type(e) for e in effects] == [LoseSlots, Swap]
    assert one(effects, LoseSlots).slots == {slot}
    assert bench.known.owned_by("b") == {slot}, "a slot with a long task waits alone"
    assert {s for s, state in bench.machine.slots.items() if state is SlotState.OPEN} == set(range(SLOTS)) - stopped


def test_all_drained_slots_go_in_one_swap() -> None:
    _, swap = given_away()
    assert swap.old is not None
    assert sum(a != b for a, b in zip(swap.old.owner, swap.new.owner, strict=True)) == 2


def test_a_slot_that_comes_back_while_it_stops_is_opened_again_when_it_has_drained() -> None:
    bench = alone()
    bench.put(changes.join(bench.known, Member("b", "bx")))
    stopped = [e.slot for e in kinds(bench.give(ViewChanged(bench.known.version + 1)), StopSlot)]
    bench.put(changes.evict(bench.known, "b"))
    assert not kinds(bench.give(ViewChanged(bench.known.version + 1)), OpenSlot)
    effects = bench.give(Drained(stopped[0]))
    assert one(effects, OpenSlot).slot == stopped[0]
    assert not kinds(effects, Swap)


def stopping() -> tuple[Bench, int]:
    """A member that has to give slots to `b`, and one of them."""
    bench = alone()
    bench.put(changes.join(bench.known, Member("b", "bx")))
    stopped = [e.slot for e in kinds(bench.give(ViewChanged(bench.known.version + 1)), StopSlot)]
    return bench, stopped[0]


def test_the_jobs_of_a_slot_stop_when_its_tasks_have_drained_and_it_is_released_after_them() -> None:
    bench, slot = stopping()
    assert not kinds(bench.said, StopJobs)
    effects = bench.give(TasksDrained(slot))
    assert effects == [StopJobs(slot)], "nothing is given away while its jobs run"
    assert not kinds(bench.run(2.0), Swap)
    effects = bench.give(Drained(slot))
    assert [type(e) for e in effects] == [LoseSlots, Swap]
    assert bench.known.owned_by("b") == {slot}


def test_a_slot_that_comes_back_before_its_jobs_stop_is_opened_again_and_its_jobs_run_on() -> None:
    bench, slot = stopping()
    epoch = bench.known.epoch[slot]
    bench.put(changes.evict(bench.known, "b"))
    bench.give(ViewChanged(bench.known.version + 1))
    effects = bench.give(TasksDrained(slot))
    assert not kinds(effects, StopJobs)
    assert one(effects, OpenSlot).epoch == epoch
    assert bench.state(slot) is SlotState.OPENING


def test_a_slot_that_comes_back_while_its_jobs_stop_is_opened_again_after_them() -> None:
    bench, slot = stopping()
    bench.give(TasksDrained(slot))
    bench.put(changes.evict(bench.known, "b"))
    assert not kinds(bench.give(ViewChanged(bench.known.version + 1)), OpenSlot)
    assert one(bench.give(Drained(slot)), OpenSlot).slot == slot


def test_a_slot_that_another_member_has_is_closed_whatever_is_left_of_it() -> None:
    bench, slot = stopping()
    bench.give(TasksDrained(slot))
    bench.put(changes.evict(bench.known, "a"))
    assert CloseSlot(slot) in bench.give(ViewChanged(bench.known.version + 1))
    assert not kinds(bench.give(TasksDrained(slot)), StopJobs), "what is reported too late changes nothing"


def test_a_slot_that_went_and_came_back_unseen_is_opened_under_its_new_epoch() -> None:
    bench = alone()
    epoch = bench.known.epoch
    bench.put(replace(bench.known, version=bench.known.version + 2, epoch=tuple(e + 2 for e in epoch)))
    opened = kinds(bench.give(ViewChanged(bench.known.version + 2)), OpenSlot)
    assert [effect.epoch for effect in opened] == [e + 2 for e in epoch]
    assert set(bench.machine.slots.values()) == {SlotState.OPENING}


def test_a_slot_that_went_and_came_back_unseen_while_it_stopped_is_opened_after_it_has_drained() -> None:
    bench = alone()
    bench.put(changes.join(bench.known, Member("b", "bx")))
    slot = kinds(bench.give(ViewChanged(bench.known.version + 1)), StopSlot)[0].slot
    gone = changes.evict(bench.known, "b")
    bench.put(replace(gone, version=gone.version + 2, epoch=tuple(e + 2 for e in gone.epoch)))
    bench.give(ViewChanged(gone.version + 2))
    assert bench.state(slot) is SlotState.STOPPING
    assert one(bench.give(Drained(slot)), OpenSlot).epoch == bench.known.epoch[slot]


def test_a_slot_not_yet_opened_goes_on_without_being_opened() -> None:
    bench = Bench(document("b"), dead_incarnation="ax").join()
    assert bench.view is not None
    bench.put(changes.evict(bench.view, "b"))
    bench.put(changes.join(bench.view, Member("c", "cx")))
    effects = bench.give(ViewChanged(bench.view.version))
    assert len(kinds(effects, OpenSlot)) == SLOTS // 2
    released = kinds(effects, Swap)[0].new
    assert len(released.owned_by("c")) == SLOTS // 2


def test_an_answer_to_an_opening_under_another_epoch_is_not_taken_for_this_one() -> None:
    bench = alone()
    bench.put(changes.raise_epoch(bench.known, 0, 50))
    bench.give(ViewChanged(bench.known.version + 1))
    bench.give(Opened(0, 50))
    assert bench.state(0) is SlotState.OPENING
    bench.give(Opened(0, 51))
    assert bench.state(0) is SlotState.OPEN


def test_what_the_courier_says_of_a_slot_that_is_closed_is_ignored() -> None:
    bench = with_peer()
    other = min(bench.known.owned_by("b"))
    for event in (Opened(other, 1), OpenRefused(other, 9), Drained(other)):
        assert not kinds(bench.give(event), Swap)
    assert other not in bench.machine.slots


# -- Fences ------------------------------------------------------------------------------------


def test_a_refused_opening_is_read_about_first_and_then_outbid() -> None:
    """Guards: the refusal tells the fence, and the owner then swaps its epoch above it and opens again."""
    bench = with_peer()
    slot = min(bench.machine.slots)
    assert isinstance(bench.step(OpenRefused(slot, 40))[-1], Read)
    effects = bench.give(ReadDone(bench.view, dict(bench.counters), STORE, 0))
    assert one(effects, Swap).new.epoch[slot] == 41
    opened = one(effects, OpenSlot)
    assert (opened.slot, opened.epoch) == (slot, 41)


def test_a_fence_of_a_later_owner_is_not_outbid() -> None:
    bench = with_peer()
    assert bench.view is not None
    slot = min(bench.machine.slots)
    bench.put(changes.evict(bench.view, "a"))
    effects = bench.give(OpenRefused(slot, bench.known.epoch[slot] + 1))
    assert all(swap.new.members["a"].incarnation == "a0-1" for swap in kinds(effects, Swap))
    assert bench.known.epoch[slot] <= bench.view.epoch[slot]


@pytest.mark.parametrize("arrives", ["lost the race", "no answer"])
def test_a_fence_is_outbid_even_if_the_first_swap_fails(arrives: str) -> None:
    bench = with_peer()
    slot = min(bench.machine.slots)
    bench.step(OpenRefused(slot, 40))
    swap = one(bench.step(ReadDone(bench.view, dict(bench.counters), STORE, 0)), Swap)
    bench.give(StoreFailed(bench.now) if arrives == "no answer" else SwapDone(bench.now, swap.new, False))
    bench.run(1.0)
    assert kinds(bench.said, OpenSlot)[-1].epoch == 41
    assert len(kinds(bench.said, Swap)) == 3, "one to join, one that failed, one that did it"


# -- Leaving -----------------------------------------------------------------------------------


def test_a_member_with_nothing_leaves_at_once() -> None:
    bench = Bench(document("b")).join()
    bench.give(LeaveAsked())
    assert bench.phase is Phase.LEFT
    assert bench.view is not None and set(bench.view.members) == {"b"}


def test_a_member_that_never_joined_leaves_at_once() -> None:
    bench = Bench(document("a"))
    bench.give(Tick())
    assert bench.give(LeaveAsked()) == []
    assert bench.phase is Phase.LEFT


def test_a_leaving_member_waits_for_its_tasks_and_heartbeats_meanwhile() -> None:
    bench = with_peer()
    stopped = sorted(e.slot for e in kinds(bench.give(LeaveAsked()), StopSlot))
    assert bench.standing is MemberState.LEAVING
    assert len(kinds(bench.heartbeats(2 * TTL, "b"), SendBeat)) >= 5
    assert bench.trusts
    for slot in stopped:
        assert bench.phase is Phase.IN
        bench.give(Drained(slot))
    assert bench.phase is Phase.LEFT
    assert bench.view is not None and bench.view.owned_by("b") == frozenset(range(SLOTS))
    assert not bench.trusts
    assert bench.machine.slots == {}


def test_the_last_member_leaves_its_slots_without_an_owner() -> None:
    bench = alone()
    bench.give(LeaveAsked())
    for slot in range(SLOTS):
        bench.give(Drained(slot))
    assert bench.phase is Phase.LEFT
    assert bench.view is not None and bench.view.unowned == frozenset(range(SLOTS))


def test_a_leaving_member_that_is_evicted_has_left() -> None:
    bench = with_peer()
    bench.give(LeaveAsked())
    bench.put(changes.evict(bench.known, "a"))
    effects = bench.give(ViewChanged(bench.known.version + 1))
    assert len(kinds(effects, CloseSlot)) == SLOTS // 2
    assert bench.phase is Phase.LEFT


# -- A broker that is cut off ------------------------------------------------------------------


def test_without_its_broker_a_member_with_peers_gives_its_slots_away_after_a_grace() -> None:
    bench = with_peer()
    bench.give(BrokerDown())
    assert not kinds(bench.heartbeats(GRACE - 2, "b"), Swap)
    stopped = kinds(bench.heartbeats(4, "b"), StopSlot)
    assert bench.standing is MemberState.LEAVING
    for stop in stopped:
        bench.give(Drained(stop.slot))
    assert "a" not in bench.known.members and not kinds(bench.said, WasEvicted)
    assert not kinds(bench.heartbeats(2 * GRACE, "b"), Swap), "it stays away as long as it can do nothing"
    bench.give(BrokerUp())
    bench.heartbeats(TTL / 3 + 1, "b")
    assert bench.phase is Phase.IN


def test_a_member_that_was_evicted_while_its_broker_is_away_joins_when_it_is_back() -> None:
    bench = with_peer()
    bench.give(BrokerDown())
    bench.now += GRACE + 1  # cut off from the store too
    bench.put(changes.evict(bench.known, "a"))
    assert not kinds(bench.heartbeats(2 * GRACE, "b"), Swap), "it would join, be given slots, and leave at once"
    bench.give(BrokerUp())
    bench.heartbeats(TTL / 3 + 1, "b")
    assert bench.phase is Phase.IN


def test_without_its_broker_a_member_without_peers_keeps_its_slots() -> None:
    bench = alone()
    bench.give(BrokerDown())
    assert not kinds(bench.run(5 * GRACE), Swap)
    assert bench.trusts


def test_a_broker_that_is_back_within_the_grace_changes_nothing() -> None:
    bench = with_peer()
    bench.give(BrokerDown())
    bench.heartbeats(GRACE - 2, "b")
    bench.give(BrokerUp())
    bench.give(BrokerDown())
    assert not kinds(bench.heartbeats(GRACE - 2, "b"), Swap)


def test_the_grace_is_counted_from_the_first_word_of_the_broker() -> None:
    bench = with_peer()
    for _ in range(3):
        bench.give(BrokerDown())
        bench.heartbeats(GRACE / 3 + 1, "b")
    assert bench.standing is MemberState.LEAVING


def test_a_member_that_loses_the_race_to_leave_its_broker_tries_again() -> None:
    bench = with_peer()
    bench.give(BrokerDown())
    bench.heartbeats(GRACE - 2, "b")
    assert bench.view is not None
    bench.put(replace(bench.view, version=bench.view.version + 1))  # no signal comes of this change
    bench.heartbeats(4, "b")
    assert bench.standing is MemberState.LEAVING


def test_a_broker_that_goes_again_while_the_member_leaves_is_no_reason_for_haste() -> None:
    bench = with_peer()
    bench.give(BrokerDown())
    bench.heartbeats(GRACE + 2, "b")
    bench.give(BrokerUp())
    bench.give(BrokerDown())
    bench.heartbeats(2 * GRACE, "b")  # `run` sees to it that ticks are not asked for without need
    assert bench.standing is MemberState.LEAVING


# -- A loop that runs nothing -------------------------------------------------------------------


def test_a_member_whose_loop_is_silent_says_so_and_gives_its_slots_to_its_peers() -> None:
    bench = with_peer()
    stopped = kinds(bench.give(LoopSilent("90.0 hangs")), StopSlot)
    assert standing_of(bench) is MemberState.LEAVING, "the member that reports it has waited already"
    assert bench.known.members["a"].attributes[STALLED] == "90.0 hangs"
    for stop in stopped:
        bench.give(Drained(stop.slot))
    assert "a" not in bench.known.members
    assert not kinds(bench.heartbeats(2 * GRACE, "b"), Swap), "it would be given slots again"
    bench.give(LoopAnswers())
    bench.heartbeats(TTL / 3 + 1, "b")
    assert bench.phase is Phase.IN
    assert STALLED not in bench.known.members["a"].attributes


def test_without_peers_a_member_whose_loop_is_silent_keeps_its_slots_and_says_so() -> None:
    bench = alone()
    bench.give(LoopSilent("90.0 hangs"))
    bench.run(GRACE)
    assert standing_of(bench) is MemberState.ACTIVE
    assert bench.known.members["a"].attributes[STALLED] == "90.0 hangs"
    bench.give(LoopAnswers())
    bench.run(1)
    assert STALLED not in bench.known.members["a"].attributes
    assert all(state is SlotState.OPEN for state in bench.machine.slots.values())


def test_peers_that_run_nothing_either_are_none() -> None:
    bench = with_peer()
    bench.put(changes.stall(bench.known, "b", "90.0 hangs"))
    bench.heartbeats(TTL, "b")
    bench.give(LoopSilent("91.0 hangs"))
    bench.heartbeats(GRACE, "b")
    assert standing_of(bench) is MemberState.ACTIVE
    bench.put(changes.stall(bench.known, "b", ""))
    bench.heartbeats(TTL, "b")
    assert standing_of(bench) is MemberState.LEAVING


def test_a_loop_that_answers_while_its_slots_drain_comes_back_when_they_have() -> None:
    bench = with_peer()
    stopped = kinds(bench.give(LoopSilent("90.0 hangs")), StopSlot)
    bench.give(LoopAnswers())
    assert standing_of(bench) is MemberState.LEAVING
    for stop in stopped:
        bench.give(Drained(stop.slot))
    bench.heartbeats(TTL, "b")
    assert standing_of(bench) is MemberState.ACTIVE


def test_a_broker_that_is_away_for_the_courier_too_explains_the_silence() -> None:
    bench = with_peer(loop_timeout=20.0)
    bench.give(BrokerDown())
    bench.give(LoopSilent("90.0 hangs"))
    bench.heartbeats(GRACE - 2, "b")
    assert standing_of(bench) is MemberState.ACTIVE
    bench.give(BrokerUp())
    bench.heartbeats(18, "b")
    assert standing_of(bench) is MemberState.ACTIVE, "Celery reconnects at its own pace"
    bench.heartbeats(4, "b")
    assert standing_of(bench) is MemberState.LEAVING


# -- Drained by an operator --------------------------------------------------------------------


def test_a_member_that_is_drained_gives_everything_away_and_joins_again_when_that_is_undone() -> None:
    bench = with_peer()
    bench.give(DrainAsked())
    assert standing_of(bench) is MemberState.LEAVING and not bench.machine.drained, "its tasks still run"
    bench.heartbeats(2.0, "b")
    for slot in sorted(bench.known.owned_by("a")):
        bench.give(Drained(slot))
    bench.heartbeats(1.0, "b")
    assert "a" not in bench.known.members and bench.machine.drained and not bench.trusts
    assert not kinds(bench.heartbeats(3 * GRACE, "b"), Swap), "it takes nothing"
    bench.give(DrainAsked(undo=True))
    bench.heartbeats(1.0, "b")
    assert bench.phase is Phase.IN and not bench.machine.drained


def test_a_member_without_peers_can_be_drained_too() -> None:
    bench = alone()
    bench.give(DrainAsked())
    for slot in sorted(bench.known.owned_by("a")):
        bench.give(Drained(slot))
    bench.run(1.0)
    assert bench.machine.drained and bench.known.unowned == frozenset(range(SLOTS))


def test_a_drain_that_is_undone_before_its_end_ends_in_a_member() -> None:
    bench = with_peer()
    bench.give(DrainAsked())
    bench.heartbeats(2.0, "b")
    bench.give(DrainAsked(undo=True))
    for slot in sorted(bench.known.owned_by("a")):
        bench.give(Drained(slot))
    bench.heartbeats(TTL, "b")
    assert standing_of(bench) is MemberState.ACTIVE


def test_a_member_that_was_told_to_drain_before_it_has_joined_does_not_join() -> None:
    bench = Bench()
    bench.give(DrainAsked())
    bench.run(5 * GRACE)
    assert bench.machine.drained
    bench.give(LeaveAsked())
    bench.run(1.0)
    assert bench.phase is Phase.LEFT, "and it can shut down"


# -- A job host that does not come up ----------------------------------------------------------


def test_a_member_does_not_join_before_it_has_a_job_host() -> None:
    bench = Bench()
    bench.give(HostDown())
    bench.run(5 * GRACE)
    assert not bench.trusts
    bench.give(HostUp())
    bench.run(TTL / 3 + 1)
    assert bench.phase is Phase.IN


def test_without_its_job_host_a_member_with_peers_gives_its_slots_away_after_a_grace() -> None:
    bench = with_peer()
    bench.give(HostDown())
    assert not kinds(bench.heartbeats(GRACE - 2, "b"), Swap)
    for stop in kinds(bench.heartbeats(4, "b"), StopSlot):
        bench.give(Drained(stop.slot))
    assert "a" not in bench.known.members
    bench.give(BrokerUp())
    assert not kinds(bench.heartbeats(2 * GRACE, "b"), Swap), "the broker was not what it wants"
    bench.give(HostUp())
    bench.heartbeats(TTL / 3 + 1, "b")
    assert bench.phase is Phase.IN


def test_without_its_job_host_a_member_without_peers_keeps_its_slots() -> None:
    bench = alone()
    bench.give(HostDown())
    assert not kinds(bench.run(5 * GRACE), Swap)
    assert bench.trusts


def test_hosts_that_die_and_are_replaced_do_not_use_up_the_grace() -> None:
    bench = with_peer()
    for _ in range(5):
        bench.give(HostDown())
        bench.heartbeats(GRACE / 2, "b")
        bench.give(HostUp())
    assert bench.standing is MemberState.ACTIVE


def test_a_member_without_broker_and_host_joins_when_it_has_both() -> None:
    bench = with_peer()
    bench.give(BrokerDown())
    bench.give(HostDown())
    for stop in kinds(bench.heartbeats(GRACE + 4, "b"), StopSlot):
        bench.give(Drained(stop.slot))
    bench.give(HostUp())
    assert not kinds(bench.heartbeats(2 * GRACE, "b"), Swap)
    bench.give(BrokerUp())
    bench.heartbeats(TTL / 3 + 1, "b")
    assert bench.phase is Phase.IN


# -- Time --------------------------------------------------------------------------------------


def test_failures_in_a_row_do_not_postpone_the_heartbeat() -> None:
    """A subscription that breaks again and again must not keep a member from a store that answers."""
    bench = alone()
    for _ in range(200):
        bench.now += 0.1
        due = bench.machine.wake_at(bench.now) <= bench.now
        bench.give(Tick() if due else StoreFailed(bench.now))
    assert bench.trusts


def test_after_a_failure_an_overdue_heartbeat_goes_first_whatever_is_heard() -> None:
    bench = with_peer()
    bench.now += TTL / 3
    assert one(bench.step(Tick()), SendBeat)
    assert bench.step(StoreFailed(bench.now)) == []
    assert bench.step(ViewChanged(bench.known.version + 1)) == []
    bench.now = bench.machine.wake_at(bench.now)
    assert one(bench.step(Tick()), SendBeat)


def test_a_signal_costs_a_read_only_if_it_is_news() -> None:
    bench = with_peer()
    assert bench.give(ViewChanged(bench.known.version)) == []
    assert len(kinds(bench.give(ViewChanged(bench.known.version + 1)), Read)) == 1


EVENTS = st.one_of(
    st.just("ok"),
    st.sampled_from(
        ["fail", "fail done", "join", "leave b", "evict a", "evict b", "beat b", "wipe", "restart", "raise"]
    ),
    st.tuples(st.sampled_from(["opened", "refused", "drained"]), st.integers(0, SLOTS - 1)),
    st.sampled_from(
        [
            *(BrokerDown(), BrokerUp(), HostDown(), HostUp(), LoopSilent("90.0 hangs"), LoopAnswers()),
            *(DrainAsked(), DrainAsked(undo=True)),
            *(LeaveAsked(), HeartbeatHeard("stranger", 3), StoreFailed(0.0)),
        ]
    ),
    st.floats(0.01, 40.0),
)


class Chaos(Bench):
    """A store that fails when it is told to."""

    failing: str = "ok"

    def answer(self, effect: Effect) -> Event | None:
        outcome, sent = "ok", self.now
        if isinstance(effect, Read | SendBeat | Swap):
            outcome, self.failing = self.failing, "ok"
        if outcome == "fail":
            return StoreFailed(sent)
        event = super().answer(effect)
        return StoreFailed(sent) if outcome == "fail done" else event

    def happen(self, what: Any) -> None:
        match what:
            case float():
                self.run(what)
            case ("opened", slot):
                self.give(Opened(slot, self.machine._holdings._epochs.get(slot, 0)))
            case ("refused", slot):
                self.give(OpenRefused(slot, 1 + (self.view.max_epoch if self.view else 0)))
            case ("drained", slot):
                self.give(Drained(slot))
            case str():
                self.befall(what)
            case _:
                self.give(what)

    def befall(self, what: str) -> None:
        view = self.view
        if what in ("fail", "fail done"):
            self.failing = what
        elif what == "wipe":
            self.view, self.counters = None, {}
        elif what == "restart":
            self.store_id += "'"
        elif view is None or view.store_id != self.store_id:
            return
        elif what == "join" and "b" not in view.members:
            self.put(changes.join(view, Member("b", f"b{view.version}")))
        elif what == "leave b" and "b" in view.members:
            self.put(changes.leave(view, "b"))
        elif what.startswith("evict") and what[-1] in view.members:
            self.put(changes.evict(view, what[-1]))
        elif what == "beat b" and "b" in view.members:
            self.heartbeat("b")
        elif what == "raise":
            self.put(changes.raise_epoch(view, 0, view.epoch[0]))


@given(st.lists(EVENTS, max_size=30), st.sampled_from(["empty", "b", "a"]))
@settings(max_examples=300)
def test_it_never_asks_for_ticks_it_has_no_use_for(happenings: list[Any], start: str) -> None:
    bench = Chaos({"empty": None, "b": document("b"), "a": document("a", "b")}[start])
    for happening in happenings:
        bench.happen(happening)
    bench.run(5 * TIMEOUT)  # `run` fails if ticks change nothing
    held = {slot for slot, state in bench.machine.slots.items() if state is not SlotState.DRAINED}
    assert held <= (bench.known.owned_by("a") if bench.machine.view else set())
    machine = bench.machine
    away = machine.draining or machine._sent_away or machine._needs.lacks(Need.HOST, Need.LOOP)
    assert bench.phase is not Phase.OUT or away, "a member that is out comes in again"
