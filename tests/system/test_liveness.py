"""Workers that live, renew their lease and cannot run a task: others run their keys, and they come back."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from harness.hang import ENDS, FAILS, HANGS
from harness.keyed_fleet import KeyedFleet, node

from celery_sticky.ownership.view import STALLED, MemberState
from celery_sticky.testing.history import Event, Kind
from celery_sticky.testing.waiting import wait_until

TIMEOUT = 1.5
GREEN = ("gevent", "eventlet")
POOLS = ("prefork", "threads", "solo", "gevent", "eventlet")


def hang(fleet: KeyedFleet, name: str) -> None:
    fleet.app.control.broadcast("hang", destination=[node(name)])


def end_hanging(fleet: KeyedFleet) -> None:
    (fleet.config.history.parent / ENDS).touch()


def starts(fleet: KeyedFleet, keys: list[str]) -> list[Event]:
    return [event for event in fleet.events() if event.kind is Kind.START and event.key in keys]


def run_elsewhere(fleet: KeyedFleet, keys: list[str], name: str) -> None:
    """Send a task of each key and wait until the worker `name` has begun it."""
    for key in keys:
        fleet.publish(key)
    try:
        wait_until(lambda: len(starts(fleet, keys)) >= len(keys), 30, "another worker runs them", 0.1)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{fleet.view()}\n{starts(fleet, keys)}\n{fleet}") from None
    assert {event.worker for event in starts(fleet, keys)} == {node(name)}


def says_all_is_well(fleet: KeyedFleet) -> None:
    fleet.wait_finished()
    judged = fleet.judge()
    assert judged.ok and not judged.duplicates, judged.describe()


@pytest.mark.parametrize("pool", POOLS)
def test_a_loop_that_hangs_in_a_control_command_loses_its_slots_until_it_turns_again(
    crew: Callable[..., KeyedFleet], pool: str
) -> None:
    fleet = crew(sticky_loop_timeout=TIMEOUT)
    fleet.workers_up("a", "b", pool=pool)
    keys = fleet.keys_of(fleet.wait_members("a", "b"), "a", count=6)
    hang(fleet, "a")
    if pool in GREEN:
        # A greenlet whose start was reserved just before cannot be taken back: it keeps its slot until the loop turns.
        wait_until(lambda: (fleet.config.history.parent / HANGS).exists(), 30, "it hangs")
    run_elsewhere(fleet, keys, "b")
    worker = fleet.workers["a"]
    worker.wait_for_log(r"WARNING.*Celery's loop does not answer, for \d+ s: keyed tasks do not start here")
    worker.wait_for_log("in on_command")  # the stack tells where it hangs
    fleet.wait_members("b")
    assert fleet.workers["a"].alive
    end_hanging(fleet)
    view = fleet.wait_members("a", "b")
    keys = fleet.keys_of(view, "a", count=3)
    for key in keys:
        fleet.publish(key)
    says_all_is_well(fleet)


def test_a_loop_that_hangs_in_a_signal_handler_loses_its_slots(crew: Callable[..., KeyedFleet]) -> None:
    fleet = crew(sticky_loop_timeout=TIMEOUT)
    fleet.workers_up("a", "b")
    keys = fleet.keys_of(fleet.wait_members("a", "b"), "a", count=6)
    fleet.workers["a"].kill(signal.SIGUSR2)
    run_elsewhere(fleet, keys, "b")
    end_hanging(fleet)
    fleet.wait_members("a", "b")
    says_all_is_well(fleet)


@pytest.mark.parametrize("pool", ["solo", "gevent"])
def test_a_task_that_runs_in_the_loop_for_long_does_not_cost_the_slots(
    crew: Callable[..., KeyedFleet], pool: str
) -> None:
    fleet = crew(sticky_loop_timeout=TIMEOUT)
    fleet.workers_up("a", "b", pool=pool)
    before = fleet.wait_members("a", "b")
    (key,) = fleet.keys_of(before, "a")
    n = fleet.call("computes", key, 4 * TIMEOUT)
    fleet.wait_started(key, n)
    fleet.wait_ended(1)
    assert fleet.view() == before
    assert "does not answer" not in fleet.workers["a"].log


def test_without_other_workers_it_keeps_its_slots_and_tells(crew: Callable[..., KeyedFleet]) -> None:
    fleet = crew(sticky_loop_timeout=TIMEOUT)
    fleet.workers_up("a")
    before = fleet.wait_members("a")
    hang(fleet, "a")
    view = fleet.wait_view(lambda view: STALLED in view.members[node("a")].attributes)
    assert view.members[node("a")].state is MemberState.ACTIVE
    assert view.owner == before.owner
    end_hanging(fleet)
    fleet.wait_view(lambda view: STALLED not in view.members[node("a")].attributes)
    fleet.publish("k")
    says_all_is_well(fleet)


def test_a_pool_whose_processes_never_come_up_leaves_the_slots_to_others(crew: Callable[..., KeyedFleet]) -> None:
    fleet = crew(sticky_loop_timeout=TIMEOUT)
    fleet.workers_up("b")
    (fleet.config.history.parent / FAILS).touch()
    worker = fleet.worker("a", ready=False, env={"STICKY_TEST_CHILDREN": "hang"})
    worker.wait_for_log("no process of the pool is up")
    fleet.wait_members("b")
    for i in range(10):
        fleet.publish(f"k{i}")
    says_all_is_well(fleet)
    assert worker.alive
    end_hanging(fleet)
    fleet.wait_members("a", "b")


def test_a_pool_whose_processes_have_all_died_and_do_not_come_up_again_loses_its_slots(
    crew: Callable[..., KeyedFleet],
) -> None:
    fleet = crew(sticky_loop_timeout=TIMEOUT)
    worker, _ = fleet.workers_up("a", "b")
    keys = fleet.keys_of(fleet.wait_members("a", "b"), "a", count=6)
    (fleet.config.history.parent / FAILS).touch()
    for pid in worker.children:
        os.kill(pid, signal.SIGKILL)
    run_elsewhere(fleet, keys, "b")
    worker.wait_for_log("no process of the pool is up")
    assert worker.alive
    end_hanging(fleet)
    fleet.wait_members("a", "b")
    says_all_is_well(fleet)
