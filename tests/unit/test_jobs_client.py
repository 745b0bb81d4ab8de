"""What a process that wants jobs can ask, and what an app may declare, on the memory store."""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from typing import Any

import pytest
from celery import Celery

from celery_sticky import Job, Keyspace, Sticky, jump
from celery_sticky.drivers import open_job_store, open_placement_store, open_store
from celery_sticky.errors import (
    AssignmentFailed,
    DispatchTimeout,
    InvalidJob,
    InvalidKey,
    InvalidPayload,
    JobExists,
    JobFailed,
    KeyspaceFull,
    NoSuchJob,
    NotPinned,
    ShutdownTimeout,
)
from celery_sticky.jobs import client as client_module
from celery_sticky.jobs.client import MAX_PAYLOAD, Jobs
from celery_sticky.jobs.schedule import Schedule
from celery_sticky.jobs.wire import Start, decode, encode
from celery_sticky.ownership import changes
from celery_sticky.ownership.view import HAS_WORKER_QUEUE, Member
from celery_sticky.stores import JobStore
from celery_sticky.stores.jobs import JobState, Report, RunResult


def make(name: str, **settings: Any) -> Sticky:
    app = Celery("jobs", broker=f"memory://{name}", set_as_current=False)
    app.conf.update(sticky_slots=8, **settings)
    return Sticky(app)


@pytest.fixture
def sticky() -> Sticky:
    return make(uuid.uuid4().hex)


async def handler(job: Job) -> None:
    """Do nothing."""


class Owner:
    """Starts whatever is wanted in a keyspace, as a worker would."""

    def __init__(self, sticky: Sticky, keyspace: str = "default", error: str = "") -> None:
        self.store: JobStore = open_job_store(sticky.wiring.store_at, keyspace)
        self.error = error

    def start_all(self, outcome_ttl: float = 60.0) -> None:
        for record in self.store.records():
            self.store.open(record.slot, 1)
            self.store.reserve(record.slot, 1, "w@host", [record.id])
            result = RunResult.FAILED if self.error else RunResult.STARTED
            self.store.settle(record.slot, 1, [Report(record.id, result, self.error)], (), outcome_ttl=outcome_ttl)


def start_soon(sticky: Sticky, **options: Any) -> threading.Timer:
    timer = threading.Timer(0.1, Owner(sticky, **options).start_all)
    timer.start()
    return timer


# -- dispatch --------------------------------------------------------------------------------------


def dispatched_meanwhile(sticky: Sticky, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the owner stop `sync` of `a`, and somebody dispatch it again, while a caller waits for its end."""
    done: list[float] = []

    def sleep(seconds: float) -> None:
        owner = Owner(sticky)
        (record,) = owner.store.records()
        assert record.state is JobState.STOPPING and not done, "it still waits"
        done.append(seconds)
        owner.store.settle(record.slot, 1, [Report(record.id, RunResult.ENDED)], (), outcome_ttl=60.0)
        sticky.jobs.reopen()
        sticky.jobs.admit("sync", "a")

    monkeypatch.setattr(time, "sleep", sleep)


def test_a_stop_does_not_wait_for_what_is_dispatched_meanwhile(sticky: Sticky, monkeypatch: pytest.MonkeyPatch) -> None:
    sticky.jobs.admit("sync", "a")
    Owner(sticky).start_all()
    dispatched_meanwhile(sticky, monkeypatch)
    sticky.jobs.stop("sync", "a", timeout=20)
    (info,) = sticky.jobs.list()
    assert info.state == "queued"


def test_a_shutdown_does_not_wait_for_what_is_dispatched_meanwhile(
    sticky: Sticky, monkeypatch: pytest.MonkeyPatch
) -> None:
    sticky.jobs.admit("sync", "a")
    Owner(sticky).start_all()
    dispatched_meanwhile(sticky, monkeypatch)
    sticky.jobs.shutdown(timeout=20)
    (info,) = sticky.jobs.list()
    assert info.state == "queued"


def test_a_job_that_takes_no_notifications_is_told_by_name_and_key(
    sticky: Sticky, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "MAX_NOTES", 2)
    for key in ("a", "b"):
        sticky.jobs.admit("sync", key)
    for n in range(2):
        sticky.jobs.notify("sync", "a", n)
    with pytest.raises(KeyspaceFull, match="2 notifications wait for job 'sync' of key 'a': the job does not"):
        sticky.jobs.notify("sync", "a")
    sticky.jobs.notify("sync", "b")


def test_a_dispatch_returns_the_id_when_the_job_has_started(sticky: Sticky) -> None:
    start_soon(sticky)
    job_id = sticky.jobs.dispatch("sync", 7, {"n": [1, None]}, timeout=10)
    info = sticky.jobs.get("sync", "7")
    assert info is not None
    assert (info.id, info.key, info.payload, info.state, info.worker) == (
        job_id,
        "7",
        {"n": [1, None]},
        "running",
        "w@host",
    )
    assert info.slot == sticky.slot_for(7)


def test_a_dispatch_raises_what_the_start_raised(sticky: Sticky) -> None:
    start_soon(sticky, error="OSError: refused")
    with pytest.raises(JobFailed, match=r"^job 'sync' of key 't' failed to start: OSError: refused$"):
        sticky.jobs.dispatch("sync", "t", timeout=10)


def test_a_dispatch_that_nobody_answers_says_how_to_go_on(sticky: Sticky) -> None:
    with pytest.raises(DispatchTimeout, match="Check that a worker") as late:
        sticky.jobs.dispatch("sync", "t", timeout=0.05)
    assert late.value.id in str(late.value)
    Owner(sticky).start_all()
    assert sticky.jobs.dispatch("sync", "t", timeout=1, id=late.value.id) == late.value.id


def test_a_repeat_of_a_job_that_runs_is_answered_at_once_however_old_it_is(sticky: Sticky) -> None:
    job_id = sticky.jobs.admit("sync", "t")
    Owner(sticky).start_all(outcome_ttl=0.0)
    assert sticky.jobs.dispatch("sync", "t", id=job_id, timeout=0) == job_id


@pytest.mark.parametrize("payload", [object(), {1: {2, 3}}, float("nan")])
def test_a_payload_that_is_no_json_is_refused_and_nothing_is_sent(sticky: Sticky, payload: Any) -> None:
    for call in (sticky.jobs.dispatch, sticky.jobs.admit):
        with pytest.raises(InvalidPayload, match="job 'sync': its payload cannot be written as JSON"):
            call("sync", "t", payload)
    assert sticky.jobs.list() == []


def test_a_payload_has_at_most_256_kib(sticky: Sticky) -> None:
    sticky.jobs.admit("sync", "t", "x" * (MAX_PAYLOAD - 2))
    with pytest.raises(InvalidPayload, match="its payload is 262145 bytes of JSON, the limit is 262144"):
        sticky.jobs.admit("sync", "u", "x" * (MAX_PAYLOAD - 1))


@pytest.mark.parametrize("key", ["", True, None, 1.5, "x" * 1025])
def test_a_key_that_cannot_be_one_is_refused(sticky: Sticky, key: Any) -> None:
    with pytest.raises(InvalidKey):
        sticky.jobs.dispatch("sync", key)
    with pytest.raises(InvalidKey):
        sticky.jobs.notify("sync", key)


def test_a_name_that_cannot_be_one_is_refused(sticky: Sticky) -> None:
    for name in ("", "x" * 201, 7):
        with pytest.raises(InvalidJob):
            sticky.jobs.admit(name, "t")  # type: ignore[arg-type]


@pytest.mark.parametrize("job_id", ["", "built-in:schedule:x", 7, "x" * 201])
def test_an_id_that_cannot_be_one_is_refused(sticky: Sticky, job_id: Any) -> None:
    with pytest.raises(InvalidJob, match="the id"):
        sticky.jobs.admit("sync", "t", id=job_id)


def test_the_jobs_of_schedules_and_tickers_are_nobodys_to_dispatch(sticky: Sticky) -> None:
    with pytest.raises(InvalidJob, match="a job's name must not contain ':'"):
        sticky.jobs.admit("ticker:report", "t")


def test_a_repeat_may_have_its_payload_in_another_order(sticky: Sticky) -> None:
    job_id = sticky.jobs.admit("sync", "t", {"a": 1, "b": 2})
    assert sticky.jobs.admit("sync", "t", {"b": 2, "a": 1}, id=job_id) == job_id


def test_a_payload_that_is_nested_too_deeply_is_refused(sticky: Sticky) -> None:
    payload: Any = 1
    for _ in range(100_000):
        payload = [payload]
    with pytest.raises(InvalidPayload):
        sticky.jobs.admit("sync", "t", payload)


def test_what_is_nested_deeply_goes_through_the_wire() -> None:
    payload: Any = 1
    for _ in range(600):
        payload = [payload]
    start = Start(1, "sync", "t", "default", "id", 1, 1, payload, 1)
    assert decode(encode(start)) == start


def test_a_schedule_of_another_function_does_not_take_a_name(sticky: Sticky) -> None:
    def one() -> list[str]:
        return []

    def other() -> list[str]:
        return []

    sticky.schedule("x", every=1)(one)
    sticky.schedule("x", every=1)(one)
    sticky.schedule("x", every=1, keyspace="elsewhere")(other)
    with pytest.raises(InvalidJob, match="the schedule 'x' is declared twice"):
        sticky.schedule("x", every=1)(other)


def test_the_keyspace_is_that_of_the_declaration_or_named(sticky: Sticky) -> None:
    sticky.job("sync", keyspace="tenants")(handler)
    sticky.jobs.admit("sync", "t")
    assert [info.keyspace for info in sticky.jobs.list("sync")] == ["tenants"]
    sticky.jobs.admit("sync", "t", keyspace="others")
    with pytest.raises(JobExists):
        sticky.jobs.admit("sync", "t", keyspace="tenants")
    sticky.job("sync", keyspace="others")(handler)
    with pytest.raises(InvalidJob, match="keyspaces others, tenants: name one"):
        sticky.jobs.admit("sync", "u")


# -- the rest --------------------------------------------------------------------------------------


def test_a_stop_waits_until_the_job_is_gone(sticky: Sticky) -> None:
    sticky.jobs.admit("sync", "t")
    owner = Owner(sticky)
    owner.start_all()
    with pytest.raises(ShutdownTimeout, match=r"1 jobs are left after 0\.1 s: sync of 't' at w@host"):
        sticky.jobs.stop("sync", "t", timeout=0.1)
    (record,) = owner.store.records()
    ended = [Report(record.id, RunResult.ENDED)]
    threading.Timer(0.1, lambda: owner.store.settle(record.slot, 1, ended, (), outcome_ttl=60)).start()
    sticky.jobs.stop("sync", "t", timeout=10)
    with pytest.raises(NoSuchJob):
        sticky.jobs.stop("sync", "t")


def test_jobs_are_listed_by_name_and_key(sticky: Sticky) -> None:
    for name, key in (("b", "1"), ("a", "2"), ("a", "1")):
        sticky.jobs.admit(name, key)
    assert [(info.name, info.key) for info in sticky.jobs.list()] == [("a", "1"), ("a", "2"), ("b", "1")]
    assert [(info.name, info.key) for info in sticky.jobs.list("b")] == [("b", "1")]


def test_connections_are_used_again_but_not_by_two_threads_nor_by_a_child() -> None:
    opened: list[str] = []

    class Slow:
        """A store whose verb takes until the test says."""

        def records(self, *_: Any) -> list[Any]:
            busy.wait(10)
            return []

        def close(self) -> None:
            opened.append("closed")

    def open_slow(keyspace: str) -> Any:
        opened.append(keyspace)
        return Slow()

    busy = threading.Event()
    busy.set()
    settings = make("x").settings
    jobs = Jobs(lambda: settings, open_slow, lambda _: None, lambda _, key: 0)
    jobs.list()
    jobs.list()
    assert opened == ["default"]
    busy.clear()
    thread = threading.Thread(target=jobs.list)
    thread.start()
    busy.set()
    jobs.list()
    thread.join()
    count = len(opened)
    assert count <= 2
    if (child := os.fork()) == 0:
        jobs.list()
        os._exit(len(opened))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == count + 1, "the child made one of its own"
    jobs.close()
    assert opened.count("closed") == count


# -- placed keyspaces ------------------------------------------------------------------------------


def fails(key: str, workers: Any) -> Any:
    raise LookupError("no such shard")


@pytest.fixture
def placed(sticky: Sticky) -> Sticky:
    """Has keyspaces of which a worker `a` is a member; its pin of `pinned` is there."""
    for keyspace in (
        Keyspace("pins", pins=True),
        Keyspace("strict", pins=True, unpinned="refuse"),
        Keyspace("fails", assign=fails),
        Keyspace("empty", assign=jump),
    ):
        sticky.keyspace(keyspace)
        store = open_store(sticky.wiring.store_at, keyspace.name)
        run = store.read().store_id
        view = changes.fresh(slots=8, hash=keyspace.hash_name, generation=1, version=1, store_id=run)
        if keyspace.name != "empty":
            view = changes.join(view, Member("a", "a-1", attributes={HAS_WORKER_QUEUE: "1"}))
        assert store.swap(None, view)
        placement_store = open_placement_store(sticky.wiring.store_at, keyspace.name)
        placement_store.enlist("a", "a-1")
        if keyspace.pins:
            placement_store.pin("a", "pinned", take=False)
    return sticky


def test_a_job_of_a_placed_key_is_written_down_by_its_key(placed: Sticky) -> None:
    owner = Owner(placed, keyspace="pins")
    job_id = placed.jobs.admit("sync", "pinned", 1, keyspace="pins")
    (record,) = owner.store.records()
    assert record.slot == "=pinned"
    owner.start_all()
    assert placed.jobs.dispatch("sync", "pinned", 1, keyspace="pins", id=job_id) == job_id
    placed.jobs.notify("sync", "pinned", 5, keyspace="pins")
    (note,) = owner.store.look({"=pinned": 0})["=pinned"].notes
    assert note.payload == b"5"
    info = placed.jobs.get("sync", "pinned", keyspace="pins")
    assert info is not None and info.slot == placed.slot_for("pinned", "pins")
    assert placed.jobs.list(keyspace="pins") == [info]
    placed.jobs.stop("sync", "pinned", keyspace="pins")
    with pytest.raises(ShutdownTimeout):
        placed.jobs.shutdown("pins", timeout=0.1)


def test_where_a_key_belongs_to_nobody_its_job_is_not_wanted(placed: Sticky) -> None:
    for jobs_verb in (placed.jobs.dispatch, placed.jobs.admit, placed.jobs.notify):
        with pytest.raises(NotPinned, match="key 'k' of keyspace 'strict'"):
            jobs_verb("sync", "k", keyspace="strict")
    with pytest.raises(NoSuchJob):
        placed.jobs.stop("sync", "k", keyspace="strict")
    with pytest.raises(AssignmentFailed, match="no such shard"):
        placed.jobs.admit("sync", "k", keyspace="fails")
    with pytest.raises(NoSuchJob):
        placed.jobs.notify("sync", "k", keyspace="fails")
    assert not placed.jobs.list(keyspace="strict") and not placed.jobs.list(keyspace="fails")
    placed.jobs.admit("sync", "pinned", keyspace="strict")


def test_a_job_may_wait_for_a_worker_to_come(placed: Sticky) -> None:
    with pytest.raises(DispatchTimeout):
        placed.jobs.dispatch("sync", "k", keyspace="empty", timeout=0.05)
    assert [info.key for info in placed.jobs.list(keyspace="empty")] == ["k"]


def test_a_schedule_passes_over_keys_that_nobody_has_pinned(placed: Sticky) -> None:
    Schedule("tenants", "strict", "sync", 1.0, list).apply(["a", "pinned", "z"], placed.jobs)
    assert [info.key for info in placed.jobs.list(keyspace="strict")] == ["pinned"]
    Schedule("tenants", "fails", "sync", 1.0, list).apply(["a"], placed.jobs)
    assert not placed.jobs.list(keyspace="fails")


# -- declarations ----------------------------------------------------------------------------------


def test_jobs_may_be_declared_before_the_app_is_there() -> None:
    sticky = Sticky()
    sticky.job("sync")(handler)
    sticky.schedule("all", every=5, job="sync")(list)
    sticky.ticker("tick", every=5)(lambda: None)
    app = Celery("jobs", broker="memory://", set_as_current=False)
    sticky.init_app(app)
    other = Sticky(app)
    other.job("poll")(handler)
    names = sticky.wiring.declared.specs({"default"}, lambda: sticky.jobs).names()
    assert names == ("default/poll", "default/schedule:all", "default/sync", "default/ticker:tick")


def test_a_name_is_taken_once(sticky: Sticky) -> None:
    sticky.job("sync")(handler)
    sticky.job("sync")(handler)

    async def other(job: Job) -> None:
        """Do something else."""

    with pytest.raises(InvalidJob, match="the name 'sync' in keyspace 'default' is taken"):
        sticky.job("sync")(other)


@pytest.mark.parametrize(
    ("name", "handler", "said"),
    [
        ("sync", print, "it must be an `async def`, or a subclass of JobHandler"),
        ("", handler, "must be non-empty text"),
        ("a:b", handler, "a job's name must not contain ':'"),
    ],
)
def test_what_is_no_job_is_refused(sticky: Sticky, name: str, handler: Any, said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        sticky.job(name)(handler)


@pytest.mark.parametrize("every", [0, -1, 0.09, True, "5", float("inf"), float("nan")])
def test_an_interval_is_a_number_of_seconds_and_not_too_small(sticky: Sticky, every: Any) -> None:
    for declare in (sticky.schedule, sticky.ticker):
        with pytest.raises(InvalidJob, match=r"it must be a number of seconds, at least 0\.1"):
            declare("x", every=every)(list)


def test_a_schedule_needs_its_job(sticky: Sticky) -> None:
    sticky.job("sync")(handler)
    sticky.schedule("tenants", every=1)(list)
    with pytest.raises(InvalidJob, match=r"schedule 'tenants' is for the job default/tenants, .*default/sync.*job=…"):
        sticky.wiring.declared.check()


def test_a_schedule_is_in_the_keyspace_of_its_job(sticky: Sticky) -> None:
    sticky.job("sync", keyspace="tenants")(handler)
    sticky.schedule("all", every=1, job="sync")(list)
    sticky.wiring.declared.check()
    assert sticky.wiring.declared.keyspaces == {"tenants"}
    ((slot, (record,)),) = sticky.wiring.declared.built_in("tenants", 8).items()
    assert (record.name, record.slot) == ("schedule:all", slot)
    assert json.loads(record.payload) is None
