"""Joining, leaving, dying and coming back, in any order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from celery_sticky.ownership.changes import evict, fresh, join, leave, raise_epoch, release, replan, succeed
from celery_sticky.ownership.view import Member, MemberState, View


def start(slots: int = 12, epochs: int = 0) -> View:
    return fresh(slots=slots, hash="h", generation=3, version=1, store_id="s", epochs=epochs)


def member(name: str, incarnation: str = "1", weight: int = 1) -> Member:
    return Member(name, f"{name}-{incarnation}", weight=weight)


def started(names: str, slots: int = 12) -> View:
    """A cold start: everybody is there before the first plan."""
    view = start(slots)
    for name in names:
        view = join(view, member(name), settle=True)
    return replan(view)


def released(view: View) -> View:
    """Let every owner release what it gives, once each."""
    for name in sorted(view.members):
        view = release(view, name, view.giving(name))
    return view


def moved(before: View, after: View) -> int:
    return sum(a != b for a, b in zip(before.owner, after.owner, strict=True))


def assert_balanced(view: View) -> None:
    weights = {m.name: m.weight for m in view.active}
    total = sum(weights.values())
    if not total:
        assert set(view.target) == {None}
        return
    assert set(view.target) <= set(weights)
    for name, weight in weights.items():
        assert abs(view.target.count(name) - Fraction(view.slots * weight, total)) < 1


class Fleet(RuleBasedStateMachine):
    """A fleet under everything that can happen to it; after each step the rules hold."""

    names = "abcdefgh"

    @initialize(slots=st.integers(1, 40))
    def begin(self, slots: int) -> None:
        self.view = start(slots)
        self.planned = True
        self.incarnations: Iterator[int] = count()

    def follow(self, after: View) -> None:
        before, self.view = self.view, after
        assert after.version == before.version + 1
        assert (after.generation, after.slots) == (before.generation, before.slots)
        columns = zip(before.owner, after.owner, before.epoch, after.epoch, strict=True)
        for owner, new_owner, epoch, new_epoch in columns:
            assert new_epoch > epoch if owner != new_owner else new_epoch >= epoch

    def absent(self) -> list[str]:
        return [name for name in self.names if name not in self.view.members]

    @precondition(lambda self: self.absent())
    @rule(data=st.data(), weight=st.sampled_from([1, 1, 1, 0, 2, 3]), settle=st.sampled_from([False, False, True]))
    def one_joins(self, data: st.DataObject, weight: int, settle: bool) -> None:
        name = data.draw(st.sampled_from(self.absent()))
        self.follow(join(self.view, member(name, str(next(self.incarnations)), weight), settle=settle))
        assert self.view.members[name].joined == self.view.version
        self.planned = not settle

    @precondition(lambda self: self.absent())
    @rule(data=st.data())
    def many_join_at_once(self, data: st.DataObject) -> None:
        for name in data.draw(st.lists(st.sampled_from(self.absent()), min_size=1, unique=True)):
            self.follow(join(self.view, member(name, str(next(self.incarnations))), settle=True))
        self.end_settling()

    @rule()
    def end_settling(self) -> None:
        self.follow(replan(self.view))
        self.planned = True

    @precondition(lambda self: self.view.members)
    @rule(data=st.data())
    def one_leaves(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.view.members)))
        owned, cold = self.view.owned_by(name), not any(self.view.owner)
        self.follow(leave(self.view, name))
        assert self.view.owned_by(name) == owned
        assert (name in self.view.members) == bool(owned)
        self.planned = self.planned or not cold  # else it goes on settling

    @precondition(lambda self: self.view.members)
    @rule(data=st.data())
    def one_dies(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.view.members)))
        self.follow(evict(self.view, name))
        self.planned = True

    @precondition(lambda self: self.view.members)
    @rule(data=st.data())
    def one_comes_back_as_another_incarnation(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.view.members)))
        weight = self.view.members[name].weight
        self.follow(evict(self.view, name))
        self.follow(join(self.view, member(name, str(next(self.incarnations)), weight)))
        self.planned = True

    @precondition(lambda self: any(self.view.giving(name) for name in self.view.members))
    @rule(data=st.data())
    def one_releases_some(self, data: st.DataObject) -> None:
        givers = [name for name in sorted(self.view.members) if self.view.giving(name)]
        name = data.draw(st.sampled_from(givers))
        some = data.draw(st.sets(st.sampled_from(sorted(self.view.giving(name))), min_size=1))
        targets = self.view.target
        self.follow(release(self.view, name, some))
        assert self.view.target == targets
        assert all(self.view.owner[slot] == targets[slot] for slot in some)

    @rule()
    def all_release_all(self) -> None:
        for name in sorted(self.view.members):
            self.follow(release(self.view, name, self.view.giving(name)))
        if self.planned:
            assert self.view.settled

    @rule(data=st.data(), above=st.integers(0, 20))
    def a_fence_was_higher(self, data: st.DataObject, above: int) -> None:
        slot = data.draw(st.integers(0, self.view.slots - 1))
        self.follow(raise_epoch(self.view, slot, above))
        assert self.view.epoch[slot] > above

    @invariant()
    def every_owner_and_target_is_a_member(self) -> None:
        assert {*self.view.owner, *self.view.target} <= {*self.view.members, None}

    @invariant()
    def a_leaver_owns_something_and_is_the_target_of_nothing(self) -> None:
        for name, one in self.view.members.items():
            if one.state is MemberState.LEAVING:
                assert name in self.view.owner
                assert name not in self.view.target

    @invariant()
    def planned_views_are_balanced_and_leave_no_slot_waiting_for_nobody(self) -> None:
        if self.planned:
            assert_balanced(self.view)
            for slot in self.view.unowned:
                assert self.view.target[slot] is None

    @invariant()
    def a_slot_with_an_owner_has_a_home(self) -> None:
        assert all(home is not None for owner, home in zip(self.view.owner, self.view.home, strict=True) if owner)

    @invariant()
    def the_written_form_reads_back(self) -> None:
        assert View.from_bytes(self.view.to_bytes()) == self.view

    def teardown(self) -> None:
        if hasattr(self, "view"):
            self.end_settling()
            self.all_release_all()
            assert self.view.settled
            assert_balanced(self.view)


Fleet.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestFleet = Fleet.TestCase


def test_a_fresh_document_has_no_members_and_epochs_above_those_seen() -> None:
    view = fresh(slots=3, hash="h", generation=9, version=5, store_id="s", epochs=[4, 0, 7])
    assert (view.members, view.owner, view.epoch) == ({}, (None,) * 3, (5, 1, 8))
    assert (view.generation, view.version, view.settled) == (9, 5, True)
    with pytest.raises(ValueError, match="2 epochs for 3 slots"):
        fresh(slots=3, hash="h", generation=9, version=5, store_id="s", epochs=[4, 0])


def test_the_first_to_join_owns_everything_at_once() -> None:
    view = join(start(), member("a"))
    assert view.owned_by("a") == frozenset(range(12))
    assert view.settled


def test_who_comes_again_or_leaves_while_a_cold_start_settles_does_not_end_that() -> None:
    cold = join(join(start(4), member("a"), settle=True), member("b"), settle=True)
    for after in (succeed(cold, member("a", "2")), leave(cold, "b")):
        assert after.owner == after.target == (None,) * 4
        assert replan(after).settled and None not in replan(after).owner


def test_a_cold_start_gives_nothing_away_before_it_plans() -> None:
    view = join(join(start(), member("a"), settle=True), member("b"), settle=True)
    assert view.unowned == frozenset(range(12))
    planned = replan(view)
    assert planned.settled
    assert (len(planned.owned_by("a")), len(planned.owned_by("b"))) == (6, 6)


def test_a_live_owner_keeps_a_slot_until_it_releases_it() -> None:
    view = join(started("a"), member("b"))
    assert view.owned_by("a") == frozenset(range(12))
    some, *rest = sorted(view.giving("a"))
    view = release(view, "a", [some])
    assert view.owner[some] == "b"
    assert view.giving("a") == frozenset(rest)


def test_who_joins_must_be_new() -> None:
    view = started("a")
    with pytest.raises(ValueError, match="is a member already"):
        join(view, member("a", "2"))
    with pytest.raises(ValueError, match="is a member already"):
        join(view, Member("b", "a-1"))
    with pytest.raises(ValueError, match="is a member already"):
        join(join(view, member("b")), member("b", "2"))


def test_only_what_one_owns_and_should_not_keep_can_be_released() -> None:
    view = join(started("a"), member("b"))
    kept = min(view.owned_by("a") - view.giving("a"))
    for name, slot in (("a", kept), ("b", min(view.giving("a")))):
        with pytest.raises(ValueError, match="cannot release"):
            release(view, name, [slot])
    for change in (leave, evict):
        with pytest.raises(ValueError, match="x is not a member"):
            change(view, "x")
    with pytest.raises(ValueError, match="x is not a member"):
        release(view, "x", [])


def test_a_leaver_is_removed_with_its_last_slot() -> None:
    view = leave(started("ab"), "a")
    assert view.members["a"].state is MemberState.LEAVING
    first, *rest = sorted(view.giving("a"))
    view = release(view, "a", [first])
    assert "a" in view.members
    view = release(view, "a", rest)
    assert "a" not in view.members
    assert view.settled


def test_a_leaver_that_owns_nothing_is_removed_at_once() -> None:
    view = leave(join(started("a"), member("b")), "b")
    assert list(view.members) == ["a"]
    assert view.settled


def test_the_last_to_leave_leaves_slots_without_an_owner() -> None:
    view = leave(started("a"), "a")
    assert view.giving("a") == frozenset(range(12))
    view = release(view, "a", view.giving("a"))
    assert (view.members, view.unowned) == ({}, frozenset(range(12)))


def test_all_leave_and_then_one_joins() -> None:
    view = started("abc")
    for name in "abc":
        view = leave(view, name)
    view = released(view)
    assert view.members == {}
    after = join(view, member("d"))
    assert after.owned_by("d") == frozenset(range(12))
    assert all(new > old for new, old in zip(after.epoch, view.epoch, strict=True))


def test_a_dead_member_s_slots_go_to_their_targets_at_once() -> None:
    before = started("abc")
    view = evict(before, "a")
    assert view.settled
    assert "a" not in view.members
    for slot in range(12):
        was_its = before.owner[slot] == "a"
        assert view.epoch[slot] == before.epoch[slot] + was_its
        assert (view.owner[slot] != before.owner[slot]) == was_its


def test_the_death_of_the_only_member_leaves_slots_without_an_owner() -> None:
    before = started("a")
    view = evict(before, "a")
    assert view.unowned == frozenset(range(12))
    assert all(new > old for new, old in zip(view.epoch, before.epoch, strict=True))


def test_a_slot_that_goes_and_comes_back_has_a_higher_epoch_each_time() -> None:
    """a → b → a on one slot: what waited in a's memory from the first tenure is told from the second by epoch."""
    view = started("a", slots=1)
    epochs = [view.epoch[0]]
    for incarnation in range(3):
        leaver = view.owner[0]
        assert leaver is not None
        view = join(view, member("b" if leaver == "a" else "a", f"again-{incarnation}"))
        view = released(leave(view, leaver))
        assert view.owner[0] != leaver
        epochs.append(view.epoch[0])
    assert epochs == [epochs[0] + change for change in range(4)], "one for each change of owner, opened or not"


def test_an_epoch_is_raised_over_a_fence_and_never_lowered() -> None:
    view = started("a")
    high = raise_epoch(view, 3, 40)
    assert high.epoch[3] == 41
    assert high.owner == view.owner
    assert raise_epoch(high, 3, 5).epoch[3] == 42


@pytest.mark.parametrize("slots", [12, 240, 256])
@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_who_dies_and_comes_back_gets_its_home_back(name: str, slots: int) -> None:
    before = started("abc", slots)
    again = join(evict(before, name), member(name, "2"))
    after = released(again)
    assert after.settled
    assert moved(before, after) <= (1 if slots % 3 else 0)  # who has the spare slot keeps it
    assert after.owned_by(name) <= before.owned_by(name)


def test_who_leaves_and_comes_back_gets_its_home_back() -> None:
    before = started("abcd")
    gone = released(leave(before, "b"))
    assert "b" not in gone.members
    assert released(join(gone, member("b", "2"))).owner == before.owner


def test_two_that_are_away_together_both_get_their_homes_back() -> None:
    before = started("abcd")
    view = evict(evict(before, "a"), "b")
    view = released(join(view, member("b", "2")))
    view = released(join(view, member("a", "2")))
    assert view.owner == before.owner


@given(st.permutations("abcde"), st.permutations("abcde"))
@settings(max_examples=25, deadline=None)
def test_a_fleet_that_stops_and_starts_again_finds_its_slots(down: list[str], up: list[str]) -> None:
    before = started("abcde", slots=57)
    view = before
    for name in down:
        view = released(leave(view, name))
    assert view.members == {}
    for name in up:
        view = join(view, member(name, "2"), settle=True)
    assert replan(view).owner == before.owner


@pytest.mark.parametrize("graceful", [True, False])
def test_a_rolling_restart_under_the_same_names_moves_each_share_out_and_back(graceful: bool) -> None:
    before = started("abcd", slots=240)
    view = before
    for name in "abcd":
        gone = released(leave(view, name)) if graceful else evict(view, name)
        assert moved(view, gone) == 60
        back = released(join(gone, member(name, "2")))
        assert moved(gone, back) == 60
        view = back
    assert view.owner == before.owner


def test_no_more_absent_names_are_remembered_than_a_document_has_space_for() -> None:
    """Where each new worker has a new name nobody ever comes back."""
    names = [f"w{i:02}" for i in range(40)]
    view = start(slots=64)
    for name in names:
        view = join(view, member(name, weight=20 if name == "w07" else 1), settle=True)
    view = replan(view)
    for name in names:
        view = evict(view, name)
    homes = set(view.home) - {None}
    assert len(homes) == 16
    assert "w07" in homes  # those with the fewest slots are forgotten first


def test_a_weight_changes_by_coming_back_with_another() -> None:
    view = released(join(evict(started("ab"), "b"), member("b", "2", weight=2)))
    assert (len(view.owned_by("a")), len(view.owned_by("b"))) == (4, 8)


def test_a_change_leaves_the_view_it_was_given_alone() -> None:
    view = started("ab")
    copy = replace(view, members=dict(view.members))
    evict(view, "a")
    leave(view, "a")
    join(view, member("c"))
    assert view == copy


def test_a_successor_owns_what_the_dead_incarnation_owned_under_higher_epochs_and_nothing_moves() -> None:
    view = fresh(slots=8, hash="h", generation=1, version=1, store_id="s")
    for name in ("a", "b"):
        view = join(view, Member(name, f"{name}-0"))
    view = release(view, "a", sorted(view.giving("a")))
    after = succeed(view, Member("a", "a-1"))
    assert (after.owner, after.target) == (view.owner, view.target)
    assert after.members["a"].incarnation == "a-1"
    for slot in range(8):
        assert after.epoch[slot] - view.epoch[slot] == (view.owner[slot] == "a")


def test_a_successor_of_a_leaving_member_is_active_again() -> None:
    view = fresh(slots=8, hash="h", generation=1, version=1, store_id="s")
    for name in ("a", "b"):
        view = join(view, Member(name, f"{name}-0"))
    view = release(view, "a", sorted(view.giving("a")))
    after = succeed(leave(view, "a"), Member("a", "a-1"))
    assert len([slot for slot in range(8) if after.target[slot] == "a"]) == 4


def test_succession_needs_a_member_of_that_name() -> None:
    view = fresh(slots=8, hash="h", generation=1, version=1, store_id="s")
    with pytest.raises(ValueError, match="a is not a member"):
        succeed(view, Member("a", "a-1"))
