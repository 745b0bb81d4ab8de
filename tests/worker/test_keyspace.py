"""Keyspaces with an assign function, with real workers: under joins, leaves, kills and freezes."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest
from harness.keyed_fleet import node
from harness.placed_fleet import SLOTS, PlacedFleet
from harness.placed_tasks import rendezvous

from celery_sticky import Sticky, Worker, jump
from celery_sticky.drivers import open_job_store
from celery_sticky.errors import AssignmentFailed, KeyspaceMismatch, NoWorker, StoreUnavailable
from celery_sticky.keys import HASH_NAME, slot_for
from celery_sticky.keyspace import workers_of
from celery_sticky.stores.jobs import NewJob, Report, RunResult
from celery_sticky.testing.history import Kind
from celery_sticky.testing.judge import Judgement
from celery_sticky.testing.measure import SECOND
from celery_sticky.testing.servers.valkey import ValkeyServer
from celery_sticky.testing.waiting import wait_until

Placed = Callable[..., PlacedFleet]
TASKS = int(os.environ.get("STICKY_TEST_TASKS", "600"))
KEYS = 60
SECONDS = 0.004
FUNCTIONS = {"jumped": jump, "custom": rendezvous}
both = pytest.mark.parametrize("keyspace", ["jumped", "custom"])


def wait_half(fleet: PlacedFleet) -> None:
    """Wait until some tasks have run, and by far not all."""
    wait_until(lambda: len(fleet.starts()) > TASKS // 10, 60, f"the work is under way\n{fleet}", 0.01)


def finish(fleet: PlacedFleet, *, frozen: tuple[int, int] = (0, 0)) -> Judgement:
    """Publish the other half, wait until everything has run, and see that no two workers ran one key at a time.

    The documented limit: a process that was frozen inside a task may do a little more of it when it is thawed.
    """
    fleet.publish_many(TASKS - TASKS // 2, KEYS, SECONDS)
    fleet.wait_finished(timeout=90)
    judged = fleet.judge()
    still, thawed = frozen
    zombies = [o for o in judged.overlaps if o.first.start.at < still and o.first.until < thawed + 2 * SECOND]
    judged = replace(judged, overlaps=tuple(o for o in judged.overlaps if o not in zombies))
    assert not judged.lost and not judged.overlaps, judged.describe()
    assert len({o.first.start.task_id for o in zombies}) <= 2, "no more than one for each process of its pool"
    assert not fleet.dead(), [one.info for one in fleet.dead()]
    assert not fleet.steps_back(), "a token fell: a former holder ran a key"
    return judged


def rightful(fleet: PlacedFleet, key: str) -> str:
    """Return the short name of the worker that the function names now."""
    workers: tuple[Worker, ...] = workers_of(fleet.view())
    return FUNCTIONS[fleet.keyspace](key, workers).name.partition("@")[0]


@both
def test_each_key_runs_at_the_worker_that_the_function_names(placed: Placed, keyspace: str) -> None:
    fleet = placed(keyspace)
    fleet.up("a", "b", "c")
    fleet.publish_many(KEYS * 3, KEYS)
    fleet.wait_finished()
    for i in range(KEYS):
        assert fleet.ran(f"k{i}") == [rightful(fleet, f"k{i}")] * 3
    assert {fleet.ran(f"k{i}")[0] for i in range(KEYS)} == {"a", "b", "c"}
    assert fleet.judge().ok, "in order too, while nobody comes or goes"


@both
def test_a_join_moves_keys_and_no_key_runs_twice_at_a_time(placed: Placed, keyspace: str) -> None:
    fleet = placed(keyspace)
    fleet.up("a", "b")
    fleet.publish_many(TASKS // 2, KEYS, SECONDS)
    wait_half(fleet)
    fleet.worker("c", ready=False)
    fleet.wait_members("a", "b", "c")
    finish(fleet)
    assert any(event.worker == node("c") for event in fleet.starts())
    assert not fleet.judge().duplicates, "between the living nothing runs twice"


@both
def test_a_worker_told_to_stop_passes_its_keys_on(placed: Placed, keyspace: str) -> None:
    fleet = placed(keyspace)
    fleet.up("a", "b", "c")
    fleet.publish_many(TASKS // 2, KEYS, SECONDS)
    wait_half(fleet)
    fleet.workers["b"].kill(signal.SIGTERM)
    finish(fleet)
    assert fleet.workers["b"].wait() == 0
    wait_until(lambda: fleet.empty("b"), 30, "its queue is emptied")
    assert set(fleet.view().members) == {node("a"), node("c")}
    assert not fleet.judge().duplicates, "a warm shutdown runs nothing twice"


@pytest.mark.parametrize("pool", ["threads", "gevent", "eventlet"])
def test_an_idle_worker_told_to_stop_is_gone_at_once_however_long_celery_takes(placed: Placed, pool: str) -> None:
    """Guards: with greenlets Celery's own loop ends only 2 to 4 s later, and ours must not wait for it."""
    fleet = placed("jumped")
    fleet.up("a")
    leaver = fleet.worker("b", pool=pool)
    fleet.wait_members("a", "b")
    leaver.kill(signal.SIGTERM)
    fleet.wait_members("a", timeout=1.5)
    assert leaver.wait() == 0


@both
def test_a_killed_worker_is_emptied_to_the_others_in_order(placed: Placed, keyspace: str) -> None:
    fleet = placed(keyspace)
    fleet.up("a", "b", "c")
    fleet.publish_many(TASKS // 2, KEYS, SECONDS)
    wait_half(fleet)
    fleet.workers["b"].kill()
    fleet.workers["b"].wait_gone()
    fleet.publish_many(KEYS * 2, KEYS, SECONDS)
    assert fleet.depth("b").waiting > KEYS // 10, "senders do not know yet"
    fleet.wait_members("a", "c")
    fleet.wait_finished()
    assert fleet.judge().ok, "emptied in order, and nothing was sent meanwhile"
    finish(fleet)
    assert fleet.empty("b")


@both
def test_a_worker_frozen_past_its_lease_runs_no_key_that_others_have_now(placed: Placed, keyspace: str) -> None:
    fleet = placed(keyspace)
    fleet.up("a", "b")
    fleet.publish_many(TASKS // 2, KEYS, SECONDS)
    wait_half(fleet)
    fleet.workers["b"].freeze()
    still = time.monotonic_ns()
    fleet.publish_many(KEYS * 2, KEYS, SECONDS)
    assert fleet.depth("b").waiting > KEYS // 10, "senders do not know yet"
    fleet.wait_members("a")
    wait_until(lambda: fleet.empty("b"), 60, "its queue is emptied")
    thawed = time.monotonic_ns()
    fleet.workers["b"].thaw()
    fleet.wait_members("a", "b")
    finish(fleet, frozen=(still, thawed))


def test_a_key_waits_until_the_worker_that_runs_it_has_ended_it(placed: Placed) -> None:
    fleet = placed("jumped")
    fleet.up("a")
    keys = [f"k{i}" for i in range(8)]
    for key in keys:
        fleet.call(key, 3.0 if key in ("k0", "k1") else 0.0)
    wait_until(lambda: {"k0", "k1"} <= {e.key for e in fleet.starts()}, 30, "two long ones run")
    fleet.up("b", "c")
    for key in keys:
        fleet.call(key)
    fleet.wait_finished()
    judged = fleet.judge()
    assert judged.ok, judged.describe()


def test_a_message_behind_a_running_task_goes_on_when_its_key_belongs_elsewhere(placed: Placed) -> None:
    fleet = placed("custom")
    fleet.up("a")
    workers = [Worker(node("a")), Worker(node("b"))]
    key = next(f"k{i}" for i in range(100) if rendezvous(f"k{i}", workers).name == node("b"))
    fleet.call(key, 6.0)
    wait_until(lambda: fleet.ran(key) == ["a"], 30, "it runs")
    fleet.call(key)
    fleet.up("b")
    wait_until(lambda: fleet.depth("b").in_flight == 1, 30, f"the second was passed on\n{fleet}")
    assert fleet.ran(key) == ["a"], "and waits until the first has ended"
    fleet.wait_finished()
    assert fleet.ran(key) == ["a", "b"] and fleet.judge().ok


def test_a_retry_and_a_task_with_an_eta_outlive_their_worker(placed: Placed) -> None:
    fleet = placed("custom")
    fleet.up("a", "b")
    keys = [f"k{i}" for i in range(8)]
    for key in keys:
        fleet.call(key, 0.0, 4.0)
        fleet.call(f"{key}-eta", countdown=4.0)
    wait_until(lambda: {e.key for e in fleet.starts()} >= set(keys), 30, "all have run once")
    settled = [f"all of {name} is settled" for name in "ab"]
    for name, what in zip("ab", settled, strict=True):
        wait_until(lambda name=name: not fleet.depth(name).in_flight, 30, what)  # type: ignore[misc]
    fleet.workers["b"].kill()
    fleet.workers["b"].wait_gone()
    fleet.wait_finished(timeout=90)
    judged = fleet.judge()
    assert not judged.overlaps, judged.describe()
    assert sum(len(fleet.ran(key)) for key in keys) == 16
    assert not fleet.dead()


def test_poison_is_buried_and_takes_nobody_along(placed: Placed) -> None:
    fleet = placed("jumped", sticky_max_attempts=2)
    fleet.up("a", "b", "c", "d")
    fleet.call("poison", 0.3, task="kill")  # when others are fetched, so that they are suspects too
    fleet.publish_many(40, 20, 0.4)
    wait_until(fleet.dead, 90, f"it is buried\n{fleet}", 0.1)
    wait_until(lambda: {e.key for e in fleet.judge().lost} == {"poison"}, 60, "all else has run", 0.1)
    (dead,) = fleet.dead()
    assert "never finished" in dead.info and len(fleet.ran("poison")) == 2, "as often as allowed"


def test_a_queue_of_a_slot_is_served_too(placed: Placed) -> None:
    fleet = placed("jumped")
    fleet.up("a", "b")
    slot_queue = f"sticky.jumped.{0}"
    for i in range(12):
        fleet.call(f"k{i}", queue=slot_queue)
    wait_until(lambda: len(fleet.starts()) + len(fleet.dead()) == 12, 30, "all are seen to")
    right = [e for e in fleet.starts() if e.worker == node(rightful(fleet, e.key))]
    assert len(right) == len(fleet.starts()) >= 1


# -- bad functions --------------------------------------------------------------------------------


def test_a_function_that_fails_fails_the_send(placed: Placed) -> None:
    fleet = placed("broken")
    fleet.up("a")
    with pytest.raises(AssignmentFailed, match=r"keyspace 'broken', key 'raise'.*'broken' raised LookupError"):
        fleet.call("raise")
    with pytest.raises(AssignmentFailed, match=f"returned 'a stranger', which is not one of the workers: {node('a')}"):
        fleet.call("stranger")
    fleet.call("fine")
    fleet.wait_finished()


def test_a_function_that_fails_at_the_worker_buries_the_message_with_its_reason(placed: Placed) -> None:
    fleet = placed("broken")
    fleet.up("a")
    result = fleet.call("raise", queue=f"sticky.broken.@{node('a')}")
    wait_until(fleet.dead, 30, "it is buried")
    assert "LookupError" in fleet.dead()[0].info
    with pytest.raises(AssignmentFailed, match="raised LookupError"):
        result.get(timeout=30)


def test_functions_that_do_not_agree_bury_after_so_many_hops(placed: Placed) -> None:
    fleet = placed("quarrel")
    fleet.worker("a", ready=False, env={"STICKY_TEST_SAYS": "b"})
    fleet.worker("b", ready=False, env={"STICKY_TEST_SAYS": "a"})
    fleet.wait_members("a", "b")
    result = fleet.call("k")
    wait_until(fleet.dead, 30, "it is buried")
    assert "the workers disagree" in fleet.dead()[0].info
    with pytest.raises(AssignmentFailed, match="the workers disagree"):
        result.get(timeout=30)
    assert not fleet.starts()


def test_a_worker_with_another_function_refuses_to_start(placed: Placed) -> None:
    fleet = placed("jumped")
    view = fleet.view()
    made_with = view.hash.replace("assign=jump", "assign=rendezvous")
    assert made_with != view.hash
    assert fleet.store.swap(view, replace(view, hash=made_with, version=view.version + 1))
    worker = fleet.worker("a", ready=False)
    worker.wait_for_log("assign=rendezvous.*assign=jump", 60)
    assert worker.wait() != 0
    with pytest.raises(KeyspaceMismatch, match="assign=rendezvous"):
        fleet.call("k")


def test_a_keyspace_that_was_a_plain_one_says_what_was_forgotten_and_what_to_do(placed: Placed) -> None:
    fleet = placed("jumped")
    view = fleet.view()
    assert fleet.store.swap(view, replace(view, hash=HASH_NAME, version=view.version + 1))
    worker = fleet.worker("a", ready=False)
    remedy = "Declare 'jumped' here as a plain keyspace, .*celery sticky init --force --keyspace jumped"
    worker.wait_for_log(f"keyspace 'jumped': the keyspace was created with .*{remedy}", 60)
    assert worker.wait() != 0
    with pytest.raises(KeyspaceMismatch, match=remedy):
        fleet.call("k")


def test_jobs_left_when_a_keyspace_became_placed_say_so_and_the_remedy_helps(placed: Placed) -> None:
    fleet = placed("jumped", jobs=True)
    slot = slot_for("left", SLOTS)
    with closing(open_job_store(fleet.config.broker, "jumped")) as store:
        store.admit(NewJob("sync", "left", slot, "left", b"null"), max_queued=9, outcome_ttl=60)
        store.open(slot, 1)
        store.reserve(slot, 1, "before", ["left"])
        store.settle(slot, 1, [Report("left", RunResult.STARTED)], [], outcome_ttl=60)
    fleet.up("a")
    jobs = Sticky.of(fleet.app).jobs
    remedy = r"became a placed keyspace, .*sticky\.jobs\.shutdown\('jumped'\)"
    wait_until(lambda: re.search(remedy, jobs.list(keyspace="jumped")[0].error), 30, "it is told")
    assert len(re.findall(remedy, fleet.workers["a"].log)) == 1, "in the log too"
    jobs.shutdown("jumped", timeout=20)
    jobs.reopen("jumped")
    jobs.dispatch("sync", "left", keyspace="jumped", timeout=20)


def test_without_a_worker_nothing_can_be_sent(placed: Placed) -> None:
    fleet = placed("jumped")
    with pytest.raises(NoWorker, match="no live worker takes part in keyspace 'jumped'"):
        fleet.call("k")


def test_without_the_store_nothing_is_sent(placed: Placed, valkey: Callable[..., ValkeyServer]) -> None:
    server = valkey()
    fleet = placed("jumped", broker=server.url)
    server.freeze()
    try:
        with pytest.raises(StoreUnavailable):
            fleet.app.tasks["jumped.record"].apply_async(("k", 0))
    finally:
        server.thaw()
    assert not [e for e in fleet.events() if e.kind is Kind.PUBLISHED]
