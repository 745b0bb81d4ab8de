"""Workers come, go, are deployed, killed and frozen, and each promise is kept."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from harness.keyed_fleet import MARGIN, SLOTS, TIMEOUT, TTL, KeyedFleet, node

from celery_sticky.ownership import changes
from celery_sticky.testing import processes
from celery_sticky.testing.history import Event, Kind
from celery_sticky.testing.measure import SECOND, changed_owner, opened_after, steps_back
from celery_sticky.testing.waiting import wait_until

KEYS = 24
MOMENT = 2.0
"""Seconds in which what does not wait for a lease is done, on a loaded machine too."""


def says_all_is_well(fleet: KeyedFleet) -> None:
    fleet.wait_finished()
    judged = fleet.judge()
    assert judged.ok, judged.describe()


def says_nothing_is_broken(fleet: KeyedFleet) -> None:
    judged = fleet.judge()
    assert not (judged.overlaps or judged.inversions or judged.stale or judged.shared), judged.describe()


def runs_of(fleet: KeyedFleet, key: str, n: int = 0) -> list[Event]:
    return [e for e in fleet.events() if e.kind is Kind.START and (e.key, e.n) == (key, n)]


def end_of(fleet: KeyedFleet, start: Event) -> Event | None:
    return next((e for e in fleet.events() if e.kind is Kind.END and e.run == start.run), None)


def publish_everywhere(fleet: KeyedFleet, rounds: int = 1, seconds: float = 0.002) -> None:
    for _ in range(rounds):
        for i in range(KEYS):
            fleet.publish(f"k{i}", seconds)


# -- names -------------------------------------------------------------------------------------


def test_a_second_worker_of_the_same_name_refuses_to_start_and_harms_nobody(crew: Callable[..., KeyedFleet]) -> None:
    fleet = crew()
    (first,) = fleet.workers_up("a")
    before = fleet.view()
    del fleet.workers["a"]
    second = fleet.worker("a", ready=False)
    fleet.workers["first"] = first
    assert second.wait(timeout=40) != 0
    assert "named 'a@" in second.log and "-n" in second.log
    publish_everywhere(fleet)
    says_all_is_well(fleet)
    assert fleet.view() == before


def test_a_name_that_lives_elsewhere_is_refused_after_two_of_its_heartbeats(crew: Callable[..., KeyedFleet]) -> None:
    """Guards: two changes of the counter seen, for one may have been in flight. No lock file is shared here."""
    fleet = crew()
    (first,) = fleet.workers_up("a")
    before = fleet.view()
    del fleet.workers["a"]
    second = fleet.worker("a", ready=False, env=fleet.environ_with(sticky_runtime_dir=str(first.log_path.parent / "x")))
    fleet.workers["first"] = first
    assert second.wait(timeout=40) != 0
    assert "another live worker is named" in second.log
    assert fleet.view() == before


def test_a_killed_worker_that_restarts_under_its_name_goes_on_at_once(crew: Callable[..., KeyedFleet]) -> None:
    """Guards: proof of death by lock file; epochs grow with the incarnation; nothing moves to others meanwhile."""
    fleet = crew()
    fleet.workers_up("a", "b")
    before = fleet.wait_members("a", "b")
    mine = before.owned_by(node("a"))
    worker = fleet.workers["a"]
    for key in fleet.keys_of(before, "a", count=4):
        fleet.publish(key, 0.5)
        fleet.publish(key)
    wait_until(fleet.ended, message="it works")
    since = time.monotonic_ns()
    worker.kill()
    worker.wait_gone()
    joined = fleet.view()
    worker.start()
    worker.wait_for_log("joined as")
    assert joined is not None and joined.members == before.members, "it was not evicted before it came back"
    opened = opened_after(fleet.slot_events(), since, mine)
    wait_until(lambda: set(opened_after(fleet.slot_events(), since, mine)) == mine, message="it opens what it had")
    opened = opened_after(fleet.slot_events(), since, mine)
    after = fleet.wait_members("a", "b")
    assert max(opened.values()) < TIMEOUT + MOMENT
    assert changed_owner(fleet.observer.since(since)) == set()
    assert all(after.epoch[s] == before.epoch[s] + (s in mine) for s in range(SLOTS))
    says_all_is_well(fleet)


# -- deployments -------------------------------------------------------------------------------


def test_a_rolling_restart_under_the_same_names_loses_nothing_and_comes_back_to_the_same_slots(
    crew: Callable[..., KeyedFleet],
) -> None:
    fleet = crew()
    fleet.workers_up("a", "b")
    before = fleet.wait_members("a", "b")
    for name in ("a", "b", "a"):
        publish_everywhere(fleet, 4, 0.005)
        assert fleet.workers[name].stop() == 0
        fleet.workers[name].start().wait_ready()
        after = fleet.wait_members("a", "b")
        assert after.owner == before.owner, "a name that returns finds its slots again"
    says_all_is_well(fleet)
    assert not fleet.judge().duplicates


def test_a_rolling_restart_under_new_names_loses_nothing(crew: Callable[..., KeyedFleet]) -> None:
    fleet = crew()
    fleet.workers_up("v1", "b")
    for old, new in (("v1", "v2"), ("v2", "v3"), ("v3", "v4")):
        publish_everywhere(fleet, 4, 0.005)
        before = fleet.wait_members("b", old)
        since = time.monotonic_ns()
        fleet.worker(new)
        fleet.wait_members("b", old, new)
        assert fleet.workers.pop(old).stop() == 0
        fleet.wait_members("b", new)
        assert len(changed_owner(fleet.observer.since(since))) <= len(before.owned_by(node(old))) + SLOTS // 3 + 1
    says_all_is_well(fleet)
    assert not fleet.judge().duplicates


def test_a_surge_of_new_workers_replaces_the_old_ones(crew: Callable[..., KeyedFleet]) -> None:
    fleet = crew()
    old = fleet.workers_up("a", "b", concurrency=1)
    publish_everywhere(fleet, 4, 0.005)
    for name in ("c", "d"):
        fleet.worker(name, ready=False, concurrency=1)
    publish_everywhere(fleet, 4, 0.005)
    fleet.wait_members("a", "b", "c", "d")
    for worker in old:
        worker.kill(signal.SIGTERM)
    publish_everywhere(fleet, 4, 0.005)
    assert [worker.wait() for worker in old] == [0, 0]
    fleet.wait_members("c", "d")
    says_all_is_well(fleet)
    assert not fleet.judge().duplicates


def test_the_second_worker_dies_while_the_first_is_being_taken_over(crew: Callable[..., KeyedFleet]) -> None:
    fleet = crew()
    fleet.workers_up("a", "b", "c", concurrency=1)
    publish_everywhere(fleet, 8, 0.02)
    since = time.monotonic_ns()
    fleet.workers["a"].kill()
    time.sleep(0.2)  # the fault itself
    fleet.workers["b"].kill()
    for name in ("a", "b"):
        fleet.workers[name].wait_gone()
    fleet.wait_members("c")
    opened = opened_after(fleet.slot_events(), since, range(SLOTS))
    assert max(opened.values()) < 0.2 + TIMEOUT + 0.5 + MOMENT
    publish_everywhere(fleet)
    says_all_is_well(fleet)


def test_a_slot_goes_there_and_back_again_while_its_key_is_busy(crew: Callable[..., KeyedFleet]) -> None:
    fleet = crew()
    fleet.workers_up("a", "b")
    before = fleet.wait_members("a", "b")
    key = fleet.keys_of(before, "a")[0]
    slot = fleet.slot_of(key)
    epochs = [before.epoch[slot]]
    for owner in ("b", "a", "b", "a"):
        for _ in range(10):
            fleet.publish(key, 0.02)
        if owner == "b":
            fleet.workers["a"].stop()
            view = fleet.wait_members("b")
        else:
            fleet.workers["a"].start()
            view = fleet.wait_members("a", "b")
        assert view.owner[slot] == node(owner)
        epochs.append(view.epoch[slot])
    says_all_is_well(fleet)
    assert epochs == sorted(set(epochs)), "each time under a higher epoch"
    assert not fleet.judge().duplicates


# -- shutting down -----------------------------------------------------------------------------


def test_a_slot_with_a_long_task_waits_alone_when_its_worker_stops(crew: Callable[..., KeyedFleet]) -> None:
    """Guards: what is not started is forgotten; a slot is released when its task has ended and is settled."""
    fleet = crew()
    fleet.workers_up("a", "b")
    before = fleet.wait_members("a", "b")
    busy, *others = fleet.keys_of(before, "a", count=6)
    fleet.publish(busy, 4.0)
    fleet.publish(busy, 0.0)
    fleet.wait_started(busy, 0)
    fleet.workers["a"].kill(signal.SIGTERM)
    asked = time.monotonic_ns()
    view = fleet.wait_view(lambda view: view.owned_by(node("a")) == {fleet.slot_of(busy)}, 20, "the others move")
    for key in others:
        fleet.publish(key)
        assert fleet.wait_started(key, 0).worker == node("b")
    first = runs_of(fleet, busy)[0]
    assert end_of(fleet, first) is None, "all this while the long task runs"
    assert view.owned_by(node("a")) == {fleet.slot_of(busy)}
    assert fleet.workers["a"].wait(timeout=20) == 0
    after = fleet.wait_started(busy, 1)
    end = end_of(fleet, first)
    assert end is not None and end.finished and after.worker == node("b") and after.at > end.at > asked
    says_all_is_well(fleet)
    assert not fleet.judge().duplicates


def test_a_cold_shutdown_gives_everything_away_and_what_it_killed_runs_again(crew: Callable[..., KeyedFleet]) -> None:
    fleet = crew()
    fleet.workers_up("a", "b")
    before = fleet.wait_members("a", "b")
    key = fleet.keys_of(before, "a")[0]
    note = fleet.workers["a"].log_path.parent / "note"
    fleet.call("with_grandchild", key, 3, str(note))
    fleet.publish(key, 0.0)
    first = fleet.wait_started(key, 0)
    wait_until(note.exists, message="the grandchild works")
    grandchild = int(note.read_text().split()[0])
    fleet.workers["a"].kill(signal.SIGQUIT)
    quit_at = time.monotonic_ns()
    fleet.wait_members("b")
    taken = time.monotonic_ns()
    fleet.workers["a"].wait()
    assert not processes.running(first.pid) and not processes.running(grandchild)
    says_all_is_well(fleet)
    assert len(runs_of(fleet, key)) == 2
    assert (taken - quit_at) / SECOND < TIMEOUT + MOMENT


def test_publishing_goes_on_while_workers_stop_and_start(crew: Callable[..., KeyedFleet]) -> None:
    fleet = crew()
    fleet.workers_up("a", "b", concurrency=1)
    for name in ("a", "b", "a", "b", "a"):
        worker = fleet.workers[name]
        worker.kill(signal.SIGTERM)
        while worker.alive:
            publish_everywhere(fleet)
            time.sleep(0.1)  # keeps the backlog small
        assert worker.wait() == 0
        worker.start()
        while "ready." not in worker.log:
            publish_everywhere(fleet)
            time.sleep(0.1)  # keeps the backlog small
        fleet.wait_members("a", "b")
    says_all_is_well(fleet)
    assert not fleet.judge().duplicates


# -- processes that die or stand still ---------------------------------------------------------


def test_the_pool_dies_with_its_parent_before_the_next_owner_starts(crew: Callable[..., KeyedFleet]) -> None:
    """Guards: End of trust; a task is ended, also what it has started, when its worker's main process is killed."""
    fleet = crew()
    fleet.workers_up("a", "b")
    before = fleet.wait_members("a", "b")
    note = fleet.workers["a"].log_path.parent / "note"
    key, other = fleet.keys_of(before, "a", count=2)
    fleet.call("with_grandchild", key, 60, str(note))
    fleet.publish(other, 60.0)
    first = fleet.wait_started(key, 0)
    second = fleet.wait_started(other, 0)
    wait_until(note.exists, message="the grandchild works")
    fleet.workers["a"].kill()
    dead = time.monotonic()
    wait_until(lambda: not processes.running(first.pid) and not processes.running(second.pid), MOMENT, "children die")
    grandchild = int(note.read_text().split()[0])
    wait_until(lambda: not processes.running(grandchild), MOMENT, "so does the grandchild")
    wrote = int(note.read_text().split()[1])
    assert time.monotonic() - dead < TTL
    again = wait_until(lambda: runs_of(fleet, key)[1:], 20, "the next owner starts it")[0]
    assert again.worker == node("b") and again.at > wrote
    says_nothing_is_broken(fleet)


def test_what_a_task_past_its_hard_time_limit_has_started_dies_before_the_next_one_starts(
    crew: Callable[..., KeyedFleet],
) -> None:
    """Guards: Serial; a child leads a process group, and all of that is killed before the key is free."""
    fleet = crew()
    fleet.workers_up("a")
    note = fleet.workers["a"].log_path.parent / "note"
    fleet.call("with_grandchild", "k", 60, str(note), time_limit=3)
    fleet.publish("k")
    wait_until(note.exists, message="the grandchild works")
    after = fleet.wait_started("k", 1)
    grandchild, wrote = map(int, note.read_text().split())
    assert not processes.running(grandchild)
    assert after.at > wrote


def test_a_task_in_c_code_is_killed_from_outside_at_the_end_of_trust(crew: Callable[..., KeyedFleet]) -> None:
    """Guards: End of trust; the child's own watch cannot run while C code holds the interpreter."""
    fleet = crew()
    fleet.workers_up("a", "b")
    before = fleet.wait_members("a", "b")
    key = fleet.keys_of(before, "a")[0]
    fleet.call("holds_interpreter", key, 30)
    first = fleet.wait_started(key, 0)
    # As a peer would that has not heard from it.
    wait_until(lambda: fleet.store.swap(view := fleet.wait_members("a", "b"), changes.evict(view, node("a"))))
    evicted = time.monotonic()
    wait_until(lambda: not processes.running(first.pid), TTL + MOMENT, "it is killed")
    assert time.monotonic() - evicted < TTL - MARGIN + MOMENT
    says_nothing_is_broken(fleet)


def test_a_task_in_c_code_dies_with_its_parent(crew: Callable[..., KeyedFleet]) -> None:
    fleet = crew()
    (worker,) = fleet.workers_up("a")
    fleet.call("holds_interpreter", "key", 30)
    first = fleet.wait_started("key", 0)
    worker.kill()
    wait_until(lambda: not processes.running(first.pid), MOMENT, "it dies")


def test_a_frozen_parent_does_not_keep_its_child_from_ending_in_time(crew: Callable[..., KeyedFleet]) -> None:
    """Guards: Trust, End of trust: the child watches the deadline itself; Gone: the thawed parent joins again."""
    fleet = crew()
    fleet.workers_up("a", "b")
    before = fleet.wait_members("a", "b")
    key = fleet.keys_of(before, "a")[0]
    fleet.publish(key, 5.0)
    first = fleet.wait_started(key, 0)
    frozen = time.monotonic_ns()
    fleet.workers["a"].kill(signal.SIGSTOP)
    wait_until(lambda: not processes.running(first.pid), TTL + MOMENT, "the child ends itself")
    died = time.monotonic_ns()
    assert (died - frozen) / SECOND < TTL - MARGIN + 1.0
    again = wait_until(lambda: runs_of(fleet, key)[1:], TIMEOUT + 10, "the next owner starts it")[0]
    assert again.worker == node("b") and again.at > died
    fleet.workers["a"].kill(signal.SIGCONT)
    after = fleet.wait_members("a", "b")
    assert after.members[node("a")].incarnation != before.members[node("a")].incarnation
    says_nothing_is_broken(fleet)


def test_with_the_policy_finish_a_frozen_worker_is_a_zombie_as_documented(crew: Callable[..., KeyedFleet]) -> None:
    fleet = crew(sticky_on_lease_loss="finish")
    fleet.workers_up("a", "b")
    before = fleet.wait_members("a", "b")
    key = fleet.keys_of(before, "a")[0]
    fleet.publish(key, TIMEOUT + 2.5)
    first = fleet.wait_started(key, 0)
    fleet.workers["a"].kill(signal.SIGSTOP)
    again = wait_until(lambda: runs_of(fleet, key)[1:], TIMEOUT + 10, "the next owner starts it")[0]
    assert processes.running(first.pid) and end_of(fleet, first) is None
    assert again.epoch is not None and first.epoch is not None and again.epoch > first.epoch
    wait_until(lambda: end_of(fleet, first) is not None, 20, "the zombie runs to its end")
    fleet.workers["a"].kill(signal.SIGCONT)
    fleet.wait_finished()
    assert fleet.judge().overlaps


def test_a_frozen_worker_without_slots_is_evicted_too(crew: Callable[..., KeyedFleet]) -> None:
    fleet = crew()
    fleet.workers_up("b")
    before = fleet.wait_members("b")
    idle = fleet.worker("a", env=fleet.environ_with(sticky_weight=0))
    fleet.wait_members("a", "b")
    idle.freeze()
    after = fleet.wait_members("b")
    idle.thaw()
    assert after.epoch == before.epoch
    fleet.wait_members("a", "b")


def test_a_task_that_kills_its_whole_worker_is_buried_and_its_neighbours_are_not(
    crew: Callable[..., KeyedFleet],
) -> None:
    """Guards: starts are counted, not fetches; a start mark survives the death of the whole worker.

    And: a key's next task starts after the broker has confirmed the disposition of the one before, or `bad` #0, which
    ends the moment before its successor kills the worker, would run again after it.
    """
    fleet = crew(sticky_max_attempts=3, sticky_slots=1)
    (worker,) = fleet.workers_up("a")
    fleet.publish("neighbour", 0.0)
    fleet.publish("bad", 0.3)
    fleet.call("poison", "bad")
    for _ in range(3):
        fleet.publish("neighbour", 0.0)
    fleet.publish("bad", 0.0)
    for _ in range(6):
        wait_until(lambda: not worker.alive or fleet.started("bad", 2), 20, "it dies, or the task is buried")
        if worker.alive:
            break
        worker.wait_gone()
        worker.start()
    fleet.wait_started("bad", 2)
    wait_until(lambda: [e.n for e in fleet.judge().lost] == [1], 20, "the neighbours run")
    assert [e.attempt for e in runs_of(fleet, "bad", 1)] == [1, 2, 3]
    assert not steps_back(fleet.events())
    assert {e.key for e in fleet.judge().lost} == {"bad"}
    says_nothing_is_broken(fleet)


# -- refusing ----------------------------------------------------------------------------------


def test_a_worker_with_another_number_of_slots_refuses_to_start_and_names_both(
    crew: Callable[..., KeyedFleet],
) -> None:
    fleet = crew()
    fleet.workers_up("a")
    before = fleet.view()
    other = fleet.worker("b", ready=False, env=fleet.environ_with(sticky_slots=SLOTS + 1))
    assert other.wait(timeout=40) != 0
    assert f"{SLOTS} slots" in other.log and f"{SLOTS + 1} slots" in other.log
    assert fleet.view() == before
