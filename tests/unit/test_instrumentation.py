"""What leaves through the seam when workers join, leave, take over and are evicted; and when it is off."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import MagicMock

import pytest

from celery_sticky.errors import StoreUnavailable
from celery_sticky.execution.hooks import signal_jobs
from celery_sticky.instrumentation import facts
from celery_sticky.instrumentation.facts import (
    EvictedHere,
    Fact,
    JobFact,
    JobFailed,
    JobStarted,
    JobStopped,
    SlotsGained,
    SlotsLost,
    SlotsTakenOver,
    StoreAsked,
    WorkerEvicted,
)
from celery_sticky.instrumentation.logs import log_jobs, log_owner_changes
from celery_sticky.instrumentation.registry import Instruments
from celery_sticky.keys import SlotId
from celery_sticky.membership.lease import Lease
from celery_sticky.membership.member import Member
from celery_sticky.membership.name_lock import NameLock
from celery_sticky.ownership.events import Drained, Opened
from celery_sticky.ownership.machine import MemberConfig, Phase
from celery_sticky.ownership.view import View
from celery_sticky.platform.flow_thread import FlowThread
from celery_sticky.signals import job_failed, job_started, job_stopped
from celery_sticky.stores.base import Heartbeat, Reading, Signal
from celery_sticky.stores.memory.store import MemoryServer, MemoryStore
from celery_sticky.stores.shared import OwnClient
from celery_sticky.testing.waiting import wait_until

KS, SLOTS = "ks", 8
TTL, MARGIN = 1.0, 0.2
EVERYTHING = frozenset(range(SLOTS))
KINDS = (SlotsGained, SlotsTakenOver, SlotsLost, WorkerEvicted, EvictedHere, StoreAsked)
JOB_KINDS = (JobStarted, JobStopped, JobFailed)

F = TypeVar("F", bound=Fact)


class Cuttable(MemoryStore):
    """A client that can be cut off from the server."""

    cut = False

    def _answers(self) -> None:
        if self.cut:
            raise StoreUnavailable("cut off")

    def read(self) -> Reading:
        self._answers()
        return super().read()

    def heartbeat(self, incarnation: str, *, announce: bool = True) -> Heartbeat:
        self._answers()
        return super().heartbeat(incarnation, announce=announce)

    def swap(
        self, old: View | None, new: View, guard: Mapping[str, int] | None = None, until: float | None = None
    ) -> bool:
        self._answers()
        return super().swap(old, new, guard, until)

    def watch(self, timeout: float) -> Sequence[Signal]:
        self._answers()
        return super().watch(timeout)


class AtOnce:
    """Opens and drains every slot at once, one report for each."""

    member: Member

    def open(self, slot: SlotId, epoch: int, incarnation: str) -> None:
        self.member.post(Opened(slot[1], epoch))

    def stop(self, slot: SlotId) -> None:
        self.member.post(Drained(slot[1]))

    def close(self, slot: SlotId) -> None: ...


class Worker:
    """A member that runs, and all that it reports."""

    def __init__(self, name: str, server: MemoryServer, folder: Path, number: int, *, listens: bool) -> None:
        self.store = Cuttable(server, KS)
        self.facts: list[Fact] = []
        instruments, origin = Instruments(), f"{name}{number}"
        config = MemberConfig(name, origin, SLOTS, "h", ttl=TTL, margin=MARGIN, settle=0.05, broker_grace=30.0)
        slots = AtOnce()
        slots.member = self.member = Member(
            KS,
            lambda dead: replace(config, dead_incarnation=dead),
            FlowThread(lambda: OwnClient(lambda _: self.store)),
            slots,
            Lease({KS: SLOTS}),
            NameLock(folder, "store", KS, name),
            MagicMock(fresh_revokes=tuple),
            revoke_ttl=60.0,
            revoke_limit=10,
            instruments=instruments,
        )
        for kind in KINDS if listens else ():
            instruments.add(kind, self.facts.append)
        self.member.start()

    def told(self, kind: type[F]) -> list[F]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def has(self, slots: int) -> bool:
        return self.member.snapshot.phase is Phase.IN and self.member.slots() == (slots, 0)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Start a worker: `start("a")`; with `listens=False` nobody wants its reports."""
    server, workers = MemoryServer(), list[Worker]()

    def make(name: str, *, listens: bool = True) -> Worker:
        workers.append(Worker(name, server, tmp_path, len(workers), listens=listens))
        return workers[-1]

    yield make
    for worker in workers:
        worker.member.finish(0.0)


@pytest.fixture
def two(start: Callable[..., Worker]) -> tuple[Worker, Worker]:
    a = start("a")
    wait_until(lambda: a.has(SLOTS), 20, "a has all slots")
    b = start("b")
    wait_until(lambda: a.has(SLOTS // 2) and b.has(SLOTS // 2), 20, "they share the slots")
    wait_until(lambda: b.told(SlotsGained), 5, "b says so")
    return a, b


def all_of(batches: Sequence[SlotsGained | SlotsLost | SlotsTakenOver]) -> frozenset[int]:
    """Return the slots of some batches, each of which is in one of them."""
    slots = frozenset[int]().union(*(batch.slots for batch in batches))
    assert len(slots) == sum(len(batch.slots) for batch in batches)
    return slots


def test_a_join_is_reported_by_both_sides_with_the_other_one(two: tuple[Worker, Worker]) -> None:
    a, b = two
    first, *_ = a.told(SlotsGained)
    assert first == SlotsGained("a", KS, {"": EVERYTHING}), "one batch, of slots without an owner"
    [gained] = b.told(SlotsGained)
    assert gained.owners.keys() == {"a"} and len(gained.slots) == SLOTS // 2
    assert all_of(a.told(SlotsLost)) == gained.slots
    assert all(lost.given and lost.owners == {"b": lost.slots} for lost in a.told(SlotsLost))


def test_who_leaves_gives_away_and_is_not_taken_for_dead(two: tuple[Worker, Worker]) -> None:
    a, b = two
    mine = all_of(b.told(SlotsGained))
    assert b.member.finish(10.0)
    wait_until(lambda: a.has(SLOTS), 20, "a has all slots")
    wait_until(lambda: len(a.told(SlotsGained)) > 1, 5, "a says so")
    assert all_of(b.told(SlotsLost)) == mine and all(lost.owners == {"a": lost.slots} for lost in b.told(SlotsLost))
    _, *later = a.told(SlotsGained)
    assert all_of(later) == mine and all(gained.owners.keys() == {"b"} for gained in later)
    assert not any(isinstance(fact, SlotsTakenOver | WorkerEvicted | EvictedHere) for fact in a.facts + b.facts)


def test_a_takeover_names_the_dead_worker_and_the_dead_worker_learns_that_it_was_evicted(
    two: tuple[Worker, Worker],
) -> None:
    a, b = two
    mine = all_of(b.told(SlotsGained))
    b.store.cut = True
    wait_until(lambda: a.told(SlotsTakenOver), 20, "a takes over")
    assert a.told(SlotsTakenOver) == [SlotsTakenOver("a", KS, "b", mine)]
    [evicted] = a.told(WorkerEvicted)
    assert (evicted.evicted, evicted.slots) == ("b", len(mine)) and evicted.silence >= TTL + MARGIN
    b.store.cut = False
    wait_until(lambda: b.told(SlotsLost), 20, "b learns of it")
    [here] = b.told(EvictedHere)
    assert (here.incarnation, here.slots) == ("b1-0", len(mine)) and here.silence > TTL
    assert [(lost.slots, lost.given) for lost in b.told(SlotsLost)] == [(mine, False)], "one batch"
    wait_until(lambda: len(b.told(SlotsGained)) > 1, 20, "b has joined again")


def test_a_former_process_of_the_same_name_is_named_too(
    start: Callable[..., Worker], two: tuple[Worker, Worker]
) -> None:
    _, b = two
    mine = all_of(b.told(SlotsGained))
    b.store.cut = True
    b.member._name_lock.release()  # as the end of a process does
    successor = start("b")
    wait_until(lambda: successor.told(SlotsTakenOver), 20, "it takes over what the other one had")
    assert successor.told(SlotsTakenOver)[0].owner == "b"
    assert all_of(successor.told(SlotsTakenOver)) == mine


def test_each_request_to_the_store_is_measured(two: tuple[Worker, Worker]) -> None:
    a, _ = two
    wait_until(lambda: any(asked.request == "heartbeat" for asked in a.told(StoreAsked)), 10, "it sends a heartbeat")
    a.store.cut = True
    wait_until(lambda: not a.told(StoreAsked)[-1].answered, 10, "a request fails")
    answered = [asked for asked in a.told(StoreAsked) if asked.answered]
    assert {asked.request for asked in answered} == {"read", "heartbeat", "swap"}
    assert all(0 <= asked.seconds < 5 and (asked.worker, asked.keyspace) == ("a", KS) for asked in a.told(StoreAsked))


# -- off ---------------------------------------------------------------------------------------


def test_nothing_is_called_and_nothing_is_built_if_nobody_listens(
    start: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def must_not(*_: object, **__: object) -> None:
        raise AssertionError("nobody wants this")

    monkeypatch.setattr(Instruments, "tell", must_not)
    for kind in KINDS:
        monkeypatch.setattr(kind, "__init__", must_not)
    a = start("a", listens=False)
    wait_until(lambda: a.has(SLOTS), 20, "a has all slots")
    b = start("b", listens=False)
    wait_until(lambda: b.has(SLOTS // 2), 20, "b has its half")
    b.store.cut = True
    wait_until(lambda: a.has(SLOTS), 20, "a takes over")
    b.store.cut = False
    wait_until(lambda: b.has(SLOTS // 2), 20, "b is back")
    assert a.member.finish(10.0)
    assert "unexpected" not in caplog.text


def test_a_report_that_nobody_wants_costs_less_than_a_microsecond() -> None:
    instruments, repeats = Instruments(), 10_000

    def seconds() -> float:
        begun = time.thread_time()
        for _ in range(repeats):
            instruments.wants(SlotsGained, SlotsTakenOver)
        return (time.thread_time() - begun) / repeats

    assert min(seconds() for _ in range(5)) < 1e-6


def test_an_error_in_a_hook_is_logged_and_harms_no_other_hook(caplog: pytest.LogCaptureFixture) -> None:
    instruments, heard = Instruments(), list[Fact]()

    def fails(fact: Fact) -> None:
        raise ValueError("a broken hook")

    instruments.add(WorkerEvicted, fails)
    instruments.add(WorkerEvicted, heard.append)
    instruments.tell(fact := WorkerEvicted("a", KS, "b", 12.0, 3))
    instruments.tell(StoreAsked("a", KS, "read", 0.1, True))
    assert heard == [fact]
    assert "a broken hook" in caplog.text and "an instrumentation hook failed" in caplog.text


def test_every_fact_has_a_kind_of_its_own() -> None:
    assert {one for one in vars(facts).values() if isinstance(one, type) and issubclass(one, Fact)} == {
        Fact,
        JobFact,
        *KINDS,
        *JOB_KINDS,
    }


# -- the log -----------------------------------------------------------------------------------

SOME, MORE = frozenset({1}), frozenset({2, 3})


@pytest.mark.parametrize(
    ("fact", "level", "text"),
    [
        (SlotsGained("a", KS, {"": MORE}), "INFO", "gained 2 slots (2 had no owner)"),
        (SlotsGained("a", KS, {"": SOME, "b": MORE}), "INFO", "gained 3 slots (from b: 2, 1 had no owner)"),
        (
            SlotsGained("a", KS, dict.fromkeys("bcdefgh", SOME)),
            "INFO",
            "gained 1 slot (from b: 1, c: 1, d: 1, e: 1, f: 1, 2 other workers: 2)",
        ),
        (SlotsTakenOver("a", KS, "b", SOME), "INFO", "took over 1 slot from b, which was declared dead"),
        (SlotsTakenOver("a", KS, "a", SOME), "INFO", "took over 1 slot from its former process, which was declared"),
        (SlotsLost("a", KS, MORE, {"b": MORE}, given=True), "INFO", "gave away 2 slots (to b: 2)"),
        (SlotsLost("a", KS, SOME, {"": SOME}, given=False), "INFO", "lost 1 slot"),
        (
            WorkerEvicted("a", KS, "b", 12.04, 2),
            "WARNING",
            "evicted b, which has sent no heartbeat for 12.0 s; it owned 2 slots",
        ),
        (EvictedHere("a", KS, "a-1", 15.0, 2), "WARNING", "this worker was evicted: "),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Fact) else "",
)
def test_each_change_of_owners_is_one_line(fact: Fact, level: str, text: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    instruments = Instruments()
    log_owner_changes(instruments)
    instruments.tell(fact)
    [record] = caplog.records
    assert record.levelname == level and record.getMessage().startswith(f"keyspace ks: {text}")


# -- jobs ------------------------------------------------------------------------------------------

RUN = ("a@h", "ks", "sync", "t-7", "id", 2, 9)
JOB_FACTS = (
    (
        JobStarted(*RUN, 0.25),
        job_started,
        "keyspace ks: job 'sync' of key 't-7' has started within 0.25 s (start 2, epoch 9)",
    ),
    (
        JobStopped(*RUN, 0.5, "its key moves", 35.0),
        job_stopped,
        "keyspace ks: job 'sync' of key 't-7' has ended within 0.50 s, after it ran for 35.0 s: its key moves",
    ),
    (
        JobFailed(*RUN, 35.0, "OSError: no"),
        job_failed,
        "keyspace ks: job 'sync' of key 't-7' has failed after 35.0 s (start 2): OSError: no",
    ),
)


@pytest.mark.parametrize(("fact", "signal", "line"), JOB_FACTS, ids=lambda part: type(part).__name__)
def test_each_start_end_and_failure_of_a_job_is_one_line_and_one_signal(
    fact: JobFact, signal: Any, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "celery_sticky.jobs")
    instruments = Instruments()
    log_jobs(instruments)
    signal_jobs(instruments)
    heard: list[dict[str, Any]] = []

    def receiver(**named: Any) -> None:
        heard.append(named)

    signal.connect(receiver)
    try:
        instruments.tell(fact)
    finally:
        signal.disconnect(receiver)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [("INFO", line)]
    named = {field.name: getattr(fact, field.name) for field in fields(fact) if field.name != "worker"}
    assert heard == [{"sender": "a@h", "signal": signal, **named}]
    assert named.keys() == signal.providing_args
