"""One task of a key at a time, in order, whatever happens to its slot meanwhile."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from celery_sticky.delivery.gate import Entry, Gate, Stage
from celery_sticky.keys import SlotId

SLOT: SlotId = ("ks", 1)
OTHER: SlotId = ("ks", 2)


class Tags:
    """Deliveries of a slot have growing tags."""

    def __init__(self) -> None:
        self.last = 0

    def entry(self, key: Hashable = "k", slot: SlotId = SLOT, attempts: int | None = None) -> Entry:
        self.last += 1
        return Entry(slot, self.last, key, attempts=attempts)


class Tokens:
    """A bucket that is filled by hand."""

    def __init__(self, tokens: int = 0) -> None:
        self.tokens = tokens

    def can_consume(self, tokens: int = 1) -> bool:
        enough = tokens <= self.tokens
        self.tokens -= tokens * enough
        return enough

    def expected_time(self, tokens: int = 1) -> float:
        return float(tokens > self.tokens)


@pytest.fixture
def tags() -> Tags:
    return Tags()


@pytest.fixture
def gate() -> Gate:
    gate = Gate()
    gate.open(SLOT)
    return gate


def begin(gate: Gate) -> list[Entry]:
    """Start everything that may start."""
    taken = gate.take(100)
    assert all(gate.start(entry, entry.turn, trusted=True) for entry in taken)
    return taken


def added(gate: Gate, *entries: Entry) -> list[Entry]:
    assert all(gate.add(entry) for entry in entries)
    return list(entries)


def figures(gate: Gate) -> tuple[int, int, int]:
    return gate.waiting, gate.runnable, gate.out


# -- The way of an entry -----------------------------------------------------------------------


def test_tasks_of_one_key_start_one_after_the_other_in_order(gate: Gate, tags: Tags) -> None:
    entries = added(gate, tags.entry(), tags.entry(), tags.entry())
    for entry in entries:
        assert begin(gate) == [entry]
        assert begin(gate) == []
        assert gate.end(entry)
        gate.settled(entry)
    assert figures(gate) == (0, 0, 0)


def test_other_keys_overtake_and_those_that_wait_do_not_use_up_the_window(gate: Gate, tags: Tags) -> None:
    first, second, other = added(gate, tags.entry("a"), tags.entry("a"), tags.entry("b"))
    assert begin(gate) == [first, other]
    assert second.stage is Stage.WAITING
    assert figures(gate) == (1, 2, 2)


def test_the_next_task_of_a_key_waits_until_the_broker_has_confirmed_the_disposition(gate: Gate, tags: Tags) -> None:
    """Guards: the key's next task starts after the broker has confirmed the previous disposition."""
    first, second = added(gate, tags.entry(), tags.entry())
    begin(gate)
    gate.end(first)
    assert gate.take(10) == []
    gate.settled(first)
    assert gate.take(10) == [second]


def test_a_key_is_freed_once_however_often_its_end_is_told(gate: Gate, tags: Tags) -> None:
    first, second, third = added(gate, tags.entry(), tags.entry(), tags.entry())
    begin(gate)
    assert gate.end(first)
    assert not gate.end(first)
    gate.settled(first)
    gate.settled(first)
    assert not gate.end(first)
    assert begin(gate) == [second]
    assert third.stage is Stage.WAITING


def test_no_more_is_handed_out_than_was_asked_for(gate: Gate, tags: Tags) -> None:
    added(gate, *(tags.entry(n) for n in range(5)))
    assert len(gate.take(2)) == 2
    assert gate.take(0) == []
    assert gate.take(-1) == []
    assert gate.out == 2


def test_what_was_handed_out_but_came_to_nothing_can_end_without_a_start(gate: Gate, tags: Tags) -> None:
    first, second = added(gate, tags.entry(), tags.entry())
    gate.take(1)
    assert gate.end(first)
    assert figures(gate) == (1, 0, 0)
    assert gate.kept(SLOT) == (first.tag,)
    gate.settled(first)
    assert gate.take(1) == [second]


def test_what_is_too_often_marked_ends_before_it_is_handed_out(gate: Gate, tags: Tags) -> None:
    first, second = added(gate, tags.entry(attempts=3), tags.entry())
    assert list(gate.uncounted(9, 9)) == [first]
    assert gate.end(first)
    assert figures(gate) == (1, 0, 0)
    assert gate.take(9) == []
    gate.settled(first)
    assert gate.take(9) == [second]


# -- Reserving a start -------------------------------------------------------------------------


def test_nothing_starts_without_trust(gate: Gate, tags: Tags) -> None:
    """Guards: at the end of trust nothing more starts."""
    (entry,) = added(gate, tags.entry())
    gate.take(1)
    assert not gate.start(entry, entry.turn, trusted=False)
    gate.put_back(entry, entry.turn)
    assert begin(gate) == [entry]


def test_nothing_of_a_lost_slot_starts_even_if_it_was_handed_out(gate: Gate, tags: Tags) -> None:
    """Guards: start is a reservation made under the lock that marks a slot lost."""
    handed, ready = added(gate, tags.entry("a"), tags.entry("b"))
    gate.take(1)
    assert gate.lose(SLOT)
    gate.open(SLOT)
    assert not gate.start(handed, handed.turn, trusted=True)
    gate.put_back(handed, handed.turn)
    assert gate.take(10) == []
    assert (handed.stage, ready.stage) == (Stage.GONE, Stage.GONE)
    assert figures(gate) == (0, 0, 0)


def test_a_start_of_an_earlier_turn_is_refused(gate: Gate, tags: Tags) -> None:
    (entry,) = added(gate, tags.entry())
    gate.take(1)
    old = entry.turn
    gate.put_back_all()
    assert not gate.start(entry, old, trusted=True)
    gate.take(1)
    assert not gate.start(entry, old, trusted=True)
    gate.put_back(entry, old)
    assert gate.start(entry, entry.turn, trusted=True)


def test_what_is_put_back_together_comes_again_in_order(gate: Gate, tags: Tags) -> None:
    entries = added(gate, *(tags.entry(n) for n in range(6)))
    gate.take(4)
    assert gate.start(entries[1], entries[1].turn, trusted=True)
    gate.put_back_all()
    assert gate.take(10) == [entries[0], *entries[2:]]


def test_a_delivery_of_a_slot_that_is_not_open_is_not_let_in(gate: Gate, tags: Tags) -> None:
    assert not gate.add(tags.entry(slot=OTHER))
    gate.lose(SLOT)
    assert not gate.add(tags.entry())
    assert not gate.is_open(SLOT)
    assert figures(gate) == (0, 0, 0)


# -- Losing a slot -----------------------------------------------------------------------------


def test_a_lost_slot_is_empty_when_its_last_disposition_is_confirmed(gate: Gate, tags: Tags) -> None:
    """Guards: a slot is given away after its running tasks have had their dispositions confirmed."""
    first, second, _ = added(gate, tags.entry("a"), tags.entry("b"), tags.entry("a"))
    begin(gate)
    assert not gate.lose(SLOT)
    gate.end(first)
    assert not gate.settled(first)
    gate.end(second)
    assert not gate.lose(SLOT)
    assert gate.settled(second)
    assert gate.slots_running() == {}


def test_losing_a_slot_does_not_free_the_key_of_a_task_that_runs(gate: Gate, tags: Tags) -> None:
    """Guards: a key that is running stays locked across reconnects, re-opens and re-joins of the same process."""
    (running,) = added(gate, tags.entry())
    begin(gate)
    gate.lose(SLOT)
    gate.open(SLOT)
    assert gate.kept(SLOT) == (running.tag,)
    (later,) = added(gate, tags.entry())
    assert gate.take(10) == []
    gate.end(running)
    assert gate.take(10) == []
    assert not gate.settled(running)  # the slot is open again: nobody waits for it to be empty
    assert begin(gate) == [later]


def test_a_recalled_slot_forgets_what_has_not_started_and_stays_open(gate: Gate, tags: Tags) -> None:
    """Guards: the old owner forgets what it had not started; the next `open` finds it."""
    running, waiting, handed, ready = added(gate, tags.entry("a"), tags.entry("a"), tags.entry("b"), tags.entry("c"))
    begun = gate.take(2)
    assert gate.start(begun[0], begun[0].turn, trusted=True)
    gate.recall(SLOT)
    assert [e.stage for e in (running, waiting, handed, ready)] == [Stage.STARTED, *[Stage.GONE] * 3]
    assert gate.held(SLOT) == 0
    assert figures(gate) == (0, 1, 1)
    again = added(gate, tags.entry("a"), tags.entry("b"), tags.entry("c"))
    assert gate.take(10) == again[1:]


def test_a_slot_says_how_much_of_it_has_not_started(gate: Gate, tags: Tags) -> None:
    added(gate, tags.entry("a"), tags.entry("a"), tags.entry("b"))
    assert (gate.held(SLOT), gate.held(OTHER)) == (3, 0)
    begin(gate)
    assert gate.held(SLOT) == 1
    assert gate.slots_running() == {SLOT: 2}


# -- Another turn ------------------------------------------------------------------------------


def test_a_task_that_came_to_no_end_has_another_turn_before_those_behind_it(gate: Gate, tags: Tags) -> None:
    first, second = added(gate, tags.entry(), tags.entry())
    begin(gate)
    assert gate.again(first, counted=False)
    assert second.stage is Stage.WAITING
    assert begin(gate) == [first]


def test_a_counted_turn_is_marked_at_the_broker_before_it_starts(gate: Gate, tags: Tags) -> None:
    (entry,) = added(gate, tags.entry())
    assert list(gate.uncounted(9, 9)) == []
    begin(gate)
    assert gate.again(entry, counted=True)
    assert gate.take(1) == []
    assert list(gate.uncounted(9, 9)) == [entry]
    assert list(gate.uncounted(9, 9)) == []
    gate.start_counted(entry, 1)
    assert (entry.attempts, begin(gate)) == (1, [entry])
    assert gate.again(entry, counted=False)
    assert begin(gate) == [entry]


def test_a_suspect_is_marked_when_its_turn_has_come_and_not_before(gate: Gate, tags: Tags) -> None:
    first, second = added(gate, tags.entry(attempts=1), tags.entry(attempts=0))
    assert list(gate.uncounted(9, 9)) == [first]
    gate.start_counted(first, 2)
    begin(gate)
    gate.end(first)
    assert list(gate.uncounted(9, 9)) == []
    gate.settled(first)
    assert list(gate.uncounted(9, 9)) == [second]


def test_no_more_are_marked_than_the_pool_can_run_at_a_time(gate: Gate, tags: Tags) -> None:
    """Guards: should the process die, a mark counts as a start: those that only wait for the pool have none."""
    first, second, third = added(gate, *(tags.entry(key, attempts=1) for key in "abc"))
    assert list(gate.uncounted(1, 9)) == [first] and list(gate.uncounted(1, 9)) == []
    gate.start_counted(first, 2)
    assert gate.take(9) == [first] and list(gate.uncounted(1, 9)) == []
    assert gate.start(first, first.turn, trusted=True) and list(gate.uncounted(1, 9)) == []
    assert gate.end(first)
    assert list(gate.uncounted(1, 9)) == [second] and list(gate.uncounted(1, 9)) == []
    gate.lose(second.slot)
    assert second.stage is Stage.GONE and third.stage is Stage.GONE
    assert list(gate.uncounted(1, 9)) == []


def test_what_has_many_marks_starts_when_no_other_marked_one_runs(gate: Gate, tags: Tags) -> None:
    """Guards: a poison takes nothing else to the dead queue that was only ever marked beside it."""
    fresh, worn, other = added(gate, *(tags.entry(key, attempts=n) for key, n in zip("abc", (0, 3, 0), strict=True)))
    assert list(gate.uncounted(9, 3)) == [fresh]
    gate.start_counted(fresh, 1)
    begin(gate)
    assert list(gate.uncounted(9, 3)) == []
    gate.end(fresh)
    assert list(gate.uncounted(9, 3)) == [worn]
    gate.start_counted(worn, 4)
    begin(gate)
    assert list(gate.uncounted(9, 3)) == []
    gate.end(worn)
    assert list(gate.uncounted(9, 3)) == [other]


def test_a_marked_start_goes_before_those_that_need_no_mark(gate: Gate, tags: Tags) -> None:
    plain, suspect = added(gate, tags.entry("a"), tags.entry("b", attempts=1))
    assert list(gate.uncounted(9, 9)) == [suspect]
    gate.start_counted(suspect, 2)
    assert gate.take(9) == [suspect, plain]


def test_a_turn_that_is_counted_again_does_not_stand_in_its_own_way(gate: Gate, tags: Tags) -> None:
    (entry,) = added(gate, tags.entry(attempts=1))
    for attempts in (2, 3):
        assert list(gate.uncounted(1, 9)) == [entry]
        gate.start_counted(entry, attempts)
        assert gate.take(9) == [entry] and gate.start(entry, entry.turn, trusted=True)
        assert gate.again(entry, counted=True)


@pytest.mark.parametrize(("most", "wary"), [(3, 9), (1, 9), (3, 1)])
def test_a_start_that_cannot_be_counted_for_a_while_does_not_wait_for_itself(
    gate: Gate, tags: Tags, most: int, wary: int
) -> None:
    """Guards: after a few refusals no start that must be counted began any more, in any slot of the worker."""
    (entry,) = added(gate, tags.entry(attempts=1))
    for _ in range(5):
        assert list(gate.uncounted(most, wary)) == [entry]
        gate.hold_back(entry)
        gate.rouse(entry)
    assert list(gate.uncounted(most, wary)) == [entry]
    gate.start_counted(entry, 2)
    assert begin(gate) == [entry]


def test_a_mark_for_what_was_forgotten_meanwhile_starts_nothing(gate: Gate, tags: Tags) -> None:
    (entry,) = added(gate, tags.entry(attempts=0))
    list(gate.uncounted(9, 9))
    gate.recall(SLOT)
    gate.start_counted(entry, 1)
    assert gate.take(1) == []


def test_a_task_of_a_lost_slot_has_no_other_turn_and_frees_its_key(gate: Gate, tags: Tags) -> None:
    (entry,) = added(gate, tags.entry())
    begin(gate)
    gate.lose(SLOT)
    assert not gate.again(entry, counted=True)
    assert gate.lose(SLOT)
    gate.open(SLOT)
    later = added(gate, tags.entry())
    assert begin(gate) == later


def test_the_turn_of_an_orphan_is_asked_of_the_broker_even_if_its_slot_is_open_again(gate: Gate, tags: Tags) -> None:
    """Guards: what waits in memory belongs to a tenure and dies with it.

    Another worker may have run the message, and those after it, between the two tenures.
    """
    (orphan,) = added(gate, tags.entry())
    begin(gate)
    gate.lose(SLOT)
    gate.open(SLOT)
    (later,) = added(gate, tags.entry())
    assert gate.again(orphan, counted=False)
    assert gate.take(10) == []
    assert list(gate.uncounted(9, 9)) == [orphan]
    gate.forget(orphan)
    assert begin(gate) == [later]


def test_a_refused_mark_frees_the_key_once(gate: Gate, tags: Tags) -> None:
    first, second, third = added(gate, tags.entry(attempts=0), tags.entry(), tags.entry())
    list(gate.uncounted(9, 9))
    gate.forget(first)
    gate.forget(first)
    assert begin(gate) == [second]
    gate.forget(second)
    assert third.stage is Stage.WAITING


# -- What had ended before it came ------------------------------------------------------------


def test_what_had_ended_before_it_came_keeps_its_key_locked_until_it_is_settled(gate: Gate, tags: Tags) -> None:
    ended, later = tags.entry(), tags.entry()
    assert gate.add_ended(ended)
    added(gate, later)
    assert gate.take(10) == [] and figures(gate) == (1, 0, 0)
    gate.recall(SLOT)
    assert gate.kept(SLOT) == (ended.tag,), "an opening does not put it back"
    [later] = added(gate, tags.entry())
    assert not gate.settled(ended)
    assert begin(gate) == [later] and figures(gate) == (0, 1, 1)


def test_what_had_ended_before_it_came_is_settled_in_the_midst_of_its_line(gate: Gate, tags: Tags) -> None:
    first, ended, also, last = (tags.entry() for _ in range(4))
    added(gate, first)
    assert gate.add_ended(ended) and gate.add_ended(also)
    added(gate, last)
    assert begin(gate) == [first]
    gate.settled(ended)
    assert gate.take(10) == [], "the first runs"
    assert gate.end(first)
    gate.settled(first)
    assert gate.take(10) == [], "one is not confirmed yet"
    gate.settled(also)
    assert begin(gate) == [last] and figures(gate) == (0, 1, 1)
    assert gate.end(last)
    gate.settled(last)
    assert gate.keys == 0


def test_what_waits_for_the_disposition_of_the_same_message_ends_with_it(gate: Gate, tags: Tags) -> None:
    first, same, last = added(gate, *(tags.entry() for _ in range(3)))
    begin(gate)
    assert gate.behind(first) == [], "it has not ended"
    gate.end(first)
    assert gate.behind(first) == [same, last]
    gate.end_waiting(same)
    assert figures(gate) == (1, 0, 0) and set(gate.kept(SLOT)) == {first.tag, same.tag}
    gate.settled(first)
    assert gate.take(10) == []
    gate.settled(same)
    assert begin(gate) == [last]


def test_a_slot_waits_for_what_had_ended_before_it_came(gate: Gate, tags: Tags) -> None:
    ended = tags.entry()
    assert gate.add_ended(ended)
    assert not gate.lose(SLOT)
    assert gate.settled(ended), "now it is empty"
    assert not gate.add_ended(tags.entry()), "nothing is let in any more"


# -- Everything, in any order ------------------------------------------------------------------


# -- Rate limits -------------------------------------------------------------------------------


def limited(tags: Tags, key: Hashable, **options: Any) -> Entry:
    entry = tags.entry(key, **options)
    entry.kind = "slow"
    return entry


def test_what_waits_for_a_rate_limit_holds_its_own_key_and_no_place(gate: Gate, tags: Tags) -> None:
    bucket = Tokens()
    gate.limit({"slow": bucket})
    first, second, same_key, other = added(
        gate, limited(tags, "a"), limited(tags, "b"), tags.entry("a"), tags.entry("c")
    )
    gate.resume()
    assert begin(gate) == [other]
    assert figures(gate) == (1, 1, 1)
    assert gate.limited.due_in() == 1.0
    bucket.tokens = 1
    gate.resume()
    assert begin(gate) == [first], "in the order in which their turns came"
    gate.end(first)
    gate.settled(first)
    assert begin(gate) == [same_key]
    assert second.stage is Stage.LIMITED
    gate.limit({})
    gate.resume()
    assert begin(gate) == [second], "the limit was taken away"
    assert gate.limited.due_in() is None


def test_a_limit_that_is_set_later_counts_for_what_was_ready(gate: Gate, tags: Tags) -> None:
    first, other = added(gate, limited(tags, "a"), tags.entry("b"))
    gate.limit({"slow": Tokens()})
    assert begin(gate) == [other]
    assert first.stage is Stage.LIMITED


def test_what_waits_for_a_rate_limit_is_not_marked_before(gate: Gate, tags: Tags) -> None:
    bucket = Tokens()
    gate.limit({"slow": bucket})
    (suspect,) = added(gate, limited(tags, "a", attempts=1))
    assert list(gate.uncounted(9, 9)) == []
    bucket.tokens = 1
    gate.resume()
    assert list(gate.uncounted(9, 9)) == [suspect]


def test_a_start_that_came_to_nothing_costs_another_token(gate: Gate, tags: Tags) -> None:
    bucket = Tokens(1)
    gate.limit({"slow": bucket})
    (entry,) = added(gate, limited(tags, "a"))
    gate.resume()
    assert begin(gate) == [entry]
    gate.again(entry, counted=False)
    gate.resume()
    assert begin(gate) == []
    bucket.tokens = 1
    gate.resume()
    assert begin(gate) == [entry]


def test_a_lost_slot_forgets_what_waits_for_a_rate_limit(gate: Gate, tags: Tags) -> None:
    bucket = Tokens()
    gate.limit({"slow": bucket})
    added(gate, limited(tags, "a"), limited(tags, "b"))
    assert gate.lose(SLOT)
    bucket.tokens = 9
    gate.resume()
    assert begin(gate) == []
    assert (figures(gate), len(gate.limited)) == ((0, 0, 0), 0)


class Gates(RuleBasedStateMachine):
    """A gate under everything a courier does, beside a model that only knows each key's own line."""

    entries = Bundle("entries")
    keys = ("a", "b", "c", "on both")
    slots = (SLOT, OTHER)

    @initialize()
    def begin(self) -> None:
        self.gate = Gate()
        self.bucket = Tokens()
        self.live = dict.fromkeys(self.slots, False)
        self.seen: list[Entry] = []
        self.lines: dict[Hashable, list[Entry]] = {key: [] for key in self.keys}
        """Entries by key, in the order of their delivery, as long as they wait, run or await their confirmation."""
        self.running: set[Entry] = set()
        """Started and not ended, or ended and not confirmed."""
        self.freed: set[Entry] = set()

    def drop(self, entry: Entry) -> None:
        self.lines[entry.key].remove(entry)
        self.running.discard(entry)

    def forget_unstarted(self, slot: SlotId) -> None:
        for line in self.lines.values():
            for entry in [e for e in line if e.slot == slot and e not in self.running]:
                self.drop(entry)

    @rule(slot=st.sampled_from(slots))
    def open(self, slot: SlotId) -> None:
        self.gate.open(slot)
        self.live[slot] = True

    @rule(slot=st.sampled_from(slots))
    def lose(self, slot: SlotId) -> None:
        empty = self.gate.lose(slot)
        self.live[slot] = False
        self.forget_unstarted(slot)
        assert empty == (not any(entry.slot == slot for entry in self.running))

    @rule(slot=st.sampled_from(slots), again=st.booleans())
    def recall(self, slot: SlotId, again: bool) -> None:
        self.gate.recall(slot)
        self.forget_unstarted(slot)
        if again:
            self.gate.open(slot)
            self.live[slot] = True

    @rule(target=entries, key=st.sampled_from(keys), attempts=st.none() | st.integers(0, 3), data=st.data())
    def add(self, key: str, attempts: int | None, data: st.DataObject) -> Entry:
        choice = self.slots if key == "on both" else (self.slots[key > "a"],)
        kind = data.draw(st.sampled_from(("free", "slow")))
        entry = Entry(data.draw(st.sampled_from(choice)), len(self.seen), key, attempts=attempts, kind=kind)
        self.seen.append(entry)
        assert self.gate.add(entry) == self.live[entry.slot]
        if self.live[entry.slot]:
            self.lines[key].append(entry)
        return entry

    @rule(target=entries, key=st.sampled_from(keys), data=st.data())
    def add_ended(self, key: str, data: st.DataObject) -> Entry:
        choice = self.slots if key == "on both" else (self.slots[key > "a"],)
        entry = Entry(data.draw(st.sampled_from(choice)), len(self.seen), key)
        self.seen.append(entry)
        assert self.gate.add_ended(entry) == self.live[entry.slot]
        if self.live[entry.slot]:
            self.lines[key].append(entry)
            self.running.add(entry)
        return entry

    @rule(entry=entries)
    def end_waiting(self, entry: Entry) -> None:
        line = self.lines[entry.key]
        waiting = [other for other in line if other.stage is Stage.WAITING]
        assert self.gate.behind(entry) == (waiting if entry.stage is Stage.ENDED else [])
        for other in waiting[:1]:
            self.gate.end_waiting(other)
            self.running.add(other)

    @rule(confirmed=st.booleans())
    def mark(self, confirmed: bool) -> None:
        for entry in self.gate.uncounted(9, 9):
            assert self.lines[entry.key][0] is entry
            if confirmed:
                self.gate.start_counted(entry, (entry.attempts or 0) + 1)
            else:
                self.gate.forget(entry)
                self.drop(entry)

    @rule(most=st.integers(0, 4), trusted=st.booleans())
    def take_and_start(self, most: int, trusted: bool) -> None:
        for entry in self.gate.take(most):
            started = self.gate.start(entry, entry.turn, trusted=trusted)
            assert started == trusted
            if started:
                self.starts(entry)
            else:
                self.gate.put_back(entry, entry.turn)

    @rule(most=st.integers(0, 4))
    def take(self, most: int) -> None:
        for entry in self.gate.take(most):
            assert self.lines[entry.key][0] is entry

    @rule(entry=entries, late=st.booleans())
    def start(self, entry: Entry, late: bool) -> None:
        handed = entry.stage is Stage.HANDED
        started = self.gate.start(entry, entry.turn - late, trusted=True)
        assert started == (handed and not late)
        if started:
            self.starts(entry)

    def starts(self, entry: Entry) -> None:
        assert self.live[entry.slot]
        assert self.lines[entry.key][0] is entry, "the first in its line"
        assert entry not in self.running, "one start for each turn"
        assert entry not in self.freed
        self.running.add(entry)

    @rule(limited=st.booleans())
    def limit(self, limited: bool) -> None:
        self.gate.limit({"slow": self.bucket} if limited else {})
        ready = [entry for line in self.lines.values() for entry in line if entry.stage is Stage.READY]
        assert not limited or not any(entry.kind == "slow" and entry.attempts is None for entry in ready)

    @rule(tokens=st.integers(0, 2))
    def resume(self, tokens: int) -> None:
        self.bucket.tokens = tokens
        held = [entry for line in self.lines.values() for entry in line if entry.stage is Stage.LIMITED]
        self.gate.resume()
        gone_on = sum(entry.stage is Stage.READY for entry in held)
        assert gone_on == (min(tokens, len(held)) if self.gate.limited.buckets else len(held))

    @rule(entry=entries)
    def put_back(self, entry: Entry) -> None:
        self.gate.put_back(entry, entry.turn)

    @rule()
    def put_back_all(self) -> None:
        self.gate.put_back_all()
        assert not any(entry.stage is Stage.HANDED for entry in self.seen)

    @rule(entry=entries)
    def end(self, entry: Entry) -> None:
        mine = entry.stage in (Stage.LIMITED, Stage.READY, Stage.HANDED, Stage.STARTED)
        assert self.gate.end(entry) == mine
        if mine:
            self.running.add(entry)

    @rule(entry=consumes(entries))
    def settle(self, entry: Entry) -> None:
        ended = entry.stage is Stage.ENDED
        empty = self.gate.settled(entry)
        if ended:
            self.frees(entry)
        others = any(e.slot == entry.slot for e in self.running)
        assert empty == (ended and not self.live[entry.slot] and not others)

    @rule(entry=entries, counted=st.booleans())
    def again(self, entry: Entry, counted: bool) -> None:
        started = entry.stage is Stage.STARTED
        going_on = self.gate.again(entry, counted=counted)
        if started and self.live[entry.slot]:
            assert going_on
            self.running.discard(entry)
        elif started:
            assert not going_on
            self.frees(entry)

    def frees(self, entry: Entry) -> None:
        assert entry not in self.freed, "a key is freed once by each task"
        self.freed.add(entry)
        self.drop(entry)

    @invariant()
    def the_figures_are_those_of_the_entries(self) -> None:
        stages = [entry.stage for line in self.lines.values() for entry in line]
        waiting, handed = stages.count(Stage.WAITING), stages.count(Stage.HANDED)
        started = stages.count(Stage.STARTED)
        assert len(self.gate.limited) == stages.count(Stage.LIMITED)
        assert figures(self.gate) == (waiting, stages.count(Stage.READY) + handed + started, handed + started)
        for slot in self.slots:
            mine = [entry for line in self.lines.values() for entry in line if entry.slot == slot]
            kept = {entry.tag for entry in mine if entry in self.running}
            assert set(self.gate.kept(slot)) == kept
            assert self.gate.held(slot) == len(mine) - len(kept)
            assert self.gate.slots_running().get(slot, 0) == len(kept)
            assert self.gate.is_open(slot) == self.live[slot]

    @invariant()
    def the_first_of_a_line_has_its_turn_and_the_others_wait(self) -> None:
        for line in self.lines.values():
            # What had ended before it came stands anywhere.
            assert all(entry.stage in (Stage.WAITING, Stage.ENDED) for entry in line[1:])
            assert not line or line[0].stage not in (Stage.WAITING, Stage.GONE)

    def teardown(self) -> None:
        """When everything has ended, nothing is left of any key or slot."""
        for slot in self.slots:
            self.gate.lose(slot)
        for entry in self.seen:
            self.gate.again(entry, counted=False)
            self.gate.settled(entry)
        assert self.gate.take(1) == []
        assert list(self.gate.uncounted(9, 9)) == []
        assert figures(self.gate) == (0, 0, 0)
        left = {name: value for name, value in vars(self.gate).items() if value}
        assert not left


TestGates = Gates.TestCase
TestGates.settings = settings(max_examples=120, stateful_step_count=40)
