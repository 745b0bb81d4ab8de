"""Keepers of several workers on one store, under random moves, deaths and delays, without threads or processes."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from harness.fake_host import FakeHost, World

from celery_sticky.errors import StoreUnavailable
from celery_sticky.instrumentation.facts import Fact, JobFailed, JobStarted, JobStopped
from celery_sticky.instrumentation.registry import Instruments
from celery_sticky.jobs.keeper.flow import Surroundings
from celery_sticky.jobs.keeper.held import HeldSlot, JobTimeouts, built_in_job
from celery_sticky.jobs.keeper.home import Home
from celery_sticky.jobs.keeper.keeper import Keeper
from celery_sticky.jobs.keeper.reconciler import JobReconciler
from celery_sticky.jobs.keeper.settling import Settling, Unsettled
from celery_sticky.jobs.keeper.slots import SharedSlots
from celery_sticky.jobs.retry import DEFAULT_RETRY, SETTLED, Retry
from celery_sticky.jobs.wire import Call, Calls, Ended, Notify, Saved, SaveRefused, Start, Stop, Yielded
from celery_sticky.keys import SlotId
from celery_sticky.membership.lease import Lease, boottime
from celery_sticky.ownership.events import Drained, Event, HostDown, HostUp, Opened, OpenRefused, TasksDrained
from celery_sticky.platform.flow_thread import FlowThread
from celery_sticky.slots import KeyPlace, Slot
from celery_sticky.stores.flow import serve
from celery_sticky.stores.jobs import (
    SEEN_RECORDS,
    STOPPED,
    UNWANTED,
    Admission,
    DispatchOutcome,
    JobRecord,
    JobState,
    NewJob,
    Report,
    RunResult,
    SlotJobs,
)
from celery_sticky.stores.memory.jobs import MemoryJobs, MemoryJobServer
from celery_sticky.stores.shared import OwnClient

SLOTS, KEYS = 4, 8
NEVER = 1e9
TERMS = JobTimeouts(start_timeout=1000.0, stop_timeout=1000.0, max_attempts=1000)


class Clock:
    """What keepers take for the time."""

    now = 1000.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(Clock, "now", 1000.0)
    return Clock()


class CountedJobs(MemoryJobs):
    """Counts the looks."""

    poller = 0
    looked_at = 0
    read = 0

    def look(self, known: Mapping[Slot, int]) -> Mapping[Slot, SlotJobs]:
        self.poller += 1
        self.looked_at += len(known)
        found = super().look(known)
        self.read += sum(len(jobs.records) for jobs in found.values())
        return found


class Placer:
    """What a keeper says of the places of keys."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.known: set[str] = set()

    def wanted(self, places: Collection[str]) -> None:
        fresh = [place for place in places if place not in self.known]
        self.known.update(fresh)
        self.heard += [("wanted", *fresh)] if fresh else []

    def listed(self, places: Collection[str]) -> None:
        self.known = set(places)
        self.heard.append(("listed", *sorted(places)))

    def drained(self, place: str, epoch: int, *, vacant: bool) -> None:
        self.known -= {place} if vacant else set()
        self.heard.append(("vacant" if vacant else "drained", place, epoch))

    def take(self) -> list[Any]:
        heard, self.heard = self.heard, []
        return heard


class Worker:
    """A keeper with its host, and whom it tells of drained slots."""

    def __init__(
        self,
        name: str,
        server: MemoryJobServer,
        world: World,
        timeouts: JobTimeouts = TERMS,
        *,
        poll: float = 0.0,
        plain: bool = False,
        **built_in: Any,
    ) -> None:
        self.name = name
        self.lease = Lease({"ks": SLOTS})
        self.lease.grant("ks", boottime() + 1e6, 1)
        self.store = CountedJobs(server, "ks")
        self.store.watch(0.0)  # subscribes
        self.host = FakeHost(name, world)
        self.drained: set[int] = set()
        self.reports: list[Event] = []
        self.facts: list[Fact] = []
        instruments = Instruments()
        for kind in (JobStarted, JobStopped, JobFailed):
            instruments.add(kind, self.facts.append)
        self.placer = Placer()
        here = Surroundings(
            "ks",
            name,
            self.host,
            partial(self.lease.trusted, "ks"),
            self._report,
            lambda: Clock.now,
            poll=poll,
            outcome_ttl=60.0,
            placer=None if plain else self.placer,
            instruments=instruments,
        )
        options = {"keyspace": "ks", "worker": name, **built_in}
        reconciler = JobReconciler(timeouts, place=self._place, **options)
        self.keeper = Keeper(here, reconciler, FlowThread(OwnClient))
        self.host.keeper = self.keeper
        self.host.boot()

    def _place(self, record: JobRecord, home: Home) -> int:
        return self.host.place(("ks", record.id), "", home)

    def _report(self, event: Event) -> None:
        self.reports.append(event)
        if isinstance(event, Drained):
            assert isinstance(event.slot, int)
            self.drained.add(event.slot)

    def work(self) -> None:
        Clock.now += 0.1
        self.keeper.heed(self.store.watch(0.0))
        self.turn()

    def turn(self) -> None:
        serve(self.keeper.turn(), self.store)


class Cluster:
    """Workers, and who owns which slot. A slot moves when its owner has drained it, or is dead."""

    def __init__(self, seed: int, workers: int = 3) -> None:
        self.random = random.Random(seed)
        self.server = MemoryJobServer()
        self.store = MemoryJobs(self.server, "ks")
        self.world = World()
        poll = NEVER if seed % 2 else 0.0  # then signals alone have to do
        self.workers = {name: Worker(name, self.server, self.world, poll=poll) for name in "abcdef"[:workers]}
        self.owner: dict[int, str] = {}
        self.epoch = dict.fromkeys(range(SLOTS), 1)
        self.moving: dict[int, str] = {}
        self.wanted: dict[str, str] = {}
        self.paused: set[str] = set()
        self.payloads: dict[str, int] = {}
        self.sent: dict[str, list[int]] = {}
        for slot in range(SLOTS):
            self.give(slot, self.random.choice(list(self.workers)))

    def give(self, slot: int, name: str) -> None:
        self.owner[slot] = name
        self.epoch[slot] += 1
        self.workers[name].keeper.open(slot, self.epoch[slot], 1)

    # -- what may happen -----------------------------------------------------------------------

    def dispatch(self) -> None:
        key = f"k{self.random.randrange(KEYS)}"
        job_id = f"{key}-{self.random.random()}"
        job = NewJob("job", key, int(key[1:]) % SLOTS, job_id, b"1")
        admission, _ = self.store.admit(job, max_queued=1000, outcome_ttl=60)
        assert (admission is Admission.ADMITTED) == (key not in self.wanted)
        if admission is Admission.ADMITTED:
            self.wanted[key] = job_id

    def stop(self) -> None:
        if self.wanted:
            key = self.random.choice(sorted(self.wanted))
            assert self.store.stop(int(key[1:]) % SLOTS, "job", key)
            del self.wanted[key]
            self.paused.discard(key)
            self.payloads.pop(key, None)
            self.sent.pop(key, None)

    def control(self) -> None:
        """Update, restart, pause or resume some job."""
        if self.wanted:
            key = self.random.choice(sorted(self.wanted))
            job = (int(key[1:]) % SLOTS, "job", key)
            match self.random.choice(("update", "restart", "pause", "resume")):
                case "update":
                    self.payloads[key] = self.random.randrange(1000)
                    assert self.store.update(*job, b"%d" % self.payloads[key], restart=True)
                case "restart":
                    assert self.store.update(*job, None, restart=True)
                case "pause":
                    assert self.store.pause(*job)
                    self.paused.add(key)
                case "resume":
                    assert self.store.resume(*job)
                    self.paused.discard(key)

    def notify(self) -> None:
        if self.wanted:
            key = self.random.choice(sorted(self.wanted))
            numbers = self.sent.setdefault(key, [])
            numbers.append(len(numbers))
            self.store.notify(int(key[1:]) % SLOTS, "job", key, b"%d" % numbers[-1], limit=1000)

    def save(self) -> None:
        host = self.random.choice(sorted(self.workers.values(), key=lambda worker: worker.name)).host
        for ref in host.runs:
            host.save(ref)

    def move(self) -> None:
        slot = self.random.randrange(SLOTS)
        if slot not in self.moving:
            self.moving[slot] = self.random.choice(sorted(self.workers))
            self.workers[self.owner[slot]].keeper.stop(slot)

    def hand_over(self) -> None:
        for slot, target in list(self.moving.items()):
            owner = self.workers[self.owner[slot]]
            if slot in owner.drained:
                owner.drained.discard(slot)
                del self.moving[slot]
                self.give(slot, target)

    def evict(self) -> None:
        """A worker's trust ends, so that its host dies; others take its slots; it comes back with none."""
        name = self.random.choice(sorted(self.workers))
        worker = self.workers[name]
        worker.host.die()
        for slot in [slot for slot, owner in self.owner.items() if owner == name]:
            worker.keeper.close(slot)
            worker.drained.discard(slot)
            self.moving.pop(slot, None)
            self.give(slot, self.random.choice(sorted(self.workers)))
        worker.host.boot()

    def host_dies(self) -> None:
        host = self.random.choice(sorted(self.workers.values(), key=lambda worker: worker.name)).host
        host.die()
        host.boot()

    def forget_fence(self) -> None:
        """Late requests of a former owner."""
        slot = self.random.randrange(SLOTS)
        with pytest.raises(Exception, match="fenced"):
            self.store.reserve(slot, self.epoch[slot] - 1, "ghost", [])

    def step(self) -> None:
        worker = self.random.choice(sorted(self.workers.values(), key=lambda worker: worker.name))
        self.random.choice((worker.work, worker.work, worker.host.step, worker.host.step, self.hand_over))()

    def settle(self) -> None:
        for _ in range(200):
            self.hand_over()
            for worker in self.workers.values():
                worker.work()
                while worker.host.inbox:
                    worker.host.step()

    def check(self) -> None:
        running = {key: worker for (_, key), (worker, _) in self.world.running.items()}
        assert running == {key: self.owner[int(key[1:]) % SLOTS] for key in self.wanted if key not in self.paused}
        records = {record.key: record for record in self.store.records()}
        assert records.keys() == self.wanted.keys()
        for key, record in records.items():
            assert record.id == self.wanted[key]
            if key in self.paused:
                assert record.state is JobState.PAUSED
            else:
                assert (record.state, record.fresh) == (JobState.RUNNING, False)
                assert self.world.payloads[record.id] == self.payloads.get(key, 1), f"payload of {key}"
        for key, numbers in self.sent.items():
            if key in self.paused:
                continue
            firsts = list(dict.fromkeys(self.world.noted.get(self.wanted[key], [])))
            assert firsts == numbers, f"notes of {key}"


@pytest.mark.parametrize("block", range(8))
def test_wanted_jobs_run_once_at_their_owner_whatever_happens(block: int) -> None:
    for seed in range(block * 50, block * 50 + 50):
        cluster = Cluster(seed)
        happenings = (
            [cluster.dispatch] * 6
            + [cluster.stop, cluster.move, cluster.notify, cluster.notify]
            + [cluster.evict, cluster.host_dies, cluster.save, cluster.save]
            + [cluster.control] * 4
        )
        try:
            for _ in range(150):
                if cluster.random.random() < 0.15:
                    cluster.random.choice(happenings)()
                cluster.step()
            cluster.settle()
            cluster.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error


# -- one worker ------------------------------------------------------------------------------------


@pytest.fixture
def server() -> MemoryJobServer:
    return MemoryJobServer()


def alone(server: MemoryJobServer, **timeouts: Any) -> Worker:
    settings = {"start_timeout": 1000.0, "stop_timeout": 1000.0, "max_attempts": 3, **timeouts}
    worker = Worker("a", server, World(), JobTimeouts(**settings))
    worker.keeper.open(0, 1, 1)
    return worker


def admit(worker: Worker, key: str = "k", job_id: str = "id") -> None:
    admission, _ = worker.store.admit(NewJob("job", key, 0, job_id, b"1"), max_queued=10, outcome_ttl=60)
    assert admission is Admission.ADMITTED


def run(worker: Worker, turns: int = 5) -> None:
    for _ in range(turns):
        worker.work()
        while worker.host.inbox:
            worker.host.step()


def state(worker: Worker) -> str:
    found = worker.store.records()
    return found[0].state.value if found else "gone"


def test_a_started_job_has_an_outcome(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    assert state(worker) == "running"
    assert worker.store.outcome("id", 0) == DispatchOutcome()


def test_a_job_of_the_house_runs_in_a_slot_where_nothing_was_ever_written(server: MemoryJobServer) -> None:
    worker = Worker("a", server, World(), built_in={0: [built_in_job("schedule:x", 0)]})
    worker.keeper.open(0, 1, 1)
    run(worker)
    assert worker.host.world.starts == [("schedule:x", "a", 1)]
    assert not worker.store.records()


def test_a_store_that_fails_between_two_slots_loses_no_start(server: MemoryJobServer) -> None:
    """Guards: nobody is told of a slot again whose start could not be reserved."""
    worker = Worker("a", server, World(), poll=NEVER)
    for slot in range(SLOTS):
        worker.keeper.open(slot, 1, 1)
        admitted = worker.store.admit(NewJob("job", f"k{slot}", slot, f"id{slot}", b"1"), max_queued=10, outcome_ttl=60)
        assert admitted[0] is Admission.ADMITTED
    reserve, failures = worker.store.reserve, iter((True, False, True))

    def broken(*args: Any, **options: Any) -> Any:
        if next(failures, False):
            raise StoreUnavailable
        return reserve(*args, **options)

    worker.store.reserve = broken  # type: ignore[method-assign]
    for _ in range(4):
        with suppress(StoreUnavailable):
            run(worker)
    assert {record.state for record in worker.store.records()} == {JobState.RUNNING}


@pytest.mark.parametrize("verb", ["open", "look", "reserve", "settle"])
def test_a_slot_whose_records_are_refused_keeps_no_other_waiting(
    server: MemoryJobServer, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker("a", server, World(), poll=1.0)
    refused, bad = [0.0], 1
    do = getattr(worker.store, verb)

    def refusing(slot: Any, *args: Any, **options: Any) -> Any:
        if bad == slot or (isinstance(slot, Mapping) and bad in slot):
            refused.append(Clock.now)
            raise StoreUnavailable("Redis: ResponseError: WRONGTYPE")
        return do(slot, *args, **options)

    setattr(worker.store, verb, refusing)
    for slot in range(SLOTS):
        worker.keeper.open(slot, 1, 1)
        worker.store.admit(NewJob("job", f"k{slot}", slot, f"id{slot}", b"1"), max_queued=10, outcome_ttl=60)
    run(worker, 600)
    states = {record.slot: record.state for record in worker.store.records()}
    assert {slot for slot, state in states.items() if state is JobState.RUNNING} == set(range(SLOTS)) - {bad}
    assert 3 < len(refused) < 40, "it is tried again, less and less often"
    assert f"slot 1 at memory, ks, 1: {verb} has failed: Redis: ResponseError: WRONGTYPE; trying again" in caplog.text
    bad = -1
    run(worker, 200)
    assert {record.state for record in worker.store.records()} == {JobState.RUNNING}


def test_a_note_that_was_taken_is_not_given_to_the_next_run(server: MemoryJobServer) -> None:
    """Guards: one that ends the host does so again in the next one, and in the next."""
    worker = Worker("a", server, World(), poll=NEVER)
    worker.keeper.open(0, 1, 1)
    admit(worker)
    run(worker)
    worker.store.notify(0, "job", "k", b"1", limit=10)
    run(worker)
    worker.host.die()  # nobody is charged: that would be a reason to look
    worker.host.boot()
    run(worker, 50)
    assert len(worker.host.world.starts) == 2
    assert worker.host.world.noted["id"] == [1]


# -- notifications that are not handled ------------------------------------------------------------


def waiting(worker: Worker) -> list[tuple[bytes, int]]:
    """Return payload and failed deliveries of the notes that wait."""
    found = worker.store.look({0: 0})
    return [(note.payload, note.failed) for note in found[0].notes] if found else []


def notified(server: MemoryJobServer, *payloads: bytes, **bad: str) -> Worker:
    """Return a worker whose job `k` has these notes; `bad` says what it does with them."""
    worker = Worker("a", server, World(), replace(TERMS, max_deliveries=3), poll=NEVER)
    worker.host.bad = {int(payload[1:]): how for payload, how in bad.items()}
    worker.keeper.open(0, 1, 1)
    admit(worker)
    run(worker)
    for payload in payloads:
        worker.store.notify(0, "job", "k", payload, limit=10)
    return worker


@pytest.mark.parametrize("how", ["raises", "dies"])
def test_a_note_that_is_not_handled_is_delivered_until_its_limit_and_the_next_one_follows(
    server: MemoryJobServer, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker = notified(server, b"1", b"2", n1=how)
    run(worker, 300)
    assert worker.host.world.delivered == [(1, 1), (1, 2), (1, 3), (2, 1)]
    assert worker.host.world.noted["id"] == [2]
    assert waiting(worker) == [] and state(worker) == "running"
    assert [run.taken for run in worker.keeper.runs()] == [{}], "nothing is kept of notes that are settled"
    (dead,) = worker.store.dead_notes()
    assert (dead.name, dead.key, dead.deliveries) == ("job", "k", 3)
    assert dead.error == {"raises": "ValueError: bad", "dies": "its process ended"}[how]
    assert "a notification of job 'job' of key 'k' is dead after 3 deliveries: " in caplog.text


def test_a_host_that_dies_counts_against_no_note_but_the_culprits(server: MemoryJobServer) -> None:
    """Guards: a note of an innocent job died because its neighbour killed the host again and again."""
    worker = notified(server, b"1", b"2", n1="holds")
    run(worker)
    admit(worker, "killer", "killer")
    run(worker)
    worker.host.bad[9] = "dies"
    worker.store.notify(0, "job", "killer", b"9", limit=10)
    run(worker, 600)
    assert [dead.key for dead in worker.store.dead_notes()] == ["killer"]
    assert waiting(worker)[0] == (b"1", 0)


def test_a_note_that_blocks_the_loop_counts(server: MemoryJobServer) -> None:
    worker = notified(server, b"1", n1="holds")
    run(worker)
    (ref,) = worker.host.runs
    worker.host.die({ref: "it blocked the event loop"})
    worker.host.boot()
    run(worker, 1)
    assert waiting(worker) == [(b"1", 1)]


def test_a_host_that_is_killed_for_another_reason_counts_against_no_note(server: MemoryJobServer) -> None:
    worker = notified(server, b"1", n1="holds")
    run(worker)
    worker.host.die()
    worker.host.boot()
    run(worker)
    assert worker.host.world.delivered == [(1, 1), (1, 1)] and waiting(worker) == [(b"1", 0)]


def test_a_note_that_a_job_does_not_let_go_when_it_is_to_stop_counts(server: MemoryJobServer) -> None:
    worker = notified(server, b"1", n1="holds")
    run(worker)
    worker.keeper.stop(0)
    worker.turn()
    worker.host.inbox.clear()
    Clock.now += TERMS.stop_timeout
    worker.turn()
    assert worker.drained == set()
    worker.turn()
    assert worker.drained == {0}
    (note,) = worker.store.look({0: 0})[0].notes
    assert note.failed == 1, "it is stored before the slot is given away"


def test_a_failed_delivery_is_stored_before_the_next_one(server: MemoryJobServer) -> None:
    worker = notified(server, b"1", n1="raises")
    settle = worker.store.settle

    def refuse(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("away")

    worker.store.settle = refuse  # type: ignore[method-assign]
    for _ in range(100):
        with suppress(StoreUnavailable):
            run(worker, 1)
    assert worker.host.world.delivered == [(1, 1)]
    worker.store.settle = settle  # type: ignore[method-assign]
    run(worker, 100)
    assert worker.host.world.delivered == [(1, 1), (1, 2), (1, 3)]


def test_a_job_may_have_its_own_number_of_deliveries(server: MemoryJobServer) -> None:
    timeouts = replace(TERMS, own_max_deliveries={"job": 1})
    worker = Worker("a", server, World(), timeouts)
    worker.host.bad = {1: "raises"}
    worker.keeper.open(0, 1, 1)
    admit(worker)
    worker.store.notify(0, "job", "k", b"1", limit=10)
    run(worker, 20)
    assert [start.max_deliveries for start in worker.host.runs.values()] == [1]
    assert [dead.deliveries for dead in worker.store.dead_notes()] == [1]


def test_a_job_that_takes_no_notes_does_not_keep_those_of_its_neighbours_away(server: MemoryJobServer) -> None:
    worker = Worker("a", server, World(), poll=NEVER)
    worker.keeper.open(0, 1, 1)
    admit(worker)
    admit(worker, "deaf", "deaf")
    run(worker)
    for n in range(1200):
        worker.store.notify(0, "job", "deaf", b"0", limit=5000)
        worker.store.notify(0, "job", "k", b"%d" % n, limit=5000)
    (deaf,) = [ref for ref, start in worker.host.runs.items() if start.key == "deaf"]
    for _ in range(40):
        worker.work()
        assert len(worker.host.inbox) <= 1000
        worker.host.inbox = deque(
            said for said in worker.host.inbox if not isinstance(said, Notify) or said.ref != deaf
        )
        while worker.host.inbox:
            worker.host.step()
    assert worker.host.world.noted["id"] == list(range(1200))


def test_while_the_store_is_away_jobs_are_stopped_all_the_same(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    worker.keeper.stop(0)
    server.stop()
    with pytest.raises(StoreUnavailable):
        worker.turn()
    assert worker.host.inbox == deque([Stop(1)])


def test_a_start_is_written_down_again_where_a_failover_has_lost_it(server: MemoryJobServer) -> None:
    worker = alone(server)
    for key in ("k", "l"):
        admit(worker, key, key)
    before = server.snapshot()
    run(worker)
    server.roll_back(before)
    worker.keeper.open(0, 1, 1)
    worker.keeper._reconciler.unfenced(0)
    run(worker)
    assert [(record.state, record.fresh) for record in worker.store.records()] == [(JobState.RUNNING, False)] * 2
    assert len(worker.host.world.starts) == 2


def test_a_running_job_is_recorded_as_running_also_when_an_old_request_arrives_late(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    for late in (RunResult.FAILED, None):
        if late is None:
            worker.store.reserve(0, 1, "a", ["id"])
        else:
            worker.store.settle(0, 1, [Report("id", late, "no")], (), outcome_ttl=60)
        assert state(worker) != "running"
        run(worker)
        assert state(worker) == "running" and len(worker.host.world.starts) == 1


def test_a_job_starts_under_the_membership_its_slot_was_opened_in_or_not_at_all(server: MemoryJobServer) -> None:
    """Guards: evicted and back, this worker must not start what was its own in the time before."""
    worker = alone(server)
    worker.work()
    worker.lease.grant("ks", boottime() + 1e6, 2)
    admit(worker)
    run(worker)
    assert not worker.host.world.starts


def test_an_overdue_host_is_killed_once_and_also_while_the_store_is_away(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    kills: list[int] = []
    worker.host.kill = lambda number, reason, blame: kills.append(number)  # type: ignore[method-assign]
    worker.keeper.close(0)
    server.stop()
    for _ in range(3):
        with suppress(StoreUnavailable):
            worker.turn()
    assert kills == [1]


def test_a_slot_is_looked_at_once_for_a_dispatch_and_not_for_those_of_others(server: MemoryJobServer) -> None:
    owner, other = (Worker(name, server, World(), poll=NEVER) for name in "ab")
    owner.keeper.open(0, 1, 1)
    other.keeper.open(1, 1, 1)
    for worker in (owner, other):
        run(worker)
        worker.store.poller = 0
    admit(owner)
    for worker in (owner, other):
        run(worker)
    assert state(owner) == "running"
    assert (owner.store.poller, other.store.poller) == (1, 0)


def test_a_big_look_keeps_no_start_waiting(server: MemoryJobServer) -> None:
    worker = Worker("a", server, World())
    for slot in range(SLOTS):
        worker.keeper.open(slot, 1, 1)
        for i in range(SEEN_RECORDS // 2):
            job = NewJob("job", f"k{slot}-{i}", slot, f"{slot}-{i}", b"1")
            worker.store.admit(job, max_queued=10**6, outcome_ttl=60)
    run(worker, 1)
    assert len(worker.host.world.starts) == SEEN_RECORDS, "those are done first"
    worker.store.admit(NewJob("job", "new", SLOTS - 1, "new", b"1"), max_queued=10**6, outcome_ttl=60)
    run(worker, 1)
    assert "new" in {key for key, *_ in worker.host.world.starts}, "and what has just come before what was there"
    run(worker, 2)
    assert len(worker.host.world.starts) == SLOTS * (SEEN_RECORDS // 2) + 1


def test_what_changes_all_the_time_keeps_no_other_slot_from_being_looked_at(server: MemoryJobServer) -> None:
    worker = Worker("a", server, World(), poll=NEVER)
    for slot in range(SLOTS):
        worker.keeper.open(slot, 1, 1)
        for i in range(SEEN_RECORDS):
            job = NewJob("job", f"k{slot}-{i}", slot, f"{slot}-{i}", b"1")
            worker.store.admit(job, max_queued=10**6, outcome_ttl=60)
    for _ in range(4 * SLOTS):
        for slot in range(SLOTS - 1):
            worker.store.notify(slot, "job", f"k{slot}-0", b"1", limit=10**6)
        run(worker, 1)
    assert len(worker.host.world.starts) == SLOTS * SEEN_RECORDS


def test_what_a_keeper_has_written_down_itself_it_does_not_read_again(server: MemoryJobServer) -> None:
    worker = alone(server)
    for key in ("k", "l"):
        admit(worker, key, key)
        run(worker)
        worker.store.notify(0, "job", key, b"1", limit=9)
        run(worker)
    before = worker.store.poller, worker.store.read
    run(worker)
    assert worker.store.poller > before[0] and worker.store.read == before[1]
    worker.store.notify(0, "job", "l", b"1", limit=9)
    run(worker)
    assert worker.store.read == before[1] + 2, "both records of the slot, once"
    worker.host.die()
    worker.host.boot()
    run(worker)
    assert [record.fresh for record in worker.store.records()] == [False, False]
    assert {key: len(notes) for key, notes in worker.host.world.noted.items()} == {"k": 1, "l": 2}


class Unanswered(CountedJobs):
    """Loses the answer to the first `settle`."""

    settled = 0

    def settle(self, *args: Any, **options: Any) -> int:
        revision = super().settle(*args, **options)
        self.settled += 1
        if self.settled == 1:
            raise StoreUnavailable("no answer")
        return revision


def test_what_was_written_down_by_a_request_whose_answer_was_lost_is_looked_at(server: MemoryJobServer) -> None:
    worker = Worker("a", server, World(), poll=NEVER)
    worker.store = Unanswered(server, "ks")
    worker.store.watch(0.0)  # subscribes
    worker.keeper.open(0, 1, 1)
    admit(worker)
    run(worker, 10)
    assert worker.store.settled == 2 and state(worker) == "running"
    before = worker.store.read
    worker.keeper.heed([0])
    run(worker)
    assert worker.store.read == before, "it is known already"


def test_a_fresh_job_whose_start_fails_is_removed_and_says_why(server: MemoryJobServer) -> None:
    worker = alone(server)
    worker.host.failing.add("k")
    admit(worker)
    run(worker)
    assert state(worker) == "gone"
    assert worker.store.outcome("id", 0) == DispatchOutcome("ValueError: no")
    worker.host.failing.clear()
    admit(worker, job_id="again")
    run(worker)
    assert state(worker) == "running", "the failure of another dispatch holds nothing up"


def test_a_job_that_ran_and_fails_is_kept_and_tried_again_later(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    worker.host.end(1, "OSError: gone")
    run(worker)
    (record,) = worker.store.records()
    assert (record.state, record.error) == (JobState.FAILING, "OSError: gone")
    assert len(worker.host.world.starts) == 1, "not at once"
    wake_at = worker.keeper._reconciler.wake_at()
    assert wake_at is not None
    assert 0.5 < wake_at - Clock.now <= 1.0


def test_a_job_that_comes_to_its_own_end_goes(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    worker.host.end(1)
    run(worker)
    assert state(worker) == "gone"


def test_a_start_that_takes_too_long_has_failed(server: MemoryJobServer) -> None:
    worker = alone(server, start_timeout=0.0)
    admit(worker)
    worker.work()
    (start,) = worker.host.inbox
    assert isinstance(start, Start)
    worker.host.inbox.clear()
    worker.keeper.heard(Calls(start.ref, Call.START))
    worker.work()
    assert worker.host.inbox == deque([Stop(start.ref)])
    worker.keeper.heard(Ended(start.ref))
    run(worker)
    outcome = worker.store.outcome("id", 0)
    assert outcome is not None
    assert "longer than 0 s" in outcome.error


def test_a_stop_that_takes_too_long_kills_the_host(server: MemoryJobServer) -> None:
    worker = alone(server, stop_timeout=0.0)
    admit(worker)
    run(worker)
    number = worker.host.number
    worker.keeper.stop(0)
    worker.work()
    assert not worker.drained, "it still runs"
    worker.work()
    assert worker.host.number > number
    worker.work()
    worker.work()
    assert worker.drained == {0}


class Courier:
    """The tasks of a worker's slots."""

    def __init__(self, worker: Worker) -> None:
        self.told: list[Event] = []
        """What the member hears."""
        self.slots = SharedSlots(self, worker.keeper, worker.lease.membership, self.told.append)
        self.crosses = False
        """It is about to say that a slot is open when that is stopped."""

    def open(self, slot: SlotId, *_: Any) -> None:
        if not self.crosses:
            self.slots.report(Opened(slot[1], 1))

    def close(self, *_: Any) -> None: ...

    def stop(self, slot: SlotId) -> None:
        if self.crosses:
            self.slots.report(Opened(slot[1], 1))


SLOT = ("ks", 0)


def test_jobs_run_on_start_and_hear_notifications_until_the_tasks_of_their_slot_have_ended(
    server: MemoryJobServer,
) -> None:
    worker = Worker("a", server, World())
    courier = Courier(worker)
    admit(worker)
    courier.slots.open(SLOT, 1, "a-0")
    run(worker)
    courier.slots.stop(SLOT)
    worker.store.notify(0, "job", "k", b"1", limit=9)
    admit(worker, key="other", job_id="fresh")
    admit(worker, key="unwanted", job_id="stopped")
    run(worker)
    worker.store.stop(0, "job", "unwanted")
    run(worker)
    assert worker.host.world.noted == {"id": [1]}
    assert {run.key for run in worker.host.runs.values()} == {"k", "other"}
    courier.slots.report(Drained(0))
    run(worker)
    assert courier.told == [Opened(0, 1), TasksDrained(0)]
    assert not worker.drained and len(worker.host.runs) == 2, "the member decides"
    courier.slots.stop_jobs(SLOT)
    admit(worker, key="late", job_id="late")
    run(worker)
    assert worker.drained == {0}
    assert not worker.host.runs
    states = {record.key: record.state.value for record in worker.store.records()}
    assert states == {"k": "running", "other": "running", "late": "queued"}, "they are still wanted"


def test_jobs_run_on_where_the_slot_is_opened_again_under_its_epoch(server: MemoryJobServer) -> None:
    worker = Worker("a", server, World())
    courier = Courier(worker)
    admit(worker)
    courier.slots.open(SLOT, 1, "a-0")
    run(worker)
    courier.slots.stop(SLOT)
    courier.slots.report(Drained(0))
    courier.slots.open(SLOT, 1, "a-0")
    run(worker)
    assert worker.host.world.starts == [("k", "a", 1)] and worker.host.runs


def test_a_slot_the_keeper_never_saw_has_no_jobs_left(server: MemoryJobServer) -> None:
    worker = alone(server)
    worker.keeper.stop(3)
    worker.work()
    assert worker.drained == {3}


def test_an_opening_that_crosses_a_stop_does_not_keep_the_slot(server: MemoryJobServer) -> None:
    """Guards: the courier may be saying that the slot is open in the moment in which the member stops it."""
    worker = Worker("a", server, World())
    courier = Courier(worker)
    courier.crosses = True
    admit(worker)
    courier.slots.open(SLOT, 1, "a-0")
    courier.slots.stop(SLOT)
    courier.slots.report(Drained(0))
    courier.slots.stop_jobs(SLOT)
    run(worker)
    assert worker.drained == {0}
    assert not worker.host.world.starts


def test_records_of_a_later_epoch_stop_the_jobs_of_a_slot_and_do_not_give_it_away(server: MemoryJobServer) -> None:
    """Guards: its tasks may run, and the member has to open it again under a higher epoch."""
    worker = alone(server)
    admit(worker)
    run(worker)
    worker.keeper.open(0, 2, 1)
    worker.store.open(0, 7)
    run(worker)
    assert not worker.drained and not worker.host.runs
    assert OpenRefused(0, 7) in worker.reports
    worker.keeper.open(0, 8, 1)
    run(worker)
    assert worker.host.world.starts[-1] == ("k", "a", 8)


def test_nothing_starts_without_trust(server: MemoryJobServer) -> None:
    worker = alone(server)
    worker.lease.grant("ks", 0.0, 1)
    admit(worker)
    run(worker)
    assert not worker.host.world.starts
    assert state(worker) == "queued"
    worker.lease.grant("ks", boottime() + 1e6, 1)
    run(worker)
    assert state(worker) == "running"


def test_nothing_starts_in_a_slot_that_is_given_away(server: MemoryJobServer) -> None:
    worker = alone(server)
    worker.work()
    worker.keeper.stop(0)
    admit(worker)
    run(worker)
    assert state(worker) == "queued"


def test_a_slot_that_is_somebody_elses_kills_what_runs_of_it(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    worker.keeper.close(0)
    worker.work()
    assert not worker.host.runs


def test_a_raised_epoch_starts_a_job_again_under_it(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    worker.keeper.open(0, 5, 1)
    run(worker)
    assert worker.host.world.starts == [("k", "a", 1), ("k", "a", 5)]


def crash(worker: Worker, turns: int, *killers: str) -> None:
    """Let time pass; a job of these keys ends its process when it is started, and all in it are to blame."""
    for _ in range(turns):
        worker.work()
        starts = [said for said in worker.host.inbox if isinstance(said, Start)]
        if any(start.key in killers for start in starts):
            worker.host.die({start.ref: "its process ended" for start in starts})
            worker.host.boot()
        while worker.host.inbox:
            worker.host.step()


def test_a_first_start_that_ends_its_process_fails_once_it_was_alone(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    crash(worker, 20, "k")
    assert state(worker) == "gone"
    assert set(worker.host.apart) == {"id"}
    assert worker.store.outcome("id", 0) == DispatchOutcome("its process ended")


def test_a_first_start_that_others_may_have_ended_is_tried_apart_and_does_not_count(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    worker.work()
    worker.host.die({1: "its process ended"})
    worker.work()
    assert [(record.state, record.attempt) for record in worker.store.records()] == [(JobState.QUEUED, 0)]
    worker.host.boot()
    run(worker)
    assert state(worker) == "running"
    assert set(worker.host.apart) == {"id"}


def test_a_start_that_moves_away_before_it_has_a_result_does_not_count(server: MemoryJobServer) -> None:
    """Guards: a fresh job whose slot moves again and again was given up, as if it killed its workers."""
    store = MemoryJobs(server, "ks")
    assert store.admit(NewJob("job", "k", 0, "id", b"1"), max_queued=10, outcome_ttl=60)[0] is Admission.ADMITTED
    for epoch in range(1, 9):
        worker = Worker(f"w{epoch}", server, World(), JobTimeouts(1000.0, 1000.0, max_attempts=1))
        worker.keeper.open(0, epoch, 1)
        while not any(isinstance(said, Start) for said in worker.host.inbox):
            worker.work()
        worker.keeper.stop(0)
        worker.host.inbox.clear()
        worker.work()
        worker.keeper.heard(Ended(1))
        worker.work()
        worker.work()
        assert 0 in worker.drained
    (record,) = store.records()
    assert (record.state, record.attempt) == (JobState.QUEUED, 0)


def test_a_job_that_ends_its_process_again_and_again_waits_longer_each_time_and_runs_apart(
    server: MemoryJobServer,
) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    worker.host.die({1: "its process ended"})
    worker.host.boot()
    crash(worker, 1500, "k")
    (found,) = worker.store.records()
    assert (found.state, found.error, found.apart) == (JobState.FAILING, "its process ended", True)
    assert found.strikes == found.failures > 5
    assert found.attempt < 12, "it waits longer each time"
    assert set(worker.host.apart) == {"id"}


def test_an_isolated_job_fails_like_any_other_and_is_never_quarantined(server: MemoryJobServer) -> None:
    worker = alone(server, isolated=frozenset({"job"}))
    admit(worker)
    run(worker)
    worker.host.die({1: "its process ended"})
    worker.host.boot()
    worker.work()
    (found,) = worker.store.records()
    assert (found.state, found.error, found.failures) == (JobState.FAILING, "its process ended", 1)
    assert (found.strikes, found.apart) == (0, False)
    Clock.now += DEFAULT_RETRY.backoff
    run(worker)
    assert state(worker) == "running" and set(worker.host.apart) == {"id"}
    starts = len(worker.host.world.starts)
    Clock.now += SETTLED
    run(worker)
    (found,) = worker.store.records()
    assert (found.failures, len(worker.host.world.starts)) == (0, starts), "it goes on where it is"


def test_a_first_start_that_ends_the_process_of_an_isolated_job_has_failed(server: MemoryJobServer) -> None:
    worker = alone(server, isolated=frozenset({"job"}))
    admit(worker)
    worker.work()
    worker.host.die({1: "its process ended"})
    worker.work()
    assert state(worker) == "gone"
    assert worker.store.outcome("id", 0) == DispatchOutcome("its process ended")


def test_a_job_that_runs_well_apart_goes_back_to_the_others_and_its_strikes_are_kept(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    worker.host.die({1: "its process ended"})
    worker.host.boot()
    run(worker, 30)
    assert (worker.host.apart, len(worker.host.world.starts)) == (["id"] * len(worker.host.apart), 2)
    worker.host.apart.clear()
    Clock.now += SETTLED
    run(worker)
    (found,) = worker.store.records()
    assert (found.state, found.failures, found.strikes, found.apart) == (JobState.RUNNING, 0, 1, False)
    assert len(worker.host.world.starts) == 3 and not worker.host.apart


def test_a_new_owner_keeps_a_job_apart_that_was_to_blame_elsewhere(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    worker.keeper.stop(0)
    worker.work()
    worker.host.die({1: "its stop took longer than 10 s"})
    worker.work()
    worker.work()
    assert worker.drained == {0}, "and only now"
    other = Worker("b", server, World())
    other.keeper.open(0, 2, 1)
    run(other)
    assert set(other.host.apart) == {"id"}


def test_a_job_whose_key_belongs_to_no_worker_for_a_while_stays_apart_and_keeps_its_failures(
    server: MemoryJobServer,
) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    worker.host.die({1: "its process ended"})
    worker.host.boot()
    worker.keeper.stop(0)
    worker.work()
    nobody = Worker("b", server, World())
    nobody.keeper.open(0, 2, 1, "nobody has pinned its key")
    run(nobody)
    (found,) = worker.store.records()
    assert found.error == "nobody has pinned its key"
    assert (found.failures, found.strikes, found.apart) == (1, 1, True)


def test_a_job_is_given_up_after_so_many_failures_in_a_row_under_any_owner(server: MemoryJobServer) -> None:
    store = MemoryJobs(server, "ks")
    new = NewJob("job", "k", 0, "id", b"1", durable=True)
    assert store.admit(new, max_queued=10, outcome_ttl=60)[0] is Admission.ADMITTED
    for epoch in (1, 2):
        worker = Worker(f"w{epoch}", server, World(), retry_of=lambda name: Retry(max_starts=4))
        worker.host.failing.add("k")
        worker.keeper.open(0, epoch, 1)
        while len(worker.store.records()) == 1 and store.records()[0].failures < 2 * epoch:
            run(worker)
        worker.keeper.stop(0)
        run(worker)
    (found,) = store.records()
    assert (found.state, found.failures, found.error) == (JobState.FAILED, 4, "ValueError: no")
    worker.keeper.open(0, 3, 1)
    worker.host.failing.clear()
    run(worker, 100)
    assert state(worker) == "failed"
    assert store.update(0, "job", "k", None, restart=True)
    run(worker)
    assert state(worker) == "running"


def test_a_start_that_takes_whole_workers_with_it_is_given_up_too(server: MemoryJobServer) -> None:
    """Guards: who has not seen it die starts it for ever, each worker again."""
    store = MemoryJobs(server, "ks")
    admission, _ = store.admit(NewJob("job", "k", 0, "id", b"1"), max_queued=10, outcome_ttl=60)
    assert admission is Admission.ADMITTED
    for epoch in range(1, 8):
        worker = Worker(f"w{epoch}", server, World(), JobTimeouts(1000.0, 1000.0, max_attempts=3))
        worker.keeper.open(0, epoch, 1)
        for _ in range(10):
            worker.work()
    outcome = store.outcome("id", 0)
    assert outcome is not None and "6 starts ended without a result" in outcome.error


def test_a_start_that_was_too_late_when_its_host_was_killed_has_failed(server: MemoryJobServer) -> None:
    """Guards: what blocks the host does so again in each next one."""
    worker = alone(server, start_timeout=1.0, stop_timeout=1.0)
    admit(worker)
    for _ in range(40):
        worker.work()
        for said in worker.host.inbox:
            if isinstance(said, Start):
                worker.keeper.heard(Calls(said.ref, Call.START))
        worker.host.inbox.clear()  # the host says nothing more
    assert worker.host.number == 2, "it was killed once"
    outcome = worker.store.outcome("id", 0)
    assert outcome == DispatchOutcome("its start took longer than 1 s")


@pytest.mark.parametrize("started", [True, False])
def test_a_run_that_yields_to_the_end_of_trust_starts_again_and_has_not_ended(
    server: MemoryJobServer, started: bool
) -> None:
    worker = alone(server)
    admit(worker)
    if started:
        run(worker)
        worker.host.end(1, yields=True)
    else:
        worker.work()
        worker.host.inbox.clear()
        worker.keeper.heard(Yielded(1))
    run(worker)
    (found,) = worker.store.records()
    assert (found.state, found.failures, found.attempt) == (JobState.RUNNING, 0, 1 + started)


def test_a_stop_while_it_starts_is_kept(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    worker.work()
    worker.store.stop(0, "job", "k")
    assert isinstance(worker.host.inbox.popleft(), Start)
    worker.work()
    assert worker.host.inbox == deque([Stop(1)])
    worker.host.inbox.clear()
    worker.keeper.heard(Ended(1))
    run(worker)
    assert state(worker) == "gone"
    assert not worker.host.world.running
    assert worker.store.outcome("id", 0) == DispatchOutcome(STOPPED)


def test_a_dispatch_over_a_stopping_job_stops_the_old_run_first(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    worker.store.stop(0, "job", "k")
    admit(worker, job_id="new")
    run(worker)
    (record,) = worker.store.records()
    assert (record.id, record.state) == ("new", JobState.RUNNING)
    assert len(worker.host.world.starts) == 2


def test_a_job_that_is_stopped_before_the_old_run_has_ended_goes_after_it(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    assert worker.store.stop(0, "job", "k")
    admit(worker, job_id="id2")
    assert worker.store.stop(0, "job", "k") == "id2"
    worker.work()
    assert worker.host.runs and worker.store.ending() == 1
    run(worker)
    assert not worker.host.runs and state(worker) == "gone"
    assert worker.store.outcome("id2", 0) == DispatchOutcome(STOPPED)


@pytest.mark.parametrize("replaced", [False, True])
def test_the_error_of_a_stop_is_written_down(server: MemoryJobServer, replaced: bool) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    worker.store.stop(0, "job", "k")
    if replaced:
        admit(worker, job_id="id2")
    worker.work()
    (ref,) = worker.host.runs
    worker.host.end(ref, "OSError: refused")
    run(worker)
    assert worker.store.stop_error("id") == "OSError: refused"
    assert state(worker) == ("running" if replaced else "gone")


def saved(worker: Worker) -> bytes | None:
    (found,) = worker.store.records()
    return found.saved


def test_a_checkpoint_is_stored_and_the_next_run_has_it(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    (ref,) = worker.host.runs
    for _ in range(3):
        worker.host.save(ref)
    worker.work()
    assert saved(worker) == b"3"
    assert list(worker.host.inbox) == [Saved(ref, 1), Saved(ref, 2), Saved(ref, 3)]
    worker.host.end(ref, "OSError: no")
    worker.host.inbox.clear()
    worker.work()
    Clock.now += 60
    worker.work()
    (start,) = worker.host.inbox
    assert isinstance(start, Start) and (start.saved, start.attempt) == (3, 2)


def test_the_last_checkpoint_of_a_run_is_stored_before_its_end(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    (ref,) = worker.host.runs
    worker.keeper.stop(0)
    worker.work()
    worker.host.save(ref)
    worker.host.end(ref)
    worker.work()
    assert (saved(worker), worker.drained) == (b"1", {0})


def test_while_the_store_is_away_a_checkpoint_waits_and_so_does_the_next_start(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    (ref,) = worker.host.runs
    worker.host.save(ref)
    worker.host.end(ref, "OSError: no")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryJobs, "save", broken)
        for _ in range(3):
            with suppress(StoreUnavailable):
                worker.work()
        assert not worker.host.inbox and state(worker) == "running"
    Clock.now += 60
    worker.work()
    worker.work()
    starts = [message.saved for message in worker.host.inbox if isinstance(message, Start)]
    assert starts == [1]


def test_a_checkpoint_under_an_old_epoch_is_refused(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    (ref,) = worker.host.runs
    worker.store.open(0, 9)
    worker.host.save(ref)
    run(worker)
    assert worker.host.refused == [SaveRefused(ref, 1)]
    assert saved(worker) is None and not worker.host.runs


def test_a_checkpoint_of_a_run_whose_slot_was_opened_again_under_another_epoch_is_refused(
    server: MemoryJobServer,
) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    (ref,) = worker.host.runs
    worker.host.save(ref)
    worker.keeper.open(0, 2, 1)
    run(worker)
    assert worker.host.refused == [SaveRefused(ref, 1)]
    assert saved(worker) is None and state(worker) == "running"


def test_a_checkpoint_of_a_job_that_was_replaced_is_refused(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    (ref,) = worker.host.runs
    worker.store.stop(0, "job", "k")
    admit(worker, job_id="id2")
    worker.host.save(ref)
    run(worker)
    assert worker.host.refused == [SaveRefused(ref, 1)]
    assert saved(worker) is None and state(worker) == "running"


def test_a_job_is_restarted_in_order_with_its_new_payload(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    (ref,) = worker.host.runs
    worker.store.update(0, "job", "k", b"2", restart=True)
    worker.work()
    assert list(worker.host.inbox) == [Stop(ref)]
    worker.work()
    assert list(worker.host.inbox) == [Stop(ref)], "it waits for the old run"
    run(worker)
    ((_, start),) = worker.host.runs.items()
    assert (start.payload, start.attempt, start.id) == (2, 2, "id")
    assert state(worker) == "running"
    assert len(worker.host.world.starts) == 2


def test_an_update_without_a_restart_is_for_the_next_start(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    worker.store.update(0, "job", "k", b"2", restart=False)
    run(worker)
    assert len(worker.host.world.starts) == 1
    worker.store.update(0, "job", "k", None, restart=True)
    run(worker)
    assert [start.payload for start in worker.host.runs.values()] == [2]


def test_a_failing_job_is_restarted_at_once(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    (ref,) = worker.host.runs
    worker.host.end(ref, "OSError: no")
    run(worker, turns=3)
    assert (state(worker), len(worker.host.world.starts)) == ("failing", 1)
    worker.store.update(0, "job", "k", None, restart=True)
    run(worker, turns=3)
    assert (state(worker), len(worker.host.world.starts)) == ("running", 2)


def test_a_job_is_paused_when_its_run_has_ended_and_starts_at_a_resume(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    (ref,) = worker.host.runs
    worker.store.pause(0, "job", "k")
    for _ in range(3):
        worker.work()
    assert (list(worker.host.inbox), state(worker)) == ([Stop(ref)], "pausing")
    worker.host.save(ref)
    run(worker)
    assert (state(worker), worker.host.runs) == ("paused", {})
    worker.store.resume(0, "job", "k")
    run(worker)
    assert [(start.saved, start.attempt) for start in worker.host.runs.values()] == [(1, 2)]
    assert state(worker) == "running"


def revision(worker: Worker) -> int:
    return worker.store.look({0: 0})[0].revision


@pytest.mark.parametrize("resumed", [False, True])
def test_a_run_that_is_to_end_for_a_pause_is_not_written_down_as_started(
    server: MemoryJobServer, resumed: bool
) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    worker.store.pause(0, "job", "k")
    if resumed:
        worker.store.resume(0, "job", "k")
    before = revision(worker)
    worker.work()
    worker.work()
    assert (revision(worker), state(worker)) == (before, "queued" if resumed else "pausing")


@pytest.mark.parametrize("wanted", sorted(UNWANTED))
def test_what_a_keeper_knows_of_a_job_that_must_not_run_stays_when_a_start_is_stored(wanted: JobState) -> None:
    record = JobRecord("job", "k", 0, "id", b"1", wanted, True, 1, 1, "a", "", 0.0, 0)
    reports = [Report("id", RunResult.STARTED)]
    held = HeldSlot(1, 1, wanted={("job", "k"): record}, reports=list(reports))
    assert not Settling({0: held}).settled(held, Unsettled(1, reports, [], []), 5)
    assert held.wanted["job", "k"].state is wanted


def test_a_checkpoint_that_is_heard_in_the_middle_of_a_turn_is_stored_before_the_next_start(
    server: MemoryJobServer,
) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    (ref,) = worker.host.runs
    worker.store.update(0, "job", "k", None, restart=True)
    worker.work()
    worker.host.inbox.clear()
    look = worker.store.look

    def look_late(known: Mapping[Slot, int]) -> Mapping[Slot, SlotJobs]:
        if ref in worker.host.runs:
            worker.host.save(ref)
            worker.host.end(ref)
        return look(known)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker.store, "look", look_late)
        worker.store.notify(0, "job", "k", b"1", limit=10)
        worker.work()
        worker.work()
        worker.work()
    starts = [message.saved for message in worker.host.inbox if isinstance(message, Start)]
    assert starts == [1]


def test_a_paused_job_moves_and_stays_paused(server: MemoryJobServer) -> None:
    worker, other = alone(server), Worker("b", server, World())
    admit(worker)
    run(worker)
    worker.store.pause(0, "job", "k")
    worker.keeper.stop(0)
    run(worker)
    other.keeper.open(0, 2, 1)
    run(other)
    assert (state(other), other.host.runs, worker.host.runs) == ("paused", {}, {})
    other.store.resume(0, "job", "k")
    run(other)
    assert state(other) == "running" and other.host.runs


def test_a_job_that_is_stopped_while_it_is_restarted_goes(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    worker.store.update(0, "job", "k", None, restart=True)
    worker.work()
    worker.store.stop(0, "job", "k")
    run(worker)
    assert (state(worker), len(worker.host.world.starts)) == ("gone", 1)


# -- what is told ----------------------------------------------------------------------------------


def test_each_start_is_told(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    (fact,) = worker.facts
    assert isinstance(fact, JobStarted)
    assert fact == JobStarted("a", "ks", "job", "k", "id", 1, 1, fact.seconds)
    assert fact.seconds == pytest.approx(0.1, abs=0.11)


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (lambda worker: worker.store.stop(0, "job", "k"), "it was stopped"),
        (lambda worker: worker.store.pause(0, "job", "k"), "it was paused"),
        (lambda worker: worker.store.update(0, "job", "k", None, restart=True), "it was restarted"),
        (lambda worker: worker.keeper.stop(0), "its key moves"),
        (lambda worker: worker.keeper.open(0, 2, 1), "its key moves"),
        (lambda worker: worker.host.end(1), "it ended by itself"),
        (lambda worker: worker.host.die(), "its process ended"),
    ],
)
def test_each_end_is_told_with_its_reason(server: MemoryJobServer, end: Any, why: str) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    worker.facts.clear()
    Clock.now += 5
    end(worker)
    run(worker)
    fact = worker.facts[0]
    assert isinstance(fact, JobStopped)
    assert (fact.name, fact.key, fact.id, fact.why) == ("job", "k", "id", why)
    assert fact.seconds == pytest.approx(0, abs=0.2) and fact.ran == pytest.approx(5.5, abs=0.6)


def test_a_stop_that_raised_is_told(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    worker.store.stop(0, "job", "k")
    worker.work()
    worker.host.end(1, "OSError: no")
    run(worker)
    fact = worker.facts[-1]
    assert isinstance(fact, JobStopped) and fact.why == "it was stopped; its stop raised OSError: no"


def test_each_failure_is_told(server: MemoryJobServer) -> None:
    worker = alone(server, start_timeout=2.0)
    admit(worker)
    admit(worker, key="never", job_id="id2")
    worker.host.failing = {"never"}
    run(worker)
    worker.host.end(1, "OSError: no")
    run(worker)
    failed = {fact.key: (fact.error, fact.attempt) for fact in worker.facts if isinstance(fact, JobFailed)}
    assert failed == {"k": ("OSError: no", 1), "never": ("ValueError: no", 1)}


def test_a_start_that_is_too_late_is_told_as_a_failure(server: MemoryJobServer) -> None:
    worker = alone(server, start_timeout=2.0)
    admit(worker)
    worker.work()
    (start,) = worker.host.inbox
    worker.keeper.heard(Calls(start.ref, Call.START))  # type: ignore[union-attr]
    worker.work()
    Clock.now += 3
    worker.work()
    worker.keeper.heard(Ended(start.ref))  # type: ignore[union-attr]
    worker.work()
    (fact,) = worker.facts
    assert isinstance(fact, JobFailed) and fact.error == "its start took longer than 2 s"
    assert fact.seconds >= 3.0, "since it was told to start, not since it was told to stop"


def broken(*_: Any, **__: Any) -> Any:
    raise StoreUnavailable("away")


def test_the_member_learns_that_the_host_is_gone_and_that_the_next_one_is_there(server: MemoryJobServer) -> None:
    worker = alone(server)
    worker.host.die()
    worker.host.boot()
    assert worker.reports == [HostUp(), HostDown(), HostUp()]


def test_a_fence_above_our_epoch_is_reported(server: MemoryJobServer) -> None:
    ahead = MemoryJobs(server, "ks")
    ahead.open(0, 7)
    worker = alone(server)
    run(worker)
    (report,) = [report for report in worker.reports if not isinstance(report, HostUp)]
    assert repr(report) == "OpenRefused(slot=0, fence=7)"


# -- places of keys --------------------------------------------------------------------------------

PLACE = KeyPlace("k")


def placed(server: MemoryJobServer, *, poll: float = NEVER) -> Worker:
    worker = Worker("a", server, World(), poll=poll)
    run(worker)
    worker.placer.take()
    return worker


def admit_placed(worker: Worker, key: str = "k", job_id: str = "id") -> None:
    admission, _ = worker.store.admit(NewJob("job", key, KeyPlace(key), job_id, b"1"), max_queued=10**6, outcome_ttl=60)
    assert admission is Admission.ADMITTED


def held(worker: Worker) -> Worker:
    """Have a job run in the place."""
    admit_placed(worker)
    run(worker)
    worker.keeper.open(PLACE, 77, 1)
    run(worker)
    worker.placer.take()
    return worker


def test_a_place_that_was_let_go_and_comes_back_with_older_data_is_listed_again(server: MemoryJobServer) -> None:
    """Guards: the store went back to what the keeper had known when the job still ran; the job ran nowhere."""
    worker = held(placed(server, poll=0.5))
    run(worker, 10)
    before = server.snapshot()
    worker.placer.take()
    worker.store.stop(PLACE, "job", "k")
    for _ in range(10):  # no time passes, so the places are not listed meanwhile
        worker.keeper.heed(worker.store.watch(0.0))
        worker.turn()
        while worker.host.inbox:
            worker.host.step()
    assert ("vacant", PLACE, 77) in worker.placer.take()
    server.roll_back(before)
    run(worker, 10)
    assert ("listed", PLACE) in worker.placer.take()


def test_of_a_place_that_is_not_held_here_the_placer_is_told(server: MemoryJobServer) -> None:
    worker = placed(server)
    admit_placed(worker)
    admit(worker, "plain", "other")
    run(worker)
    assert worker.placer.take() == [("wanted", PLACE)]
    assert not worker.host.world.starts, "that is the placer's to say"


def test_a_job_runs_under_the_token_its_place_was_opened_with(server: MemoryJobServer) -> None:
    worker = held(placed(server))
    assert worker.host.world.starts == [("k", "a", 77)]
    worker.store.notify(PLACE, "job", "k", b"5", limit=9)
    run(worker)
    assert worker.host.world.noted == {"id": [5]} and worker.placer.take() == []


def test_a_place_that_is_stopped_is_drained_when_its_jobs_have_ended(server: MemoryJobServer) -> None:
    worker = held(placed(server))
    worker.keeper.stop(PLACE)
    worker.work()
    worker.work()
    assert worker.placer.take() == [], "it still runs"
    run(worker)
    assert worker.placer.take() == [("drained", PLACE, 77)] and not worker.host.runs
    worker.keeper.open(PLACE, 78, 1)
    run(worker)
    assert worker.host.world.starts[-1] == ("k", "a", 78)


def test_what_became_of_a_run_is_written_down_before_its_place_is_drained(server: MemoryJobServer) -> None:
    worker = held(placed(server))
    worker.host.end(1)
    worker.keeper.stop(PLACE)
    run(worker)
    assert state(worker) == "gone", "the next worker would start it again"
    assert worker.placer.take() == [("vacant", PLACE, 77)]


def test_a_place_whose_jobs_are_gone_is_let_go(server: MemoryJobServer) -> None:
    worker = held(placed(server))
    worker.store.stop(PLACE, "job", "k")
    run(worker)
    assert worker.placer.take() == [("vacant", PLACE, 77)] and not server.records["ks"].slots.keys() & {PLACE}
    worker.keeper.open(PLACE, 78, 1)
    run(worker)
    assert worker.placer.take() == [("vacant", PLACE, 78)], "also one that has none when it is opened"


def test_a_job_that_comes_while_its_place_is_let_go_is_not_missed(server: MemoryJobServer) -> None:
    """Guards: the keeper has seen that nothing is left there, and has yet to write down what became of the last run."""
    worker = held(placed(server))
    worker.store.stop(PLACE, "job", "k")
    worker.work()
    worker.host.step()  # it has stopped
    worker.work()  # that is written down, and seen
    admit_placed(worker, job_id="next")
    run(worker)
    heard = worker.placer.take()
    if ("vacant", PLACE, 77) in heard:
        assert heard[-1] == ("wanted", PLACE)
        worker.keeper.open(PLACE, 78, 1)
        run(worker)
    assert [key for key, *_ in worker.host.world.starts] == ["k", "k"]


def test_a_place_that_may_have_changed_is_looked_at_again_before_it_is_let_go() -> None:
    reconciler = JobReconciler(TERMS, place=lambda record, home: 1)
    reconciler.open(PLACE, 77, 1)
    reconciler.fenced(PLACE)
    reconciler.seen(PLACE, SlotJobs(0, (), ()))
    assert reconciler.changed([PLACE, KeyPlace("other")]) == [PLACE]
    reconciler.reconcile(boottime(), lambda _: True)
    assert reconciler.take_drained() == []
    reconciler.seen(PLACE, SlotJobs(0, (), ()))
    reconciler.reconcile(boottime(), lambda _: True)
    assert [drained.vacant for drained in reconciler.take_drained()] == [True]


def test_what_signals_have_lost_the_next_look_finds(server: MemoryJobServer) -> None:
    worker = held(placed(server, poll=0.0))
    other = MemoryJobs(server, "ks")
    other.stop(PLACE, "job", "k")
    other.admit(NewJob("job", "x", KeyPlace("x"), "x", b"1"), max_queued=9, outcome_ttl=9)
    worker.store.watch(0.0)  # lost
    for _ in range(6):
        worker.turn()
        while worker.host.inbox:
            worker.host.step()
    heard = worker.placer.take()
    assert ("listed", PLACE, "=x") in heard and ("vacant", PLACE, 77) in heard and ("listed", "=x") in heard
    worker.work()
    assert worker.placer.take() == [], "nothing has changed"


def test_a_place_that_is_somebody_elses_kills_what_runs_of_it(server: MemoryJobServer) -> None:
    worker = held(placed(server))
    worker.keeper.close(PLACE)
    worker.work()
    assert not worker.host.runs and worker.placer.take() == []


def test_a_place_that_was_opened_under_a_higher_token_is_given_up(server: MemoryJobServer) -> None:
    worker = placed(server)
    admit_placed(worker)
    run(worker)
    worker.placer.take()
    worker.store.open(PLACE, 99)
    worker.keeper.open(PLACE, 77, 1)
    run(worker)
    assert worker.placer.take() == [("drained", PLACE, 77)]
    assert not worker.host.world.starts and worker.reports == [HostUp()]


def test_a_fence_that_went_with_the_last_record_is_set_again(server: MemoryJobServer) -> None:
    worker = held(placed(server))
    keyspace = server.records["ks"]
    keyspace.slots[PLACE].epoch = 0  # as where all was gone and another job came before we looked
    worker.host.end(1, "OSError: gone")
    run(worker)
    assert state(worker) == "failing" and keyspace.slots[PLACE].epoch == 77


def test_a_place_that_is_stopped_and_whose_fence_is_gone_is_drained_all_the_same(server: MemoryJobServer) -> None:
    """Guards: its job was stopped and dispatched again at once, so that what became of the old run is nobody's."""
    worker = held(placed(server))
    worker.host.end(1)
    server.records["ks"].slots[PLACE].epoch = 0
    worker.keeper.stop(PLACE)
    run(worker)
    assert worker.placer.take()[-1] == ("drained", PLACE, 77)


def test_in_a_place_that_is_only_tended_nothing_starts_and_what_is_to_stop_goes(server: MemoryJobServer) -> None:
    worker = placed(server)
    for key in ("fresh", "ran", "stops"):
        admit_placed(worker, key, key)
        if key != "fresh":
            worker.keeper.open(KeyPlace(key), 5, 1)
            run(worker)
            worker.keeper.stop(KeyPlace(key))
            run(worker)
    worker.store.stop(KeyPlace("stops"), "job", "stops")
    starts = list(worker.host.world.starts)
    for key in ("fresh", "ran", "stops"):
        worker.keeper.open(KeyPlace(key), 9, 1, "nobody has pinned it")
    run(worker, 10)
    records = {record.key: (record.state.value, record.error) for record in worker.store.records()}
    assert records == {"fresh": ("queued", ""), "ran": ("failing", "nobody has pinned it")}
    assert worker.host.world.starts == starts
    assert worker.placer.take()[-1] == ("vacant", "=stops", 9)


def test_of_thousands_of_places_only_those_are_looked_at_that_have_changed(server: MemoryJobServer) -> None:
    worker = placed(server, poll=0.0)
    for i in range(3000):
        key = f"k{i}"
        admit_placed(worker, key, key)
        worker.keeper.open(KeyPlace(key), 5, 1)
    run(worker, 30)  # in portions
    assert len(worker.host.world.starts) == 3000
    worker.store.looked_at = 0
    before = time.process_time()
    for _ in range(100):
        worker.work()
    idle = time.process_time() - before
    assert worker.store.looked_at == 0 and worker.placer.take()[-1][0] == "listed"
    worker.store.notify(KeyPlace("k7"), "job", "k7", b"1", limit=9)
    run(worker)
    assert worker.host.world.noted == {"k7": [1]} and worker.store.looked_at <= 10
    assert idle < 1.0, "a hundred looks, each of one answer"


def test_a_job_that_was_dispatched_as_in_a_plain_keyspace_does_not_run_where_nobody_claims_its_key(
    server: MemoryJobServer,
) -> None:
    plain = alone(server)
    admit(plain, "before", "before")
    run(plain)
    worker = Worker("a", server, World(), built_in={0: [built_in_job("schedule:x", 0)]}, placed=True, keyspace="ks")
    worker.keeper.open(0, 9, 1)
    admit(worker)
    run(worker, 8)
    assert [key for key, *_ in worker.host.world.starts] == ["schedule:x"]
    outcome = worker.store.outcome("id", 0)
    assert outcome is not None and "became a placed keyspace" in outcome.error
    (left,) = worker.store.records()
    assert (left.key, left.state) == ("before", JobState.FAILING) and "sticky.jobs.shutdown('ks')" in left.error
    worker.store.stop(0, "job", "before")
    run(worker)
    assert not worker.store.records()


def test_in_a_plain_keyspace_jobs_of_a_time_when_it_placed_keys_are_told_with_what_to_do(
    server: MemoryJobServer, caplog: pytest.LogCaptureFixture
) -> None:
    admit_placed(placed(server))
    worker = Worker("b", server, World(), plain=True)
    worker.keeper.open(0, 1, 1)
    run(worker)
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert record.getMessage().startswith("jobs: jobs that are stored by their keys do not run")
    assert "`celery sticky jobs forget --keyspace ks`" in record.getMessage()
