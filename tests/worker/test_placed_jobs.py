"""Jobs in placed keyspaces, with real workers: where they run, how they move, and that none runs twice."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from itertools import pairwise

import pytest
from harness.keyed_fleet import node
from harness.placed_fleet import SLOTS, PlacedFleet
from harness.placed_jobs import PlacedJobs
from harness.placed_tasks import rendezvous

from celery_sticky import Sticky, slot_for
from celery_sticky.drivers import open_job_store
from celery_sticky.errors import AssignmentFailed, DispatchTimeout, NoSuchJob, NotPinned
from celery_sticky.keyspace import workers_of
from celery_sticky.slots import KeyPlace
from celery_sticky.stores.jobs import NewJob
from celery_sticky.testing.history import Kind
from celery_sticky.testing.waiting import wait_until

Placed = Callable[..., PlacedFleet]
KEYS = [f"k{i}" for i in range(8)]


@pytest.fixture
def jobs(placed: Placed) -> Callable[..., PlacedJobs]:
    """Makes a fleet whose workers have jobs, and an eye on them."""
    return lambda keyspace, **settings: PlacedJobs(placed(keyspace, jobs=True, **settings))


def owners(fleet: PlacedFleet, keys: list[str]) -> dict[str, str]:
    """Return the short names of the owners of the keys' slots."""
    owner = fleet.view().owner
    return {key: str(owner[slot_for(key, SLOTS)]).partition("@")[0] for key in keys}


def rightful(fleet: PlacedFleet, keys: list[str]) -> dict[str, str]:
    """Return the short names of the workers that the function `rendezvous` names now."""
    workers = workers_of(fleet.view())
    return {key: rendezvous(key, workers).name.partition("@")[0] for key in keys}


# -- pins ------------------------------------------------------------------------------------------


def test_a_job_runs_where_its_key_is_pinned_and_else_at_the_owner_of_its_slot(
    jobs: Callable[..., PlacedJobs],
) -> None:
    made = jobs("pinned")
    fleet = made.fleet
    fleet.up("a", "b")
    pinned = {f"k{i}": "ab"[i % 2] for i in range(4)}
    for key, name in pinned.items():
        fleet.on(name, "pin", key, "pinned")
    made.dispatch(*KEYS)
    made.wait_at(owners(fleet, KEYS) | pinned)
    for key in KEYS:
        made.notify(key, 1)
        fleet.call(key)
    fleet.wait_finished()
    wait_until(lambda: all(made.notes(key) == [1] for key in KEYS), 20, "all were told")
    assert {key: fleet.ran(key) for key in pinned} == {key: [name] for key, name in pinned.items()}
    info = made.info("k0")
    assert info is not None and info.slot == slot_for("k0", SLOTS) and info.attempt == 1 and info.epoch > 0
    assert all(len(made.ran(key)) == 1 for key in KEYS), "nothing is started without need"
    for key in KEYS:
        made.stop(key)
    assert made.where() == made.running() == {}


def test_a_job_follows_its_pin_and_is_stopped_before_it_starts_elsewhere(jobs: Callable[..., PlacedJobs]) -> None:
    made = jobs("pinned", sticky_job_poll=60.0)
    fleet = made.fleet
    fleet.up("a", "b", "c")
    owner = owners(fleet, ["k"])["k"]
    others = sorted({"a", "b", "c"} - {owner})
    fleet.on(others[0], "pin", "k", "pinned")
    made.dispatch("k", stop=0.4)
    made.wait_at({"k": others[0]})
    fleet.on(others[1], "pin", "k", "pinned", True)
    made.wait_at({"k": others[1]})
    assert fleet.on(others[1], "unpin", "k", "pinned")
    made.wait_at({"k": owner})
    fleet.on(others[0], "pin", "k", "pinned")
    made.wait_at({"k": others[0]})
    assert made.ran("k") == [others[0], others[1], owner, others[0]]
    assert all(run.ended for run in made.runs("k")[:-1]), "each was stopped in order"
    made.check()


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent", "eventlet"])
def test_beside_other_pools_too_a_job_follows_its_pin(jobs: Callable[..., PlacedJobs], pool: str) -> None:
    made = jobs("strict")
    fleet = made.fleet
    fleet.up("a", "b", pool=pool)
    fleet.on("a", "pin", "k", "strict")
    wait_until(lambda: dispatched(made, "k"), 30, "the sender has heard of it")
    fleet.on("b", "pin", "k", "strict", True)
    made.wait_at({"k": "b"})
    made.notify("k", 1)
    wait_until(lambda: made.notes("k") == [1], 20, "it is told")
    assert fleet.workers["b"].stop(timeout=60) == 0
    wait_until(lambda: state(made, "k") == "waiting", 30, "it waits")
    assert made.ran("k") == ["a", "b"]
    made.check()


def test_notifications_reach_a_job_while_it_moves(jobs: Callable[..., PlacedJobs]) -> None:
    made = jobs("pinned")
    fleet = made.fleet
    fleet.up("a", "b")
    for key in KEYS:
        fleet.on("a", "pin", key, "pinned")
    made.dispatch(*KEYS, slow=0.02)
    done = threading.Event()

    def move() -> None:
        for name in "baba":
            for key in KEYS:
                fleet.on(name, "pin", key, "pinned", True)
            made.wait_at(dict.fromkeys(KEYS, name))
        done.set()

    mover = threading.Thread(target=move)
    mover.start()
    sent = 0
    while not done.is_set() and mover.is_alive():
        for key in KEYS:
            made.notify(key, sent)
        sent += 1
        time.sleep(0.02)  # the pace of the sender
    mover.join()

    def all_came() -> bool:
        return all(list(dict.fromkeys(made.notes(key))) == list(range(sent)) for key in KEYS)

    wait_until(all_came, 30, "every notification comes, in order", 0.2)
    made.check()


def test_a_job_waits_until_a_task_of_its_key_has_ended_elsewhere(jobs: Callable[..., PlacedJobs]) -> None:
    made = jobs("pinned")
    fleet = made.fleet
    fleet.up("a", "b")
    fleet.on("a", "pin", "k", "pinned")
    fleet.call("k", 4.0)
    wait_until(lambda: fleet.ran("k") == ["a"], 30, "it runs")
    fleet.on("b", "pin", "k", "pinned", True)
    with pytest.raises(DispatchTimeout):
        made.dispatch("k", timeout=1.0)
    fleet.wait_finished()
    made.wait_at({"k": "b"})
    (end,) = [event for event in fleet.events() if event.kind is Kind.END]
    assert made.runs("k")[0].start.at > end.at


def test_a_job_runs_on_until_the_last_task_of_its_key_has_ended(jobs: Callable[..., PlacedJobs]) -> None:
    made = jobs("pinned")
    fleet = made.fleet
    fleet.up("a", "b")
    fleet.on("a", "pin", "k", "pinned")
    made.dispatch("k")
    made.wait_at({"k": "a"})
    fleet.call("k", 8.0)
    wait_until(lambda: fleet.ran("k") == ["a"], 30, "it runs")
    fleet.on("b", "pin", "k", "pinned", True)
    made.notify("k", 1)
    wait_until(lambda: made.notes("k") == [1], 20, "it is told")
    made.wait_at({"k": "b"})
    (end,) = [event for event in fleet.events() if event.kind is Kind.END]
    before, after = made.runs("k")
    assert before.ended and before.until > end.at, "it stops last"
    assert (after.start.at - before.until) / 1e9 < 4.0
    made.check()


def test_a_task_of_a_key_waits_until_its_job_has_stopped_elsewhere(jobs: Callable[..., PlacedJobs]) -> None:
    made = jobs("pinned", sticky_job_stop_timeout=10.0)
    fleet = made.fleet
    fleet.up("a", "b")
    fleet.on("a", "pin", "k", "pinned")
    made.dispatch("k", stop=3.0)
    fleet.on("b", "pin", "k", "pinned", True)
    wait_until(lambda: Sticky.of(fleet.app).worker_for("k", "pinned") == node("b"), 30, "the sender has heard of it")
    fleet.call("k")
    fleet.wait_finished()
    assert fleet.ran("k") == ["b"]
    assert made.runs("k")[0].ended and made.runs("k")[0].until < fleet.starts()[0].at


def test_jobs_of_a_killed_worker_that_had_pinned_their_keys_run_at_the_owners_of_their_slots(
    jobs: Callable[..., PlacedJobs],
) -> None:
    made = jobs("pinned")
    fleet = made.fleet
    fleet.up("a", "b", "c")
    for key in KEYS:
        fleet.on("b", "pin", key, "pinned")
    made.dispatch(*KEYS)
    made.wait_at(dict.fromkeys(KEYS, "b"))
    fleet.workers["b"].kill()
    fleet.workers["b"].wait_gone()
    fleet.wait_members("a", "c")
    made.wait_at(owners(fleet, KEYS))
    made.check()


def test_a_worker_frozen_past_its_lease_runs_no_job_that_others_have_now(jobs: Callable[..., PlacedJobs]) -> None:
    made = jobs("pinned")
    fleet = made.fleet
    fleet.up("a", "b")
    for key in KEYS:
        fleet.on("b", "pin", key, "pinned")
    made.dispatch(*KEYS)
    fleet.workers["b"].freeze()
    fleet.wait_members("a")
    wait_until(lambda: made.where() == dict.fromkeys(KEYS, "a"), 30, "they run at a")
    fleet.workers["b"].thaw()
    fleet.wait_members("a", "b")
    wait_until(lambda: made.where() == dict.fromkeys(KEYS, "b"), 30, "b hears of what it has lost, and pins it again")
    for key in KEYS:
        epochs = [run.start.epoch or 0 for run in made.runs(key)]
        assert all(one < two for one, two in pairwise(epochs)), epochs


# -- keys that nobody has pinned -------------------------------------------------------------------


def test_where_unpinned_keys_are_refused_jobs_wait_for_a_pin(jobs: Callable[..., PlacedJobs]) -> None:
    made = jobs("strict")
    fleet = made.fleet
    fleet.up("a", "b")
    with pytest.raises(NotPinned, match="key 'k' of keyspace 'strict' is pinned by no live worker"):
        made.dispatch("k")
    with pytest.raises(NotPinned):
        made.notify("k", 1)
    with pytest.raises(NoSuchJob):
        made.stop("k")
    fleet.on("b", "pin", "k", "strict")
    wait_until(lambda: dispatched(made, "k"), 30, "the sender has heard of it")
    made.wait_at({"k": "b"})
    made.notify("k", 1)
    assert fleet.on("b", "unpin", "k", "strict")
    wait_until(lambda: not made.running(), 30, "it is stopped")
    wait_until(lambda: state(made, "k") == "waiting", 30, "and says why it waits")
    info = made.info("k")
    assert info is not None and "is pinned by no live worker" in info.reason
    fleet.on("a", "pin", "k", "strict")
    made.wait_at({"k": "a"})
    assert made.ran("k") == ["b", "a"]
    made.check()


def test_a_job_that_waits_for_a_pin_can_be_stopped(jobs: Callable[..., PlacedJobs]) -> None:
    made = jobs("strict")
    fleet = made.fleet
    fleet.up("a", "b")
    for key in ("k1", "k2", "k3"):
        fleet.on("b", "pin", key, "strict")
        wait_until(lambda key=key: dispatched(made, key), 30, "the sender has heard of it")  # type: ignore[misc]
    assert fleet.on("b", "unpin", "k1", "strict")
    wait_until(lambda: set(made.running()) == {"k2", "k3"}, 30, "it is stopped")
    made.stop("k1")
    fleet.workers["b"].kill()
    fleet.workers["b"].wait_gone()
    fleet.wait_members("a")
    wait_until(lambda: state(made, "k2") == "waiting", 30, "it waits")
    made.stop("k2")
    wait_until(lambda: refused(made, "k3"), 30, "the sender has heard of it")
    made.jobs.shutdown("strict", timeout=20)
    assert made.jobs.list(keyspace="strict") == []


def test_a_schedule_gives_jobs_to_keys_that_are_pinned(jobs: Callable[..., PlacedJobs]) -> None:
    made = jobs("strict")
    fleet = made.fleet
    fleet.up("a", "b")
    fleet.on("a", "pin", "k1", "strict")
    fleet.config.history.with_name("wanted").write_text("k1 k2")
    made.wait_at({"k1": "a"})
    fleet.on("b", "pin", "k2", "strict")
    made.wait_at({"k1": "a", "k2": "b"})
    fleet.config.history.with_name("wanted").write_text("k2")
    made.wait_at({"k2": "b"})
    made.check()


def dispatched(made: PlacedJobs, key: str) -> bool:
    """Dispatch a job, if the key is pinned as far as the sender knows."""
    try:
        made.dispatch(key)
    except NotPinned:
        return False
    return True


def refused(made: PlacedJobs, key: str) -> bool:
    """Whether a note is refused."""
    try:
        made.notify(key, 1)
    except NotPinned:
        return True
    return False


def state(made: PlacedJobs, key: str) -> str:
    """Return what became of the job of a key."""
    info = made.info(key)
    return info.state if info is not None else "gone"


# -- functions -------------------------------------------------------------------------------------


def test_jobs_move_as_the_function_says_when_workers_come_and_go(jobs: Callable[..., PlacedJobs]) -> None:
    made = jobs("custom")
    fleet = made.fleet
    fleet.up("a", "b")
    keys = [f"k{i}" for i in range(24)]
    made.dispatch(*keys)
    before = rightful(fleet, keys)
    made.wait_at(before)
    fleet.up("c")
    after = rightful(fleet, keys)
    made.wait_at(after)
    for key in keys:
        assert made.ran(key) == ([before[key]] if before[key] == after[key] else [before[key], after[key]])
    assert set(after.values()) == {"a", "b", "c"}
    assert fleet.workers["b"].stop(timeout=60) == 0
    fleet.workers.pop("b")
    fleet.wait_members("a", "c")
    made.wait_at(rightful(fleet, keys))
    fleet.workers["c"].kill()
    fleet.workers["c"].wait_gone()
    fleet.wait_members("a")
    made.wait_at(dict.fromkeys(keys, "a"))
    made.check()


def test_a_leaving_worker_stays_a_member_until_its_jobs_have_stopped(jobs: Callable[..., PlacedJobs]) -> None:
    made = jobs("custom", sticky_job_stop_timeout=10.0)
    fleet = made.fleet
    fleet.up("a", "b")
    keys = [key for key, name in rightful(fleet, [f"k{i}" for i in range(16)]).items() if name == "b"][:4]
    made.dispatch(*keys, stop=2.5)
    made.wait_at(dict.fromkeys(keys, "b"))
    fleet.workers["b"].kill(signal.SIGTERM)
    wait_until(lambda: made.where() == dict.fromkeys(keys, "a"), 30, "they run at a", 0.02)
    assert fleet.workers["b"].wait() == 0
    assert all(run.ended for run in made.runs() if run.start.worker == node("b"))
    made.check()


def test_a_function_that_fails_fails_the_dispatch_and_lets_a_job_wait(jobs: Callable[..., PlacedJobs]) -> None:
    made = jobs("broken")
    fleet = made.fleet
    (worker,) = fleet.up("a")
    for key, reason in (("raise", "raised LookupError"), ("stranger", "not one of the workers")):
        with pytest.raises(AssignmentFailed, match=reason):
            made.dispatch(key)
    store = open_job_store(fleet.config.broker, "broken")
    job = NewJob("sync", "raise", KeyPlace("raise"), "j1", b"null")
    store.admit(job, max_queued=10, outcome_ttl=60)
    store.close()
    worker.wait_for_log("jobs of keyspace broken wait: .*LookupError", 30)
    made.dispatch("fine")
    time.sleep(3.0)  # the time in which a hot loop would show
    assert worker.log.count("jobs of keyspace broken wait") <= 4
    assert state(made, "raise") == "waiting" and made.where() == {"fine": "a"}
    made.stop("raise")


def test_a_dispatch_waits_for_a_worker_to_come(jobs: Callable[..., PlacedJobs]) -> None:
    made = jobs("custom")
    with pytest.raises(DispatchTimeout):
        made.dispatch("k", timeout=0.2)
    made.fleet.up("a")
    made.wait_at({"k": "a"})


def test_a_job_that_is_over_leaves_nothing_behind(jobs: Callable[..., PlacedJobs]) -> None:
    made = jobs("both")
    fleet = made.fleet
    fleet.up("a", "b")
    made.dispatch(*KEYS)
    for key in KEYS:
        made.notify(key, "end")
    wait_until(lambda: not made.jobs.list(keyspace="both"), 20, "all are done")
    store = open_job_store(fleet.config.broker, "both")
    assert not (places := store.places(0)) or not places.revisions
    store.close()
    made.dispatch(*KEYS)
    made.check()
