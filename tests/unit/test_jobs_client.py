"""What a process that wants jobs can ask, and what an app may declare, on the memory store."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import threading
import time
import uuid
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import pytest
from celery import Celery

from celery_sticky import Job, Keyspace, Sticky, jump
from celery_sticky.drivers import open_job_store, open_placement_store, open_store
from celery_sticky.errors import (
    AssignmentFailed,
    BlockingCall,
    DispatchTimeout,
    InboxFull,
    InvalidJob,
    InvalidKey,
    InvalidPayload,
    InvalidSettings,
    JobExists,
    JobFailed,
    KeyspaceClosed,
    KeyspaceFull,
    KeyspaceMismatch,
    NoSuchJob,
    NotPinned,
    ShutdownTimeout,
    StopFailed,
)
from celery_sticky.jobs import dead_notes as dead_notes_module
from celery_sticky.jobs.client import Jobs
from celery_sticky.jobs.payload import MAX_PAYLOAD
from celery_sticky.jobs.schedule import Schedule
from celery_sticky.jobs.wire import Start, decode, encode
from celery_sticky.keys import HASH_NAME
from celery_sticky.ownership import changes
from celery_sticky.ownership.view import HAS_WORKER_QUEUE, Member
from celery_sticky.slots import KeyPlace
from celery_sticky.stores import JobStore
from celery_sticky.stores.jobs import JobState, Report, RunResult
from celery_sticky.stores.memory.jobs import MemoryJobs
from celery_sticky.stores.notes import FailedDelivery


def make(name: str, **settings: Any) -> Sticky:
    app = Celery("jobs", broker=f"memory://{name}", set_as_current=False)
    app.conf.update(sticky_slots=8, **settings)
    return Sticky(app)


@pytest.fixture
def sticky() -> Sticky:
    return make(uuid.uuid4().hex)


async def handler(job: Job) -> None:
    """Do nothing."""


def own(sticky: Sticky, keyspace: str = "default", epoch: int = 1) -> None:
    """Write a document in which one worker owns every slot."""
    store = open_store(sticky.wiring.store_at, keyspace)
    reading = store.read()
    slots, name = sticky.settings.slots_of(keyspace), sticky.settings.hash_of(keyspace)
    version = 1 if reading.view is None else reading.view.version + 1
    view = changes.fresh(slots=slots, hash=name, generation=1, version=version, store_id=reading.store_id)
    view = changes.join(view, Member("w@host", "w-1"))
    owner = ("w@host",) * slots
    store.swap(reading.view, replace(view, owner=owner, target=owner, epoch=(epoch,) * slots))
    store.close()


class Owner:
    """Starts whatever is wanted in a keyspace, as a worker would."""

    def __init__(self, sticky: Sticky, keyspace: str = "default", error: str = "") -> None:
        self.store: JobStore = open_job_store(sticky.wiring.store_at, keyspace)
        self.error = error
        own(sticky, keyspace)

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
    assert info.state == "waiting"


def test_a_shutdown_does_not_wait_for_what_is_dispatched_meanwhile(
    sticky: Sticky, monkeypatch: pytest.MonkeyPatch
) -> None:
    sticky.jobs.admit("sync", "a")
    Owner(sticky).start_all()
    dispatched_meanwhile(sticky, monkeypatch)
    sticky.jobs.shutdown(timeout=20)
    (info,) = sticky.jobs.list()
    assert info.state == "waiting"


def test_a_full_inbox_is_told_with_its_job_its_limit_and_the_remedy() -> None:
    sticky = make(uuid.uuid4().hex, sticky_job_max_notes=2)
    for key in ("a", "b"):
        sticky.jobs.admit("sync", key)
    for n in range(2):
        sticky.jobs.notify("sync", "a", n)
    with pytest.raises(InboxFull, match=r"2 notifications wait for job 'sync' of key 'a': .* sticky_job_max_notes"):
        sticky.jobs.notify("sync", "a")
    sticky.jobs.notify("sync", "b")


def test_a_job_may_have_its_own_limit_where_its_declaration_is_known() -> None:
    sticky = make(name := uuid.uuid4().hex, sticky_job_max_notes=1)
    sticky.job("sync", keyspace="tenants", max_notes=3)(handler)
    sticky.jobs.admit("sync", "a")
    for n in range(3):
        sticky.jobs.notify("sync", "a", n)
    with pytest.raises(KeyspaceFull, match="3 notifications"):
        sticky.jobs.notify("sync", "a")
    with pytest.raises(InboxFull, match="1 notifications"):
        make(name, sticky_job_max_notes=1).jobs.notify("sync", "a", keyspace="tenants")


def bury(sticky: Sticky, *keys: str) -> list[str]:
    """Dispatch a job for each key, bury a notification of each, and return their ids."""
    store = open_job_store(sticky.wiring.store_at, "default")
    for key in keys:
        sticky.jobs.admit("sync", key)
        sticky.jobs.notify("sync", key, {"of": key})
        (record,) = store.records("sync", key)
        store.open(record.slot, 1)
        (note,) = store.look({record.slot: 0})[record.slot].notes
        store.settle(record.slot, 1, (), (), [FailedDelivery(note.id, 5, "ValueError: bad", dead=True)], outcome_ttl=9)
    return [dead.id for dead in sticky.jobs.dead.list()]


def test_dead_notifications_are_listed_and_shown(sticky: Sticky, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_notes_module, "PAGE", 2)
    ids = bury(sticky, "a", "b", "c", "d", "e")
    dead = sticky.jobs.dead
    assert [one.key for one in dead.list()] == ["a", "b", "c", "d", "e"]
    assert [one.key for one in dead.list(limit=3)] == ["a", "b", "c"]
    assert [one.key for one in dead.list(after=ids[1], limit=2)] == ["c", "d"]
    assert [one.id for one in dead.list("sync", "d")] == [ids[3]]
    assert dead.list("other") == dead.list(key="x") == dead.list(keyspace="tenants") == []
    one = dead.get(ids[0])
    assert one is not None
    assert (one.name, one.key, one.keyspace, one.deliveries) == ("sync", "a", "default", 5)
    assert (one.error, one.payload, one.size) == ("ValueError: bad", {"of": "a"}, len(b'{"of":"a"}'))
    assert dead.list()[0].payload is None


def test_a_dead_notification_is_retried_or_dropped(sticky: Sticky) -> None:
    (one,) = bury(sticky, "a")
    (info,) = sticky.jobs.list()
    sticky.jobs.stop("sync", "a")
    with pytest.raises(NoSuchJob, match="there is no job 'sync' of key 'a' in keyspace 'default'"):
        sticky.jobs.dead.retry(one)
    sticky.jobs.admit("sync", "a")
    assert sticky.jobs.dead.retry(one)
    assert not sticky.jobs.dead.retry(one) and not sticky.jobs.dead.drop(one) and sticky.jobs.dead.get(one) is None
    store = open_job_store(sticky.wiring.store_at, "default")
    (note,) = store.look({info.slot: 0})[info.slot].notes
    assert (note.payload, note.failed) == (b'{"of":"a"}', 0)
    *_, other = bury(sticky, "b")
    assert sticky.jobs.dead.drop(other) and sticky.jobs.dead.list() == []


def test_a_dead_notification_waits_for_room() -> None:
    sticky = make(uuid.uuid4().hex, sticky_job_max_notes=1)
    (one,) = bury(sticky, "a")
    sticky.jobs.notify("sync", "a")
    with pytest.raises(InboxFull):
        sticky.jobs.dead.retry(one)
    assert [dead.id for dead in sticky.jobs.dead.list()] == [one]


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


def replaced(sticky: Sticky) -> Owner:
    """Have a job dispatched again while its old run stops."""
    sticky.jobs.admit("sync", "t")
    owner = Owner(sticky)
    owner.start_all()
    sticky.jobs.stop("sync", "t")
    sticky.jobs.admit("sync", "t")
    return owner


def ends_with(owner: Owner, report: Report, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Have the owner report this when somebody waits; return the waits."""
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        (record,) = owner.store.records()
        owner.store.settle(record.slot, 1, [report], (), outcome_ttl=60.0)

    monkeypatch.setattr(time, "sleep", sleep)
    return waits


def test_a_shutdown_waits_for_the_run_of_a_job_that_was_replaced(
    sticky: Sticky, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = replaced(sticky)
    with pytest.raises(ShutdownTimeout, match=r"1 jobs are left after 0 s: sync of 't' at w@host"):
        sticky.jobs.shutdown(timeout=0)
    (record,) = owner.store.records()
    waits = ends_with(owner, Report(record.id, RunResult.ENDED), monkeypatch)
    sticky.jobs.shutdown(timeout=10)
    assert len(waits) == 1 and sticky.jobs.list() == []


def test_a_shutdown_reads_no_records_while_it_waits(sticky: Sticky, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = sticky.jobs.admit("sync", "t")
    owner = Owner(sticky)
    owner.start_all()
    slot = sticky.slot_for("t")
    read = MagicMock(return_value=[])
    monkeypatch.setattr(MemoryJobs, "records", read)
    ended = Report(job_id, RunResult.ENDED)
    monkeypatch.setattr(time, "sleep", lambda _: owner.store.settle(slot, 1, [ended], (), outcome_ttl=60.0))
    sticky.jobs.shutdown(timeout=10)
    assert not read.called


def test_a_stop_waits_for_the_run_of_a_job_that_was_replaced(sticky: Sticky, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = replaced(sticky)
    sticky.jobs.stop("sync", "t")
    with pytest.raises(ShutdownTimeout, match="at w@host"):
        sticky.jobs.stop("sync", "t", timeout=0.001)
    (record,) = owner.store.records()
    ends_with(owner, Report(record.id, RunResult.ENDED), monkeypatch)
    sticky.jobs.stop("sync", "t", timeout=10)


def test_a_stop_waits_for_the_old_run_also_if_the_job_is_replaced_meanwhile(
    sticky: Sticky, monkeypatch: pytest.MonkeyPatch
) -> None:
    sticky.jobs.admit("sync", "t")
    owner = Owner(sticky)
    owner.start_all()
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1:
            sticky.jobs.admit("sync", "t")
        else:
            owner.start_all()  # so the old run has ended

    monkeypatch.setattr(time, "sleep", sleep)
    sticky.jobs.stop("sync", "t", timeout=10)
    assert len(waits) == 2
    assert [info.state for info in sticky.jobs.list()] == ["running"]


def test_a_stop_that_raised_is_told_to_the_one_that_waits(sticky: Sticky, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = sticky.jobs.admit("sync", "t")
    owner = Owner(sticky)
    owner.start_all()
    ends_with(owner, Report(job_id, RunResult.UNCLEAN, "OSError: refused"), monkeypatch)
    with pytest.raises(StopFailed, match=r"^job 'sync' of key 't' has stopped, but its stop raised .*: OSError: ref"):
        sticky.jobs.stop("sync", "t", timeout=10)
    assert sticky.jobs.list() == []


def test_a_job_is_updated_and_restarted(sticky: Sticky) -> None:
    job_id = sticky.jobs.admit("sync", "t", 1)
    owner = Owner(sticky)
    owner.start_all()
    sticky.jobs.update("sync", "t", {"n": 2}, restart=False)
    (record,) = owner.store.records()
    assert (record.payload, record.generation) == (b'{"n":2}', 0)
    sticky.jobs.update("sync", "t", [3])
    sticky.jobs.restart("sync", "t")
    (record,) = owner.store.records()
    assert (record.id, record.payload, record.generation) == (job_id, b"[3]", 2)
    with pytest.raises(InvalidPayload):
        sticky.jobs.update("sync", "t", object())
    sticky.jobs.stop("sync", "t")
    for verb in (sticky.jobs.restart, sticky.jobs.pause, sticky.jobs.resume):
        with pytest.raises(NoSuchJob, match="there is no job 'sync' of key 't' in keyspace 'default'"):
            verb("sync", "t")


def test_a_pause_waits_until_no_run_is_left(sticky: Sticky, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = sticky.jobs.admit("sync", "t")
    owner = Owner(sticky)
    owner.start_all()
    with pytest.raises(ShutdownTimeout, match=r"1 jobs are left after 0\.001 s: sync of 't' at w@host"):
        sticky.jobs.pause("sync", "t", timeout=0.001)
    waits = ends_with(owner, Report(job_id, RunResult.PAUSED), monkeypatch)
    sticky.jobs.pause("sync", "t", timeout=10)
    assert len(waits) == 1 and [info.state for info in sticky.jobs.list()] == ["paused"]
    assert sticky.jobs.keys("sync") == {"t"}
    sticky.jobs.resume("sync", "t")
    assert [info.state for info in sticky.jobs.list()] == ["waiting"]


def test_many_jobs_are_admitted_notified_and_stopped_and_failures_are_told_by_key(sticky: Sticky) -> None:
    sticky.jobs.admit("sync", "b", 0)
    many = sticky.jobs.admit_many("sync", {"a": 1, "b": 2, 3: 3})
    assert many.done == ("a", "3")
    assert [(key, type(error), str(error)) for key, error in many.failed.items()] == [
        ("b", JobExists, "job 'sync' of key 'b' already exists: stop it first, or keep it")
    ]
    assert {info.key: info.payload for info in sticky.jobs.list("sync")} == {"a": 1, "b": 0, "3": 3}
    assert sticky.jobs.admit_many("sync", ["c", "c"]).done == ("c",)
    notified = sticky.jobs.notify_many("sync", {"a": 1, "z": 2})
    assert (notified.done, {key: type(error) for key, error in notified.failed.items()}) == (("a",), {"z": NoSuchJob})
    stopped = sticky.jobs.stop_many("sync", ["a", "z", 3])
    assert (stopped.done, str(stopped.failed["z"])) == (
        ("a", "3"),
        "there is no job 'sync' of key 'z' in keyspace 'default'",
    )
    assert sticky.jobs.keys("sync") == {"b", "c"}


def test_of_many_jobs_with_one_that_cannot_be_sent_none_is_sent(sticky: Sticky) -> None:
    with pytest.raises(InvalidPayload):
        sticky.jobs.admit_many("sync", {"a": 1, "b": object()})
    for verb in (sticky.jobs.admit_many, sticky.jobs.notify_many, sticky.jobs.stop_many):
        with pytest.raises(InvalidKey):
            verb("sync", ["a", ""])
    assert sticky.jobs.list() == []


def test_many_jobs_fail_one_by_one_in_a_full_and_in_a_closed_keyspace() -> None:
    sticky = make(uuid.uuid4().hex, sticky_job_max_queued=1)
    many = sticky.jobs.admit_many("sync", ["a", "b"])
    assert (many.done, type(many.failed["b"])) == (("a",), KeyspaceFull)
    sticky.jobs.shutdown(timeout=1)
    assert type(sticky.jobs.admit_many("sync", ["a"]).failed["a"]) is KeyspaceClosed


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
    wiring = make("x").wiring
    settings = wiring.settings
    jobs = Jobs(lambda: settings, open_slow, lambda _: None, open_slow, wiring.lookup, lambda _, name: None)
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


# -- in an event loop ------------------------------------------------------------------------------

VERBS = sorted(name for name, verb in vars(Jobs).items() if f"a{name}" in vars(Jobs))


def test_every_verb_has_a_twin() -> None:
    others = {"close", "digests", "claim_tick"}
    public = {name for name, verb in vars(Jobs).items() if callable(verb) and not name.startswith("_")}
    assert public == {*VERBS, *(f"a{name}" for name in VERBS), *others}
    assert {"admit", "dispatch", "notify", "stop", "get", "list", "pause", "shutdown"} < set(VERBS)


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_in_a_coroutine_raises_and_names_its_twin(sticky: Sticky, name: str) -> None:
    async def call() -> None:
        with pytest.raises(
            BlockingCall, match=rf"`sticky\.jobs\.{name}` would block .* `await sticky\.jobs\.a{name}\("
        ):
            getattr(sticky.jobs, name)()

    asyncio.run(call())
    twin = getattr(Jobs, f"a{name}")
    assert inspect.iscoroutinefunction(twin) and twin.__name__ == f"a{name}"
    assert twin.__doc__.startswith(f"Do what `{name}` does, in a thread")


def test_the_twins_do_what_the_verbs_do_without_blocking_the_loop(sticky: Sticky) -> None:
    owner = Owner(sticky)

    async def call() -> None:
        dispatch = asyncio.create_task(sticky.jobs.adispatch("sync", "t", {"n": 1}, timeout=20))
        while not await sticky.jobs.akeys("sync"):
            await asyncio.sleep(0)
        assert not dispatch.done()
        await asyncio.to_thread(owner.start_all)
        job_id = await dispatch
        info = await sticky.jobs.aget("sync", "t")
        assert info is not None and (info.id, info.payload) == (job_id, {"n": 1})
        await sticky.jobs.anotify("sync", "t", 5)
        with pytest.raises(JobExists):
            await sticky.jobs.aadmit("sync", "t")
        with pytest.raises(ShutdownTimeout):
            await sticky.jobs.astop("sync", "t", timeout=0.001)

    asyncio.run(call())


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
    place = KeyPlace("pinned")
    assert record.slot == place
    owner.start_all()
    assert placed.jobs.dispatch("sync", "pinned", 1, keyspace="pins", id=job_id) == job_id
    placed.jobs.notify("sync", "pinned", 5, keyspace="pins")
    (note,) = owner.store.look({place: 0})[place].notes
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


def test_of_many_keys_those_that_belong_to_nobody_are_told(placed: Sticky) -> None:
    for verb in (placed.jobs.admit_many, placed.jobs.notify_many):
        many = verb("sync", ["k", "pinned"], keyspace="strict")
        assert (many.done, {key: type(error) for key, error in many.failed.items()}) == (("pinned",), {"k": NotPinned})
    assert type(placed.jobs.admit_many("sync", ["k"], keyspace="fails").failed["k"]) is AssignmentFailed
    assert placed.jobs.stop_many("sync", ["pinned"], keyspace="strict").done == ("pinned",)


def test_a_job_may_wait_for_a_worker_to_come(placed: Sticky) -> None:
    with pytest.raises(DispatchTimeout):
        placed.jobs.dispatch("sync", "k", keyspace="empty", timeout=0.05)
    assert [info.key for info in placed.jobs.list(keyspace="empty")] == ["k"]


def test_a_schedule_passes_over_keys_that_nobody_has_pinned(placed: Sticky) -> None:
    Schedule("tenants", "strict", "sync", 1.0, list).apply(["a", "pinned", "z"], placed.jobs)
    assert [info.key for info in placed.jobs.list(keyspace="strict")] == ["pinned"]
    Schedule("tenants", "fails", "sync", 1.0, list).apply(["a"], placed.jobs)
    assert not placed.jobs.list(keyspace="fails")


def test_jobs_left_in_a_keyspace_that_became_plain_are_forgotten(placed: Sticky) -> None:
    with pytest.raises(InvalidSettings, match=r"'pins' is a placed keyspace, .*shutdown"):
        placed.jobs.forget("pins")
    placed.jobs.admit("sync", "pinned", keyspace="pins")
    plain = Sticky(Celery("plain", broker=placed.app.conf.broker_url, set_as_current=False))
    with pytest.raises(KeyspaceMismatch, match=r"configured with .* pins', this process without a placement"):
        plain.jobs.forget("pins")
    store = open_store(placed.wiring.store_at, "pins")
    view = store.read().view
    assert view is not None and store.swap(view, replace(view, hash=HASH_NAME, version=view.version + 1))
    plain.jobs.admit("sync", "k", keyspace="pins")
    assert len(plain.jobs.list(keyspace="pins")) == 2
    assert (plain.jobs.forget("pins"), plain.jobs.forget("pins")) == (1, 0)
    assert [info.key for info in plain.jobs.list(keyspace="pins")] == ["k"]


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
        ("sync", print, "it must be an `async def`, a `def`, or a subclass of JobHandler"),
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


def test_two_schedules_for_one_job_in_one_keyspace_are_refused(sticky: Sticky) -> None:
    sticky.job("sync")(handler)
    sticky.job("poll")(handler)
    sticky.schedule("tenants", every=1, job="sync")(list)
    sticky.schedule("tenants", every=1, job="sync")(list)
    sticky.schedule("accounts", every=1, job="poll")(list)
    sticky.schedule("more-tenants", every=1, job="sync", keyspace="elsewhere")(list)
    said = r"'tenants' and 'more-tenants' are both for the job default/sync, .*: return the keys of both from one"
    with pytest.raises(InvalidJob, match=said):
        sticky.schedule("more-tenants", every=1, job="sync")(list)


def test_two_schedules_for_one_job_are_refused_also_if_they_come_from_two_modules() -> None:
    app = Celery("jobs", broker="memory://", set_as_current=False)
    one, two = Sticky(), Sticky()
    one.schedule("tenants", every=1, job="sync")(list)
    two.schedule("more-tenants", every=1, job="sync")(list)
    one.init_app(app)
    with pytest.raises(InvalidJob, match="'tenants' and 'more-tenants' are both for"):
        two.init_app(app)


def test_a_schedule_is_in_the_keyspace_of_its_job(sticky: Sticky) -> None:
    sticky.job("sync", keyspace="tenants")(handler)
    sticky.schedule("all", every=1, job="sync")(list)
    sticky.wiring.declared.check()
    assert sticky.wiring.declared.keyspaces == {"tenants"}
    ((slot, (record,)),) = sticky.wiring.declared.built_in("tenants", 8).items()
    assert (record.name, record.slot) == ("schedule:all", slot)
    assert json.loads(record.payload) is None
