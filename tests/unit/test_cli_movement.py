"""The least number of slots a change can move, against what the planner moves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from celery_sticky.cli.movement import fewest, moved, weights_of
from celery_sticky.cli.plan import foresee
from celery_sticky.ownership import changes
from celery_sticky.ownership.view import Member, View

fleets = st.lists(st.integers(0, 4), min_size=1, max_size=6)


def fleet(weights: list[int], slots: int) -> View:
    view = changes.fresh(slots=slots, hash="h", generation=1, version=1, store_id="s")
    for number, weight in enumerate(weights):
        view = changes.join(view, Member(f"w{number}", f"i{number}", weight=weight))
    for name in view.members:
        view = changes.release(view, name, view.giving(name))
    return view


@given(fleets, st.integers(1, 60), st.integers(0, 4))
def test_a_join_moves_no_more_than_any_plan_must(weights: list[int], slots: int, weight: int) -> None:
    before = fleet(weights, slots)
    after = changes.join(before, Member("new", "i", weight=weight))
    assert len(moved(before.target, after.target)) == fewest(before.target, weights_of(after))


@given(fleets, st.integers(1, 60), st.data())
def test_a_leave_moves_no_more_than_any_plan_must(weights: list[int], slots: int, data: st.DataObject) -> None:
    before = fleet(weights, slots)
    after = changes.evict(before, data.draw(st.sampled_from(sorted(before.members))))
    assert len(moved(before.target, after.target)) == fewest(before.target, weights_of(after))


@given(fleets, st.integers(1, 60), st.integers(0, 3), st.data())
def test_no_forecast_is_below_the_minimum(weights: list[int], slots: int, add: int, data: st.DataObject) -> None:
    view = fleet(weights, slots)
    remove = data.draw(st.sets(st.sampled_from(sorted(view.members))))
    found = foresee(view, add, sorted(remove), 1)
    assert found["moved"] >= found["minimum"]
    assert sum(one["slots_then"] for one in found["members"]) in (0, slots)
