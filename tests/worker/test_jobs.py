"""Jobs in real workers: dispatched, notified, stopped, moved; everything but faults of servers and networks."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness.fleet import TESTS
from harness.jobs_fleet import SCHEDULES, JobsFleet, host_of, hosts_of
from harness.keyed_fleet import TIMEOUT, node

from celery_sticky.errors import (
    DispatchTimeout,
    JobConflict,
    JobExists,
    JobFailed,
    KeyspaceClosed,
    KeyspaceFull,
    NoSuchJob,
    ShutdownTimeout,
    StopFailed,
)
from celery_sticky.ownership import changes
from celery_sticky.ownership.view import Member
from celery_sticky.testing.history import Kind
from celery_sticky.testing.waiting import wait_until

KEYS = [f"t{n}" for n in range(20)]


@pytest.fixture
def fleet(jobs_fleet: Callable[..., JobsFleet]) -> Callable[..., JobsFleet]:
    return jobs_fleet


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


def test_jobs_that_are_plain_functions(fleet: Callable[..., JobsFleet]) -> None:
    made = fleet(sticky_job_max_deliveries=1)
    made.worker("a")
    dispatch_all(made, "plain", ["t-1", "t-2"])
    made.jobs.notify("plain", "t-1", 1)
    wait_until(lambda: made.notes("t-1") == [1], 10, "notified")
    made.jobs.notify("plain", "t-2", "fail")
    wait_until(lambda: made.infos()["t-2"].attempt == 2, 10, "started again")
    assert [dead.error for dead in made.jobs.dead.list()] == ["as told"]
    made.jobs.notify("plain", "t-2", "end")
    wait_until(lambda: made.jobs.get("plain", "t-2") is None, 10, "it is done")
    made.worker("b")
    assert made.workers["a"].stop() == 0
    made.wait_running({"t-1"}, "b")
    assert made.overlaps() == []


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
    made = fleet(sticky_job_max_deliveries=1)
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


def slot_mate(fleet: JobsFleet, key: str, prefix: str) -> str:
    """Return another key of the same slot."""
    return next(f"{prefix}{n}" for n in range(10_000) if fleet.slot_of(f"{prefix}{n}") == fleet.slot_of(key))


class Handover:
    """The handover of a job's slot from `a` to `b`, in which a task of another key runs until `end_task`."""

    def __init__(self, fleet: JobsFleet, job: str, directory: Path) -> None:
        self._fleet, self._job, self._file = fleet, job, directory / "end"
        self._task, self.fresh = slot_mate(fleet, job, "task"), slot_mate(fleet, job, "fresh")
        self._slot = fleet.slot_of(job)
        fleet.wait_started(self._task, fleet.call("awaits", self._task, str(self._file)))

    def check_under_way(self) -> None:
        """Check that jobs run and start in the slot as before, although it is to move."""
        fleet = self._fleet
        fleet.wait_view(lambda view: view.target[self._slot] == node("b"))
        fleet.jobs.dispatch("sync", self.fresh, {"key": self.fresh}, timeout=20)
        fleet.jobs.notify("sync", self._job, 1)
        wait_until(lambda: fleet.notes(self._job) == [1], 20, "it is told")
        fleet.jobs.dispatch("sync", stopped := slot_mate(fleet, self._job, "stopped"), timeout=20)
        fleet.jobs.stop("sync", stopped, timeout=20)
        assert {fleet.running()[key] for key in (self._job, self.fresh)} == {node("a")}

    def end_task(self) -> None:
        """Let the task end."""
        self._file.touch()

    def check_end(self) -> None:
        """Wait until the slot's jobs run at `b`; check that this one ran at `a` until the task had ended."""
        fleet, jobs = self._fleet, (self._job, self.fresh)
        wait_until(lambda: {fleet.running().get(key) for key in jobs} == {node("b")}, 30, "the slot's jobs run at b")
        (end,) = [event for event in fleet.events() if event.key == self._task and event.kind is Kind.END]
        before, after = [run for run in fleet.runs() if run.start.key == self._job]
        assert before.ended and before.until > end.at, "it stops last"
        assert (after.start.at - before.until) / 1e9 < TIMEOUT
        assert fleet.overlaps() == []


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_job_runs_on_until_the_last_task_of_its_slot_has_ended(
    fleet: Callable[..., JobsFleet], pool: str, tmp_path: Path
) -> None:
    made = fleet()
    made.worker("a", pool=pool)
    dispatch_all(made)
    made.wait_running(KEYS, "a")
    view = made.view()
    assert view is not None
    shared = changes.join(view, Member(node("b"), "b-0"))
    handover = Handover(made, next(key for key in KEYS if shared.target[made.slot_of(key)] == node("b")), tmp_path)
    made.worker("b", pool=pool)
    handover.check_under_way()
    handover.end_task()
    made.wait_running([*KEYS, handover.fresh], "a", "b")
    handover.check_end()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_job_of_a_worker_that_stops_runs_on_until_the_last_task_of_its_slot_has_ended(
    fleet: Callable[..., JobsFleet], pool: str, tmp_path: Path
) -> None:
    made = fleet()
    made.workers_up("a", "b", pool=pool)
    dispatch_all(made)
    moving = next(key for key, info in made.wait_running(KEYS).items() if info.worker == node("a"))
    handover = Handover(made, moving, tmp_path)
    made.workers["a"].kill(signal.SIGTERM)
    handover.check_under_way()
    handover.end_task()
    assert made.workers["a"].wait(60) == 0
    made.wait_running([*KEYS, handover.fresh], "b")
    handover.check_end()


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
    os.kill(host_of(made, "a"), signal.SIGKILL)
    worker.wait_for_log(r"the job host has died \(exit status -9\)", 20)
    made.wait_running(KEYS, "a")
    wait_until(lambda: len(made.job_events(Kind.START)) >= 2 * len(KEYS), 20, "each is started once more")
    assert len(made.job_events(Kind.START)) == 2 * len(KEYS)
    assert worker.stop() == 0


def test_a_start_that_ends_its_process_fails_and_its_neighbours_run_on(
    fleet: Callable[..., JobsFleet],
) -> None:
    made = fleet()
    made.worker("a")
    for key in KEYS[:5]:
        made.jobs.dispatch("sync", key, timeout=20)
    with pytest.raises(JobFailed, match="its process ended"):
        made.jobs.dispatch("sync", "bad", {"die": True}, timeout=60)
    wait_until(lambda: {info.attempt for info in made.infos().values()} == {2}, 20, "interrupted once")
    assert {info.error for info in made.wait_running(KEYS[:5], "a").values()} == {""}


def test_a_job_that_does_not_stop_ends_with_its_host(fleet: Callable[..., JobsFleet]) -> None:
    made = fleet(sticky_job_stop_timeout=0.5)
    worker = made.worker("a")
    made.jobs.dispatch("stubborn", "t-1", timeout=20)
    made.jobs.dispatch("sync", "t-2", timeout=20)
    with pytest.raises(StopFailed, match=r"its stop took longer than 0\.5 s"):
        made.jobs.stop("stubborn", "t-1", timeout=20)
    worker.wait_for_log(r"job 'stubborn' of key 't-1': its stop took longer than 0\.5 s; killing the job host", 20)
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


# -- the log ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_each_start_move_failure_and_stop_is_one_line_of_the_log(fleet: Callable[..., JobsFleet], pool: str) -> None:
    made = fleet(sticky_job_max_deliveries=1)
    first = made.worker("a", pool=pool)
    of = "keyspace default: job 'sync' of key 't-1' has"
    made.jobs.dispatch("sync", "t-1", timeout=20)
    first.wait_for_log(rf"INFO/MainProcess\] {of} started within \d+\.\d\d s \(start 1, epoch \d+\)", 20)
    made.jobs.notify("sync", "t-1", "fail")
    first.wait_for_log(rf"INFO/MainProcess\] {of} failed after \d+\.\d s \(start 1\): RuntimeError: as told", 20)
    first.wait_for_log(r"ERROR/JobHost\] sync\[t-1\]: raised an error", 20)
    first.wait_for_log(rf"{of} started within .*\(start 2,", 20)
    second = made.worker("b", pool=pool)
    first.stop()
    first.wait_for_log(rf"{of} ended within \d+\.\d\d s, after it ran for \d+\.\d s: its key moves", 20)
    second.wait_for_log(rf"{of} started within .*\(start 3,", 20)
    made.jobs.stop("sync", "t-1", timeout=20)
    second.wait_for_log(rf"{of} ended within .*: it was stopped", 20)


# -- checkpoints -----------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_the_next_run_has_what_the_last_one_saved(fleet: Callable[..., JobsFleet], pool: str) -> None:
    made = fleet()
    made.worker("a", pool=pool)
    names = {"saves": "t-1", "saves-in-threads": "t-2"}

    def saved() -> list[Any]:
        return [info.saved if (info := made.jobs.get(name, key)) is not None else None for name, key in names.items()]

    for name, key in names.items():
        made.jobs.dispatch(name, key, timeout=20)
        made.jobs.notify(name, key, 7)
    wait_until(lambda: saved() == [7, 7], 10, "saved")
    os.kill(host_of(made, "a"), signal.SIGKILL)
    wait_until(lambda: [made.notes(key) for key in names.values()] == [[None, 7]] * 2, 30, "started again")
    made.worker("b", pool=pool)
    made.workers["a"].stop()
    wait_until(lambda: [made.notes(key) for key in names.values()] == [[None, 7, 7], [None, 7, "stopped"]], 30, "moved")
    assert not made.overlaps()


# -- updates and pauses ----------------------------------------------------------------------------


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_job_is_updated_paused_and_resumed_elsewhere(fleet: Callable[..., JobsFleet], pool: str) -> None:
    made = fleet()
    made.worker("a", pool=pool)
    jobs = made.jobs
    jobs.dispatch("poll", "t-1", {"slow_stop": 0.5}, timeout=20)
    jobs.update("poll", "t-1", {"new": True})
    made.wait_running({"t-1"})
    wait_until(lambda: len(made.job_events(Kind.START)) == 2, 20, "restarted")
    jobs.notify("poll", "t-1", 1)
    wait_until(lambda: made.notes("t-1") == [1], 10, "notified")
    jobs.pause("poll", "t-1", timeout=20)
    assert made.running() == {}
    jobs.notify("poll", "t-1", 2)
    made.worker("b", pool=pool)
    made.workers["a"].stop()
    assert [info.state for info in jobs.list()] == ["paused"]
    jobs.resume("poll", "t-1")
    info = made.wait_running({"t-1"}, "b")["t-1"]
    assert (info.payload, info.attempt) == ({"new": True}, 3)
    wait_until(lambda: made.notes("t-1") == [1, 2], 10, "notified")
    assert not made.overlaps()


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


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_shutdown_and_a_stop_wait_for_the_run_of_a_job_that_was_dispatched_again(
    fleet: Callable[..., JobsFleet], pool: str
) -> None:
    made = fleet()
    made.worker("a", pool=pool)
    for key, wait in (("t-1", partial(made.jobs.stop, "poll", "t-1")), ("t-2", made.jobs.shutdown)):
        made.jobs.dispatch("poll", key, {"slow_stop": 1.0}, timeout=20)
        made.jobs.stop("poll", key)
        made.jobs.admit("poll", key)
        wait(timeout=20)
        assert (made.running(), made.jobs.list()) == ({}, [])
    made.jobs.reopen()
    made.jobs.dispatch("poll", "t-4", {"raise_stop": "refused"}, timeout=20)
    with pytest.raises(StopFailed, match="its stop raised an error: OSError: refused"):
        made.jobs.stop("poll", "t-4", timeout=20)
    assert made.running() == {}


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
    (runs_it,) = (name for name in ("a", "b") if {str(pid) for pid in hosts_of(made, name, SCHEDULES)} & who)
    made.workers[runs_it].kill_all()
    wanted.write_text("p5")
    made.wait_running({"p5"}, *({"a", "b"} - {runs_it}))

    def ticks() -> list[tuple[int, str]]:
        return [(event.n, event.task_id) for event in made.events() if event.key == "tick"]

    wait_until(lambda: len(ticks()) > 4, 20, "it ticks on")
    # A tick that was claimed at the end of its period is noted down in the next one, which has a tick of its own.
    assert len(set(ticks())) == len({number for number, _ in ticks()}), "one worker a tick"
