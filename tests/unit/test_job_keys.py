"""The keys of a placed keyspace that have jobs: what one worker does about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from celery_sticky.keys import slot_for
from celery_sticky.keyspace import Keyspace, Worker, workers_of
from celery_sticky.ownership import changes
from celery_sticky.ownership.view import HAS_WORKER_QUEUE, Member, View
from celery_sticky.placement.job_keys import RETRY_FIRST, RETRY_LAST, Changes, JobKeys
from celery_sticky.placement.rules import Duty, Scene

SLOTS, NOW = 8, 1000.0
PINNED, STRICT = Keyspace("ks", pins=True), Keyspace("ks", pins=True, unpinned="refuse")


def view_of(*names: str) -> View:
    view = changes.fresh(slots=SLOTS, hash="h", generation=1, version=1, store_id="s")
    for name in names:
        view = changes.join(view, Member(name, f"{name}-1", attributes={HAS_WORKER_QUEUE: "1"}))
    while any(view.giving(name) for name in names):
        for name in names:
            view = changes.release(view, name, view.giving(name))
    return view


def scene(view: View, keyspace: Keyspace = PINNED, worker: str = "a") -> Scene:
    return Scene(keyspace, SLOTS, view, workers_of(view), worker)


VIEW = view_of("a", "b")
MINE = next(f"k{i}" for i in range(99) if VIEW.owner[slot_for(f"k{i}", SLOTS)] == "a")
THEIRS = next(f"k{i}" for i in range(99) if VIEW.owner[slot_for(f"k{i}", SLOTS)] == "b")


def looked(keys: JobKeys, **pins: str) -> None:
    keys.looked(keys.to_look(100), {**pins})


def decide(keys: JobKeys, now: float = NOW, **options: Any) -> Changes:
    return keys.decide(scene(options.pop("view", VIEW), **options), now, 100)


def stopped(keys: JobKeys, **options: Any) -> list[str]:
    """Return the keys whose jobs are told to stop, where no task is left."""
    return [*decide(keys, **options).stop, *keys.without_tasks(())]


@pytest.fixture
def keys() -> JobKeys:
    keys = JobKeys(pins=True)
    keys.wanted([MINE, THEIRS])
    return keys


def opened(keys: JobKeys, key: str = MINE, token: int = 7, duty: Duty = Duty.RUN) -> None:
    decide(keys)
    keys.granted(key, token, duty, "")


def test_a_key_is_thought_about_when_its_pin_is_known(keys: JobKeys) -> None:
    assert decide(keys) == Changes() and keys.more
    looked(keys)
    assert decide(keys) == Changes(want=[(MINE, "")]) and not keys.more
    assert keys.held, "it may come to be here"


def test_a_pinned_key_belongs_to_who_has_pinned_it(keys: JobKeys) -> None:
    looked(keys, **{MINE: "b-1", THEIRS: "a-1"})
    assert decide(keys).want == [(THEIRS, "a-1")]


def test_nothing_is_done_about_keys_of_which_nothing_has_changed(keys: JobKeys) -> None:
    looked(keys)
    opened(keys)
    hear: Sequence[Callable[[list[str]], None]] = (keys.wanted, keys.listed)
    for again in hear:
        again([MINE, THEIRS])
        assert not keys.more and decide(keys) == Changes()
    keys.sweep(100)
    looked(keys)
    assert not keys.more, "their pins are what they were"


def test_pins_are_looked_up_of_all_in_turn(keys: JobKeys) -> None:
    looked(keys)
    found = set()
    for _ in range(2):
        keys.sweep(1)
        found |= set(keys.to_look(9))
        looked(keys)
    assert found == {MINE, THEIRS}


def test_jobs_are_stopped_when_their_key_belongs_elsewhere_and_wanted_again_when_it_comes_back(keys: JobKeys) -> None:
    looked(keys)
    opened(keys)
    keys.pin_changed(MINE)
    looked(keys, **{MINE: "b-1"})
    assert stopped(keys) == [MINE]
    keys.pin_changed(MINE)
    looked(keys)
    assert decide(keys) == Changes() and keys.held, "they have not stopped"
    assert keys.drained(MINE, 7, NOW, vacant=False)
    assert decide(keys).want == [(MINE, "")]


def test_jobs_run_on_until_no_task_of_their_key_is_left(keys: JobKeys) -> None:
    looked(keys)
    opened(keys)
    keys.pin_changed(MINE)
    looked(keys, **{MINE: "b-1"})
    for _ in range(2):
        assert decide(keys) == Changes()
        assert keys.without_tasks({MINE}) == [] and keys.held
    assert keys.without_tasks(()) == [MINE] and keys.held
    assert keys.without_tasks(()) == [], "once"


def test_a_key_that_comes_back_while_its_tasks_end_keeps_its_jobs(keys: JobKeys) -> None:
    looked(keys)
    opened(keys)
    for pins in ({MINE: "b-1"}, {}):
        keys.pin_changed(MINE)
        looked(keys, **pins)
        assert decide(keys) == Changes()
        assert keys.without_tasks({MINE}) == []
    assert keys.without_tasks(()) == []
    keys.pin_changed(MINE)
    looked(keys, **{MINE: "b-1"})
    assert stopped(keys) == [MINE]


def test_a_leaving_key_whose_last_job_ended_by_itself_is_given_back(keys: JobKeys) -> None:
    looked(keys)
    opened(keys)
    keys.pin_changed(MINE)
    looked(keys, **{MINE: "b-1"})
    decide(keys)
    assert keys.drained(MINE, 7, NOW, vacant=True) and not keys.held
    assert keys.without_tasks(()) == []


def test_a_new_membership_knows_no_leaving_key(keys: JobKeys) -> None:
    looked(keys)
    opened(keys)
    keys.pin_changed(MINE)
    looked(keys, **{MINE: "b-1"})
    decide(keys)
    keys.reset()
    assert keys.without_tasks(()) == [] and not keys.held


def test_what_is_told_of_an_earlier_claim_ends_no_later_one(keys: JobKeys) -> None:
    """Guards: evicted and back, this worker would give away a key whose jobs are being started."""
    looked(keys)
    opened(keys, token=7)
    keys.reset()
    assert not keys.held
    opened(keys, token=9)
    assert not keys.drained(MINE, 7, NOW, vacant=True) and keys.held
    assert keys.drained(MINE, 9, NOW, vacant=True) and not keys.held


def test_a_key_without_jobs_is_forgotten(keys: JobKeys) -> None:
    looked(keys)
    opened(keys)
    keys.listed([MINE])
    decide(keys)
    assert len(keys) == 1 and not keys.knows(THEIRS)
    keys.listed([])
    assert decide(keys) == Changes() and keys.held, "it is here until the keeper says that it is not"
    keys.drained(MINE, 7, NOW, vacant=True)
    decide(keys)
    assert not len(keys) and not keys.held


def test_a_key_that_gets_a_job_again_while_the_last_one_goes_is_kept(keys: JobKeys) -> None:
    looked(keys)
    opened(keys)
    keys.drained(MINE, 7, NOW, vacant=True)
    assert not keys.knows(MINE)
    keys.wanted([MINE])
    looked(keys)
    assert decide(keys).want == [(MINE, "")]


def test_a_key_that_is_not_claimed_yet_is_left_when_it_belongs_elsewhere_or_its_jobs_are_gone(keys: JobKeys) -> None:
    looked(keys)
    decide(keys)
    keys.listed([THEIRS])
    assert decide(keys).leave == [MINE]
    keys.wanted([MINE])
    looked(keys)
    decide(keys)
    keys.left(MINE, "b-1")
    assert not keys.held and decide(keys) == Changes()


def test_members_that_change_are_thought_about(keys: JobKeys) -> None:
    looked(keys)
    opened(keys)
    keys.review()
    assert stopped(keys, view=view_of("b")) == [MINE]
    keys.reset()
    assert {key for key, _ in decide(keys, view=view_of("a")).want} == {MINE, THEIRS}


def test_a_slot_that_is_to_move_keeps_its_jobs_until_it_has_moved(keys: JobKeys) -> None:
    looked(keys)
    opened(keys)
    keys.review()
    leaving = changes.leave(VIEW, "a")
    assert decide(keys, view=leaving) == Changes()
    keys.review()
    assert stopped(keys, view=changes.release(leaving, "a", leaving.giving("a"))) == [MINE]


def test_where_unpinned_keys_are_refused_the_owner_of_the_slot_tends_them(keys: JobKeys) -> None:
    looked(keys)
    assert decide(keys, keyspace=STRICT).want == [(MINE, "")]
    keys.granted(MINE, 7, Duty.TEND, "")
    keys.pin_changed(MINE)
    looked(keys, **{MINE: "a-1"})
    assert decide(keys, keyspace=STRICT).stop == [MINE], "to be run, it is opened again"
    keys.drained(MINE, 7, NOW, vacant=False)
    assert decide(keys, keyspace=STRICT).want == [(MINE, "a-1")]


def test_a_pin_that_was_another_one_when_the_key_was_claimed_is_not_missed_when_it_comes_back(keys: JobKeys) -> None:
    looked(keys, **{MINE: "a-1"})
    assert decide(keys, keyspace=STRICT).want == [(MINE, "a-1")]
    keys.granted(MINE, 7, Duty.TEND, "")  # unpinned meanwhile
    keys.pin_changed(MINE)
    looked(keys, **{MINE: "a-1"})
    assert decide(keys, keyspace=STRICT).stop == [MINE]


def test_a_key_with_jobs_that_was_thought_to_have_none_is_known_again(keys: JobKeys) -> None:
    looked(keys)
    opened(keys)
    keys.listed([THEIRS])
    keys.wanted([MINE])
    keys.reset()
    looked(keys)
    assert keys.knows(MINE) and (MINE, "") in decide(keys).want


def test_a_pin_that_changed_while_a_key_was_thought_to_have_no_jobs_is_heeded_when_it_has(keys: JobKeys) -> None:
    looked(keys)
    opened(keys)
    keys.listed([THEIRS])
    keys.pin_changed(MINE)
    looked(keys, **{MINE: "b-1"})
    assert decide(keys) == Changes()
    keys.wanted([MINE])
    looked(keys, **{MINE: "b-1"})
    assert stopped(keys) == [MINE]


def test_a_place_that_could_not_be_opened_is_claimed_again_after_a_while(keys: JobKeys) -> None:
    looked(keys)
    opened(keys)
    keys.drained(MINE, 7, NOW, vacant=False)
    keys.review()
    assert decide(keys, NOW + RETRY_FIRST / 2) == Changes()
    assert decide(keys, NOW + RETRY_FIRST).want == [(MINE, "")]


def test_a_function_that_fails_is_called_again_now_and_then_and_told_as_often() -> None:
    calls: list[str] = []

    def fails(key: str, workers: Sequence[Worker]) -> Any:
        calls.append(key)
        raise LookupError("no such shard")

    keys = JobKeys(pins=False)
    many = [f"k{i}" for i in range(50)]
    keys.wanted(many)
    keyspace = Keyspace("ks", assign=fails)
    told, now = [], NOW
    while now < NOW + 600:
        found = keys.decide(scene(VIEW, keyspace), now, 100)
        told += [now] if found.failed else []
        now += 0.5
    pauses = [after - before for before, after in pairwise(told)]
    assert pauses[:3] == [RETRY_FIRST, 2 * RETRY_FIRST, 4 * RETRY_FIRST] and pauses[-1] == RETRY_LAST
    assert len(calls) == len(many) * len(told)


def test_ten_thousand_keys_cost_nothing_while_nothing_changes() -> None:
    calls: list[str] = []

    def first(key: str, workers: Sequence[Worker]) -> Worker:
        calls.append(key)
        return workers[0]

    keys = JobKeys(pins=False)
    many = [f"k{i}" for i in range(10_000)]
    keys.listed(many)
    there = scene(VIEW, Keyspace("ks", assign=first))
    turns = 0
    while keys.more:
        for key, _ in keys.decide(there, NOW, 2000).want:
            keys.granted(key, 7, Duty.RUN, "")
        turns += 1
    assert turns == 5 and len(calls) == 10_000
    for _ in range(100):
        keys.wanted(many[:3])
        assert not keys.more and keys.decide(there, NOW, 2000) == Changes()
    assert len(calls) == 10_000
