"""Where keys of a placed keyspace belong: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sticky import Keyspace, Worker, jump
from celery_sticky.errors import AssignmentFailed, InvalidSettings, NotPinned, NoWorker
from celery_sticky.keys import slot_for
from celery_sticky.keyspace import DeadBounds, assigned, placement_of, successor, workers_of
from celery_sticky.ownership import changes
from celery_sticky.ownership.view import HAS_WORKER_QUEUE, Member, View
from celery_sticky.settings import Settings

WORKER_QUEUE = {HAS_WORKER_QUEUE: "1"}
names = st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1)


def view_of(*members: str, slots: int = 8) -> View:
    view = changes.fresh(slots=slots, hash="h", generation=1, version=1, store_id="s")
    for name in members:
        view = changes.join(view, Member(name, f"{name}-1", weight=2, attributes={**WORKER_QUEUE, "zone": "z"}))
    return view


def oldest(key: str, workers: Sequence[Worker]) -> Worker:
    return workers[0]


@given(names, st.text(min_size=1))
def test_jump_is_ponos_hash_over_the_live_oldest_first(members: list[str], key: str) -> None:
    workers = workers_of(view_of(*members))
    assert [worker.name for worker in workers] == members
    assert jump(key, workers).name == members[slot_for(key, len(members))]


@given(names, st.text(min_size=1))
def test_with_jump_one_more_worker_takes_keys_and_moves_no_other(members: list[str], key: str) -> None:
    before, after = view_of(*members), view_of(*members, "new")
    moved = jump(key, workers_of(after)).name
    assert moved in (jump(key, workers_of(before)).name, "new")


def test_with_jump_half_of_the_keys_move_when_a_middle_one_of_ten_leaves() -> None:
    before, after = workers_of(view_of(*"abcdefghij")), workers_of(view_of(*"abcdeghij"))
    moved = sum(jump(f"k{i}", before).name != jump(f"k{i}", after).name for i in range(2000))
    assert 900 < moved < 1100, "no more than what is said, and not a tenth, as with slots"


def test_a_function_sees_name_joined_weight_and_attributes() -> None:
    first, second = workers_of(view_of("b", "a"))
    assert (first.name, second.name) == ("b", "a") and first.joined < second.joined
    assert first.weight == 2 and first.attributes["zone"] == "z"


def test_who_leaves_or_has_no_worker_queue_is_given_no_key() -> None:
    view = changes.leave(view_of("a", "b"), "a")
    assert "a" in view.members and [worker.name for worker in workers_of(view)] == ["b"]
    view = changes.join(view, Member("plain", "p-1"))
    assert [worker.name for worker in workers_of(view)] == ["b"]


def test_a_leaving_member_with_a_worker_queue_stays_until_it_departs() -> None:
    view = changes.leave(view_of("a", "b"), "a")
    view = changes.release(view, "a", view.owned_by("a"))
    assert "a" in view.members and not view.owned_by("a")
    assert "a" not in changes.depart(view, "a").members
    with pytest.raises(ValueError, match="not leaving"):
        changes.depart(view, "b")


def test_a_name_will_do_for_a_worker() -> None:
    keyspace = Keyspace("ks", assign=lambda key, workers: "b")
    assert placement_of(keyspace, "k", 8, view_of("a", "b"), workers_of(view_of("a", "b"))) == "@b"


@pytest.mark.parametrize("wrong", ["c", None, Worker("c"), 3])
def test_a_stranger_is_refused_with_the_names_there_are(wrong: Any) -> None:
    def wrongly(key: str, workers: Sequence[Worker]) -> Any:
        return wrong

    with pytest.raises(AssignmentFailed, match=r"keyspace 'ks', key 'k': .*wrongly.* not one of the workers: a, b$"):
        assigned(Keyspace("ks", assign=wrongly), "k", workers_of(view_of("a", "b")))


def test_what_a_function_raises_is_told_with_keyspace_key_and_function() -> None:
    def fails(key: str, workers: Sequence[Worker]) -> Worker:
        raise KeyError("shard")

    with pytest.raises(AssignmentFailed, match=r"keyspace 'ks', key 'k': its .*fails' raised KeyError"):
        assigned(Keyspace("ks", assign=fails), "k", [Worker("a")])


def test_without_workers_there_is_nobody_to_assign_to() -> None:
    with pytest.raises(NoWorker):
        assigned(Keyspace("ks", assign=jump), "k", [])


def test_a_pin_goes_first_then_the_function_then_the_slot() -> None:
    view = view_of("a", "b")
    both, pins = Keyspace("ks", assign=oldest, pins=True), Keyspace("ks", pins=True)
    where = partial(placement_of, key="k", slots=8, view=view, workers=workers_of(view))
    assert [where(both, pin="b-1"), where(both), where(both, pin="gone-1")] == ["@b", "@a", "@a"]
    assert [where(pins, pin="b-1"), where(pins)] == ["@b", slot_for("k", 8)]
    with pytest.raises(NotPinned):
        where(replace(pins, unpinned="refuse"), pin="gone-1")
    assert where(Keyspace("ks", assign=oldest), pin="b-1") == "@a", "nobody can pin there"


def test_who_leaves_has_pinned_nothing() -> None:
    view = changes.leave(view_of("a", "b"), "b")
    assert placement_of(Keyspace("ks", pins=True), "k", 8, view, workers_of(view), "b-1") == slot_for("k", 8)


@given(names, st.sampled_from("xyz"))
def test_a_worker_that_is_gone_has_one_successor_and_one_that_is_there_none(members: list[str], gone: str) -> None:
    view = view_of(*members)
    assert successor(view, gone) in view.members
    assert successor(view, members[0]) is None
    assert successor(replace(view, owner=(None,) * 8), gone) == members[0]


def test_the_hash_of_the_document_names_function_and_version() -> None:
    hashes = {
        Keyspace("ks").hash_name,
        Keyspace("ks", pins=True).hash_name,
        Keyspace("ks", assign=oldest).hash_name,
        Keyspace("ks", assign=jump).hash_name,
        Keyspace("ks", assign=jump, version="2").hash_name,
        Keyspace("ks", assign=jump, pins=True).hash_name,
    }
    assert len(hashes) == 6 and Keyspace("ks").hash_name == Settings().hash_of("ks")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"name": "a.b"}, "1 to 64 letters"),
        ({"slots": 0}, "1 to 65536"),
        ({"slots": True}, "a whole number"),
        ({"assign": "jump"}, "a function of key and workers"),
        ({"assign": partial(oldest, "k")}, "set version="),
        ({"pins": 1}, "True or False"),
        ({"unpinned": "slots", "pins": True}, "'slot' or 'refuse'"),
        ({"unpinned": "refuse"}, "needs pins=True"),
        ({"dead_limit": -1}, "dead_limit is -1: it must be a whole number"),
        ({"dead_limit": True}, "dead_limit is True: it must be a whole number"),
        ({"dead_ttl": -0.5}, "dead_ttl is -0.5: it must be at least 0 seconds"),
        ({"dead_ttl": "1h"}, "dead_ttl is '1h': it must be at least 0 seconds"),
    ],
)
def test_a_keyspace_that_cannot_be_says_why(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSettings, match=says):
        Keyspace(**{"name": "ks", **wrong})


def test_the_setting_takes_keyspaces_among_names() -> None:
    pinned = Keyspace("pinned", slots=32, pins=True)
    settings = Settings.read({"sticky_keyspaces": ["default", pinned], "sticky_slots": 16})
    assert settings.keyspaces == {"default": 16, "pinned": 32}
    assert settings.placed_keyspace("pinned") == pinned and settings.placed_keyspace("default") is None
    assert settings.hash_of("pinned") == pinned.hash_name


def test_a_declared_keyspace_has_its_slots_and_is_declared_in_one_way() -> None:
    settings = Settings.read({"sticky_slots": 16}).declaring([Keyspace("a", slots=32), Keyspace("b", pins=True)])
    assert (settings.slots_of("a"), settings.slots_of("b")) == (32, 16)
    assert settings.placed_keyspace("a") is None, "a plain one"
    with pytest.raises(InvalidSettings, match="declared twice"):
        settings.declaring([Keyspace("b")])


def test_a_keyspace_that_refuses_keys_bounds_its_dead_queue_unless_told_otherwise() -> None:
    refusing = Keyspace("a", pins=True, unpinned="refuse")
    keyspaces = [refusing, Keyspace("b", pins=True), Keyspace("c", dead_limit=7)]
    keyspaces += [replace(refusing, name="d", dead_limit=0, dead_ttl=0), replace(refusing, name="e", dead_ttl=5)]
    settings = Settings.read({}).declaring(keyspaces)
    bounds = {name: settings.dead_bounds_of(name) for name in "abcde"}
    assert bounds["a"] == DeadBounds(1000, 86400.0)
    assert not bounds["b"] and not bounds["d"] and not settings.dead_bounds_of("default")
    assert bounds["c"] == DeadBounds(7, 0.0) and bounds["e"] == DeadBounds(1000, 5.0)
    settings = Settings.read({"sticky_dead_limit": 50}).declaring(keyspaces)
    assert settings.dead_bounds_of("a") == DeadBounds(50, 86400.0) and settings.dead_bounds_of("c").limit == 7
    assert settings.dead_bounds_of("d").limit == 0 and settings.dead_bounds_of("default") == DeadBounds(50)


def test_placed_is_no_setting() -> None:
    with pytest.raises(InvalidSettings, match="unknown setting 'sticky_placed'"):
        Settings.read({"sticky_placed": {}})
