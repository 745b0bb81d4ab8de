"""Jobs in real workers: dispatched, notified, stopped, moved; everything but faults of servers and networks."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.app import AppConfig
from harness.fleet import TESTS
from harness.jobs_fleet import JOB_CONF, JobsFleet
from harness.keyed_fleet import CONF, node

from celery_sticky.errors import (
    DispatchTimeout,
    JobConflict,
    JobExists,
    JobFailed,
    KeyspaceClosed,
    KeyspaceFull,
    NoSuchJob,
    ShutdownTimeout,
)
from celery_sticky.testing.guard import Guard
from celery_sticky.testing.history import Kind
from celery_sticky.testing.servers.valkey import ValkeyServer
from celery_sticky.testing.waiting import wait_until

KEYS = [f"t{n}" for n in range(20)]


@pytest.fixture
def fleet(guard: Guard, valkey: Callable[..., ValkeyServer], tmp_path: Path) -> Iterator[Callable[..., JobsFleet]]:
    """Makes fleets, each on a server of its own."""
    fleets: list[JobsFleet] = []

    def make(**settings: Any) -> JobsFleet:
        directory = tmp_path / f"jobs{len(fleets)}"
        directory.mkdir()
        conf = {**CONF, **JOB_CONF, "sticky_runtime_dir": str(directory / "run"), **settings}
        fleets.append(JobsFleet(guard, directory, AppConfig(valkey().url, directory / "history.jsonl", conf=conf)))
        return fleets[-1]

    yield make
    for made in fleets:
        made.teardown()


def dispatch_all(fleet: JobsFleet, name: str = "sync", keys: list[str] = KEYS) -> None:
    for key in keys:
        fleet.jobs.dispatch(name, key, {"key": key}, timeout=20)


# -- one job for each key --------------------------------------------------------------------------


@pytest.mark.smoke
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent", "eventlet"])
def test_a_job_is_dispatched_notified_and_stopped_beside_every_pool(fleet: Callable[..., JobsFleet], pool: str) -> None:
    made = fleet()
    made.worker("a", pool=pool)
    jobs = made.jobs
    job_id = jobs.dispatch("sync", "t-7", {"url": "x"}, timeout=20)
    info = jobs.get("sync", "t-7")
    assert info is not None
    assert (info.state, info.worker, info.payload, info.id) == ("running", node("a"), {"url": "x"}, job_id)
    assert (info.attempt, info.epoch > 0) == (1, True)
    for n in range(5):
        jobs.notify("sync", "t-7", n)
    wait_until(lambda: made.notes("t-7") == list(range(5)), 10, "notified in order")
    jobs.stop("sync", "t-7", timeout=10)
    assert jobs.list() == []
    assert made.running() == {}
    n = made.publish("plain-key")
    made.wait_started("plain-key", n)
    assert made.workers["a"].stop() == 0


def test_jobs_that_are_classes(fleet: Callable[..., JobsFleet]) -> None:
    made = fleet()
    made.worker("a")
    made.jobs.dispatch("poll", "t-7", timeout=20)
    made.jobs.notify("poll", "t-7", 1)
    wait_until(lambda: made.notes("t-7") == [1], 10, "notified")
    made.jobs.stop("poll", "t-7", timeout=10)
    assert made.running() == {}
    with pytest.raises(JobFailed, match="ValueError: not today"):
        made.jobs.dispatch("poll", "t-8", {"raise": "not today"}, timeout=20)


def test_a_failed_start_is_told_and_leaves_nothing(fleet: Callable[..., JobsFleet]) -> None:
    made = fleet()
    made.worker("a")
    with pytest.raises(JobFailed, match=r"job 'sync' of key 't-7' failed to start: ValueError: not today"):
        made.jobs.dispatch("sync", "t-7", {"raise": "not today"}, timeout=20)
    assert made.jobs.list() == []
    made.jobs.dispatch("sync", "t-7", timeout=20)


def test_a_job_whose_name_no_worker_knows_fails_and_says_what_there_is(fleet: Callable[..., JobsFleet]) -> None:
    made = fleet()
    made.worker("a")
    with pytest.raises(JobFailed, match=r"no job default/other .*default/poll"):
        made.jobs.dispatch("other", "t-7", timeout=20)


def test_one_job_for_each_name_and_key(fleet: Callable[..., JobsFleet]) -> None:
    made = fleet()
    made.worker("a")
    outcomes: list[object] = []

    def dispatch() -> None:
        try:
            outcomes.append(made.jobs.dispatch("sync", "t-7", timeout=20))
        except JobExists as error:
            outcomes.append(error)

    threads = [threading.Thread(target=dispatch) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(outcome, str) for outcome in outcomes) == 1
    assert len(outcomes) == 20
    made.jobs.dispatch("poll", "t-7", timeout=20)
    assert {info.name for info in made.jobs.list()} == {"sync", "poll"}


def test_a_dispatch_that_timed_out_is_repeated_with_its_id(fleet: Callable[..., JobsFleet]) -> None:
    made = fleet()
    with pytest.raises(DispatchTimeout, match=r"did not start within 0.1 s.* id=") as late:
        made.jobs.dispatch("sync", "t-7", {"n": 1}, timeout=0.1)
    with pytest.raises(JobExists):
        made.jobs.dispatch("sync", "t-7", {"n": 1}, timeout=0.1)
    with pytest.raises(JobConflict, match="use a new id"):
        made.jobs.dispatch("sync", "t-7", {"n": 2}, timeout=0.1, id=late.value.id)
    made.worker("a")
    assert made.jobs.dispatch("sync", "t-7", {"n": 1}, timeout=20, id=late.value.id) == late.value.id
    assert len(made.job_events(Kind.START)) == 1


def test_starts_in_waiting_are_bounded(fleet: Callable[..., JobsFleet]) -> None:
    made = fleet(sticky_job_max_queued=3)
    for n in range(3):
        made.jobs.admit("sync", f"t-{n}")
    with pytest.raises(KeyspaceFull, match=r"3 jobs .* sticky_job_max_queued"):
        made.jobs.admit("sync", "t-3")
    made.worker("a")
    made.wait_running({"t-0", "t-1", "t-2"})
    made.jobs.dispatch("sync", "t-3", timeout=20)


def test_what_is_not_there_is_said(fleet: Callable[..., JobsFleet]) -> None:
    made = fleet()
    with pytest.raises(NoSuchJob, match="no job 'sync' of key 't-7' in keyspace 'default'"):
        made.jobs.notify("sync", "t-7", 1)
    with pytest.raises(NoSuchJob):
        made.jobs.stop("sync", "t-7")
    assert made.jobs.get("sync", "t-7") is None


def test_a_job_that_is_stopped_before_it_starts_never_starts(fleet: Callable[..., JobsFleet]) -> None:
    made = fleet()
    job_id = made.jobs.admit("sync", "t-7")
    made.jobs.stop("sync", "t-7")
    with pytest.raises(JobFailed, match="stopped before"):
        made.jobs.dispatch("sync", "t-7", timeout=1, id=job_id)
    made.worker("a")
    made.jobs.dispatch("sync", "t-8", timeout=20)
    assert made.running().keys() == {"t-8"}
    assert {event.key for event in made.job_events(Kind.START)} == {"t-8"}


def test_a_job_ends_by_itself_or_fails_and_is_started_again(fleet: Callable[..., JobsFleet]) -> None:
    made = fleet()
    made.worker("a")
    dispatch_all(made, keys=["t-1", "t-2"])
    made.jobs.notify("sync", "t-1", "end")
    wait_until(lambda: made.jobs.get("sync", "t-1") is None, 10, "t-1 is done")
    made.jobs.notify("sync", "t-2", "fail")
    wait_until(lambda: made.infos()["t-2"].state == "failing", 10, "t-2 shows as failing")
    assert made.infos()["t-2"].error == "RuntimeError: as told"
    wait_until(lambda: made.infos()["t-2"].state == "running", 10, "t-2 runs again")
    assert made.infos()["t-2"].attempt == 2
    assert made.overlaps() == []


# -- moves -----------------------------------------------------------------------------------------


def test_jobs_move_when_workers_join_and_leave(fleet: Callable[..., JobsFleet]) -> None:
    made = fleet()
    made.worker("a")
    dispatch_all(made)
    before = made.wait_running(KEYS, "a")
    made.worker("b")
    made.wait_members("a", "b")
    shared = made.wait_running(KEYS, "a", "b")
    moved = {key for key, info in shared.items() if info.worker != before[key].worker}
    assert moved
    for key, info in shared.items():
        assert info.payload == {"key": key}
        assert (info.epoch > before[key].epoch) == (key in moved)
        assert info.attempt == (2 if key in moved else 1), "nothing is started without need"
    assert made.workers["a"].stop(timeout=60) == 0
    made.wait_running(KEYS, "b")
    assert made.overlaps() == []
    starts = {key: sum(e.key == key for e in made.job_events(Kind.START)) for key in KEYS}
    assert all(count <= 3 for count in starts.values()), starts


def test_jobs_of_a_killed_worker_start_elsewhere(fleet: Callable[..., JobsFleet]) -> None:
    made = fleet()
    made.workers_up("a", "b", "c")
    dispatch_all(made)
    before = made.wait_running(KEYS)
    made.workers["a"].kill()
    made.workers["a"].wait_gone()
    made.wait_running(KEYS, "b", "c")
    assert made.overlaps() == []
    for key, info in made.infos().items():
        assert (info.attempt == 1) == (before[key].worker != node("a"))


def test_notifications_reach_a_job_while_it_moves(fleet: Callable[..., JobsFleet]) -> None:
    made = fleet()
    made.workers_up("a", "b")
    for key in KEYS:
        made.jobs.dispatch("sync", key, {"slow": 0.03}, timeout=20)  # slower than they come: some wait in its inbox
    made.wait_running(KEYS)
    done = threading.Event()
    sent = 0

    def stop() -> None:
        made.workers["a"].stop(timeout=60)
        done.set()

    stopper = threading.Thread(target=stop)
    stopper.start()
    while not done.is_set() or sent < 20:
        for key in KEYS:
            made.jobs.notify("sync", key, sent)
        sent += 1
        time.sleep(0.02)  # the pace of the sender
    stopper.join()
    made.wait_running(KEYS, "b")

    def all_came() -> bool:
        return all(list(dict.fromkeys(made.notes(key))) == list(range(sent)) for key in KEYS)

    wait_until(all_came, 20, "every notification comes, in order", 0.2)


def test_a_host_that_dies_is_replaced_and_its_jobs_with_it(fleet: Callable[..., JobsFleet]) -> None:
    made = fleet()
    worker = made.worker("a")
    dispatch_all(made)
    made.jobs.notify("sync", KEYS[0], "die")
    worker.wait_for_log(r"the job host has died \(exit status 3\)", 20)
    made.wait_running(KEYS, "a")
    wait_until(lambda: len(made.job_events(Kind.START)) >= 2 * len(KEYS), 20, "each is started once more")
    assert len(made.job_events(Kind.START)) == 2 * len(KEYS)
    assert worker.stop() == 0


def test_a_start_that_ends_the_host_each_time_is_given_up_and_its_neighbours_run_on(
    fleet: Callable[..., JobsFleet],
) -> None:
    made = fleet(sticky_max_attempts=3)
    made.worker("a")
    for key in KEYS[:5]:
        made.jobs.admit("sync", key)
    with pytest.raises(JobFailed, match="starts ended without a result: the job kills the process it starts in"):
        made.jobs.dispatch("sync", "bad", {"die": True}, timeout=60)
    made.wait_running(KEYS[:5], "a")
    assert all(info.error == "" for info in made.infos().values())


def test_a_job_that_does_not_stop_ends_with_its_host(fleet: Callable[..., JobsFleet]) -> None:
    made = fleet(sticky_job_stop_timeout=0.5)
    worker = made.worker("a")
    made.jobs.dispatch("stubborn", "t-1", timeout=20)
    made.jobs.dispatch("sync", "t-2", timeout=20)
    made.jobs.stop("stubborn", "t-1", timeout=20)
    worker.wait_for_log(r"did not stop in time; killing the job host", 20)
    made.wait_running({"t-2"})
    made.jobs.dispatch("stubborn", "t-3", timeout=20)
    assert worker.stop() == 0, "nor does it keep the worker"


def test_a_job_that_blocks_the_loop_does_not_keep_its_slot(fleet: Callable[..., JobsFleet]) -> None:
    made = fleet(sticky_job_stop_timeout=0.5)
    made.workers_up("a", "b")
    made.jobs.dispatch("blocking", "t-1", 600, timeout=20)
    first = made.wait_running({"t-1"})["t-1"].worker
    made.jobs.notify("blocking", "t-1")
    name = first.partition("@")[0]
    assert made.workers[name].stop(timeout=60) == 0
    made.wait_running({"t-1"}, *({"a", "b"} - {name}))
    assert made.overlaps() == []


def test_a_start_that_takes_too_long_fails(fleet: Callable[..., JobsFleet]) -> None:
    made = fleet(sticky_job_start_timeout=0.5)
    made.worker("a")
    with pytest.raises(JobFailed, match=r"its start took longer than 0\.5 s"):
        made.jobs.dispatch("poll", "t-1", {"slow": 1.5}, timeout=20)
    assert made.running() == {}


def test_a_worker_whose_job_host_does_not_come_up_takes_no_slots_until_it_does(
    fleet: Callable[..., JobsFleet], tmp_path: Path
) -> None:
    made = fleet(sticky_broker_grace=1.0)
    mendable = tmp_path / "mendable.py"
    mended, broken = "from harness.jobs_app import app\n", "import no_such_driver\n"
    mendable.write_text("import time; time.sleep(600)\n")
    path = os.pathsep.join([str(tmp_path), str(TESTS), str(TESTS.parent)])
    made.worker("a")
    environ = {**made.environ_with(sticky_job_app="mendable"), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    other = made.worker("b", env=environ)
    other.wait_for_log(r"has not loaded the app within 10 s\..* stays out", 20)
    made.wait_members("a")
    mendable.write_text(mended)
    os.kill(host_of(made, "b"), signal.SIGKILL)
    made.wait_members("a", "b")
    dispatch_all(made)
    mendable.write_text(broken)
    os.kill(host_of(made, "b"), signal.SIGKILL)
    other.wait_for_log(r"has not loaded the app: mendable: ModuleNotFoundError.*no_such_driver.*sticky_job_app", 20)
    made.wait_members("a")
    made.wait_running(KEYS, "a")
    mendable.write_text(mended)
    made.wait_members("a", "b")
    made.wait_running(KEYS, "a", "b")
    assert made.overlaps() == []


# -- all of a keyspace -----------------------------------------------------------------------------


def test_shutdown_stops_everything_everywhere_and_reopen_undoes_it(fleet: Callable[..., JobsFleet]) -> None:
    made = fleet()
    made.workers_up("a", "b")
    dispatch_all(made)
    made.jobs.shutdown(timeout=20)
    assert made.running() == {}
    assert made.jobs.list() == []
    made.jobs.shutdown(timeout=20)
    with pytest.raises(KeyspaceClosed, match="reopen"):
        made.jobs.dispatch("sync", "t-1", timeout=20)
    made.jobs.reopen()
    made.jobs.dispatch("sync", "t-1", timeout=20)


def test_a_shutdown_without_workers_says_what_is_left(fleet: Callable[..., JobsFleet]) -> None:
    made = fleet()
    worker = made.worker("a")
    made.jobs.dispatch("sync", "t-1", timeout=20)
    worker.kill_all()
    with pytest.raises(ShutdownTimeout, match=r"1 jobs are left after 0.2 s: sync of 't-1'"):
        made.jobs.shutdown(timeout=0.2)
    made.worker("b")
    made.jobs.shutdown(timeout=20)
    assert len(made.job_events(Kind.START)) == 1


# -- schedules -------------------------------------------------------------------------------------


def test_a_schedule_runs_on_one_worker_and_moves_with_it(fleet: Callable[..., JobsFleet]) -> None:
    made = fleet()
    made.workers_up("a", "b")
    wanted = made.config.history.with_name("wanted")
    wanted.write_text("p1 p2 p3")
    made.wait_running({"p1", "p2", "p3"})
    assert made.infos()["p1"].payload == {"of": "plan"}
    since = time.monotonic_ns()  # before, it may have moved from the first worker to the second
    wanted.write_text("p2 p3 p4")
    made.wait_running({"p2", "p3", "p4"})
    who = {event.task_id for event in made.events() if event.key == "schedule" and event.at > since}
    assert len(who) == 1, "one host has run it"
    for name in ("a", "b"):
        if str(host_of(made, name)) in who:
            made.workers[name].kill_all()
            break
    wanted.write_text("p5")
    made.wait_running({"p5"}, *({"a", "b"} - {name}))

    def ticks() -> list[tuple[int, str]]:
        return [(event.n, event.task_id) for event in made.events() if event.key == "tick"]

    wait_until(lambda: len(ticks()) > 4, 20, "it ticks on")
    # A tick that was claimed at the end of its period is noted down in the next one, which has a tick of its own.
    assert len(set(ticks())) == len({number for number, _ in ticks()}), "one worker a tick"


def host_of(fleet: JobsFleet, name: str) -> int:
    """Return the process that runs a worker's jobs."""
    worker = fleet.workers[name]
    hosts = [pid for pid in worker.children if b"job_host" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(hosts) == 1, worker.children
    return hosts[0]
