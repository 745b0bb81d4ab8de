"""Keepers of several workers on one store, under random moves, deaths and delays, without threads or processes."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from celery_sticky.errors import StoreUnavailable
from celery_sticky.jobs import keeper as keeper_module
from celery_sticky.jobs.keeper import Keeper
from celery_sticky.jobs.places import Terms, house_job
from celery_sticky.jobs.roster import Roster
from celery_sticky.jobs.slots import SharedSlots
from celery_sticky.jobs.suspects import Suspects
from celery_sticky.jobs.wire import Ended, Failed, Message, Noted, Notify, Start, Started, Stop
from celery_sticky.ownership.events import Drained, Event, HostDown, HostUp, Opened
from celery_sticky.stores.jobs import STOPPED, Admission, JobState, NewJob, Outcome, SlotJobs
from celery_sticky.stores.memory_jobs import MemoryJobs, MemoryJobServer
from celery_sticky.worker.lease import Lease, boottime

SLOTS, KEYS = 4, 8
NEVER = 1e9
TERMS = Terms(start_timeout=1000.0, stop_timeout=1000.0, max_attempts=1000)


class Clock:
    """What keepers take for the time."""

    now = 1000.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(Clock, "now", 1000.0)
    monkeypatch.setattr(keeper_module, "boottime", lambda: Clock.now)
    return Clock()


@dataclass
class World:
    """What is true, whoever knows it."""

    running: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    """Name and key -> worker and epoch of what runs."""
    starts: list[tuple[str, str, int]] = field(default_factory=list)
    """Key, worker, epoch."""
    noted: dict[str, list[Any]] = field(default_factory=dict)
    """Id -> payloads."""


class FakeHost:
    """A job host whose answers come when the test lets them."""

    def __init__(self, worker: str, world: World) -> None:
        self.worker, self.world = worker, world
        self.suspects = Suspects()
        self.number = 0
        self.inbox: deque[Message] = deque()
        self.runs: dict[int, Start] = {}
        self.keeper: Keeper
        self.failing: set[str] = set()

    def boot(self) -> None:
        self.number += 1
        self.keeper.host_started(self.number)

    def say(self, number: int, messages: Sequence[Message]) -> None:
        if number == self.number:
            self.inbox.extend(messages)

    def kill(self, number: int, reason: str) -> None:
        if number == self.number:
            self.die(killed=True)
            self.boot()

    def die(self, *, killed: bool = False) -> None:
        self.number += 1
        self.suspects.host_ended(Clock.now, killed=killed)
        for start in self.runs.values():
            self.world.running.pop((start.name, start.key), None)
        self.runs.clear()
        self.inbox.clear()
        self.keeper.host_ended()

    def step(self) -> None:
        if not self.inbox:
            return
        match self.inbox.popleft():
            case Start() as start if start.key in self.failing:
                self.keeper.heard(Failed(start.ref, "ValueError: no"))
            case Start() as start:
                job = (start.name, start.key)
                assert job not in self.world.running, f"{job} runs already, at {self.world.running[job]}"
                assert all(e <= start.epoch for k, _, e in self.world.starts if k == start.key), "an old epoch"
                self.world.running[job] = (self.worker, start.epoch)
                self.world.starts.append((start.key, self.worker, start.epoch))
                self.runs[start.ref] = start
                self.keeper.heard(Started(start.ref))
            case Stop(ref) if ref in self.runs:
                self.end(ref)
            case Notify(ref, note, payload) if ref in self.runs:
                self.world.noted.setdefault(self.runs[ref].id, []).append(payload)
                self.keeper.heard(Noted(ref, note))

    def end(self, ref: int, error: str = "") -> None:
        start = self.runs.pop(ref)
        del self.world.running[start.name, start.key]
        self.keeper.heard(Ended(ref, error))


class CountedJobs(MemoryJobs):
    """Counts the looks."""

    looks = 0

    def look(self, known: Mapping[int, int]) -> Mapping[int, SlotJobs]:
        self.looks += 1
        return super().look(known)


class Worker:
    """A keeper with its host, and whom it tells of drained slots."""

    def __init__(
        self, name: str, server: MemoryJobServer, world: World, terms: Terms = TERMS, *, poll: float = 0.0, **house: Any
    ) -> None:
        self.name = name
        self.lease = Lease({"ks": SLOTS})
        self.lease.grant("ks", boottime() + 1e6, 1)
        self.store = CountedJobs(server, "ks")
        self.store.watch(0.0)  # subscribes
        self.host = FakeHost(name, world)
        self.drained: set[int] = set()
        self.reports: list[Event] = []
        self.keeper = Keeper(
            "ks",
            name,
            Roster(terms, suspects=self.host.suspects, **house),
            lambda: self.store,
            self.host,
            self.lease,
            self._report,
            poll=poll,
            outcome_ttl=60.0,
        )
        self.host.keeper = self.keeper
        self.host.boot()

    def _report(self, event: Event) -> None:
        self.reports.append(event)
        if isinstance(event, Drained):
            assert isinstance(event.slot, int)
            self.drained.add(event.slot)

    def work(self) -> None:
        Clock.now += 0.1
        self.keeper.heed(self.store.watch(0.0))
        self.keeper.work(self.store)


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
            self.sent.pop(key, None)

    def notify(self) -> None:
        if self.wanted:
            key = self.random.choice(sorted(self.wanted))
            numbers = self.sent.setdefault(key, [])
            numbers.append(len(numbers))
            self.store.notify(int(key[1:]) % SLOTS, "job", key, b"%d" % numbers[-1], limit=1000)

    def move(self) -> None:
        slot = self.random.randrange(SLOTS)
        if slot not in self.moving:
            self.moving[slot] = self.random.choice(sorted(self.workers))
            owner = self.workers[self.owner[slot]].keeper
            owner.stop(slot)
            owner.tasks_drained(slot)

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
        worker.host.die(killed=True)
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
        assert running == {key: self.owner[int(key[1:]) % SLOTS] for key in self.wanted}
        records = {record.key: record for record in self.store.records()}
        assert records.keys() == self.wanted.keys()
        for key, record in records.items():
            assert (record.state, record.id, record.fresh) == (JobState.RUNNING, self.wanted[key], False)
        for key, numbers in self.sent.items():
            firsts = list(dict.fromkeys(self.world.noted.get(self.wanted[key], [])))
            assert firsts == numbers, f"notes of {key}"


@pytest.mark.parametrize("block", range(8))
def test_wanted_jobs_run_once_at_their_owner_whatever_happens(block: int) -> None:
    for seed in range(block * 50, block * 50 + 50):
        cluster = Cluster(seed)
        happenings = (
            [cluster.dispatch] * 6
            + [cluster.stop, cluster.move, cluster.notify, cluster.notify]
            + [cluster.evict, cluster.host_dies]
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


def alone(server: MemoryJobServer, **terms: Any) -> Worker:
    settings = {"start_timeout": 1000.0, "stop_timeout": 1000.0, "max_attempts": 3, **terms}
    worker = Worker("a", server, World(), Terms(**settings))
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
    assert worker.store.outcome("id", 0) == Outcome()


def test_a_job_of_the_house_runs_in_a_slot_where_nothing_was_ever_written(server: MemoryJobServer) -> None:
    worker = Worker("a", server, World(), house={0: [house_job("schedule:x", 0)]})
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

    def broken(*args: Any) -> Any:
        if next(failures, False):
            raise StoreUnavailable
        return reserve(*args)

    worker.store.reserve = broken  # type: ignore[method-assign,assignment]
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
    assert f"slot 1 at memory, ks, 1: {verb} has failed: Redis: ResponseError: WRONGTYPE; again in" in caplog.text
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
    worker.host.die(killed=True)  # nobody is charged: that would be a reason to look
    worker.host.boot()
    run(worker, 50)
    assert len(worker.host.world.starts) == 2
    assert worker.host.world.noted["id"] == [1]


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
        worker.keeper.work(worker.store)
    assert worker.host.inbox == deque([Stop(1)])


def test_a_start_is_written_down_again_where_a_failover_has_lost_it(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    before = server.snapshot()
    run(worker)
    server.roll_back(before)
    worker.keeper.open(0, 1, 1)
    worker.keeper._roster.unfenced(0)
    run(worker)
    (record,) = worker.store.records()
    assert (record.state, record.fresh, len(worker.host.world.starts)) == (JobState.RUNNING, False, 1)


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
    worker.host.kill = lambda number, reason: kills.append(number)  # type: ignore[method-assign]
    worker.keeper.close(0)
    server.stop()
    for _ in range(3):
        with suppress(StoreUnavailable):
            worker.keeper.work(worker.store)
    assert kills == [1]


def test_a_slot_is_looked_at_once_for_a_dispatch_and_not_for_those_of_others(server: MemoryJobServer) -> None:
    owner, other = (Worker(name, server, World(), poll=NEVER) for name in "ab")
    owner.keeper.open(0, 1, 1)
    other.keeper.open(1, 1, 1)
    for worker in (owner, other):
        run(worker)
        worker.store.looks = 0
    admit(owner)
    for worker in (owner, other):
        run(worker)
    assert state(owner) == "running"
    assert (owner.store.looks, other.store.looks) == (1, 0)


def test_a_fresh_job_whose_start_fails_is_removed_and_says_why(server: MemoryJobServer) -> None:
    worker = alone(server)
    worker.host.failing.add("k")
    admit(worker)
    run(worker)
    assert state(worker) == "gone"
    assert worker.store.outcome("id", 0) == Outcome("ValueError: no")
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
    wake_at = worker.keeper._roster.wake_at()
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
    worker.keeper.tasks_drained(0)
    worker.work()
    assert not worker.drained, "it still runs"
    worker.work()
    assert worker.host.number > number
    worker.work()
    worker.work()
    assert worker.drained == {0}


def test_a_slot_is_drained_when_neither_jobs_nor_tasks_are_left(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    worker.keeper.stop(0)
    run(worker)
    assert not worker.drained, "its tasks are not"
    worker.keeper.tasks_drained(0)
    run(worker)
    assert worker.drained == {0}
    assert state(worker) == "running", "it is still wanted"


def test_a_slot_the_keeper_never_saw_is_drained_with_its_tasks(server: MemoryJobServer) -> None:
    worker = alone(server)
    worker.keeper.stop(3)
    worker.keeper.tasks_drained(3)
    worker.work()
    assert worker.drained == {3}


def test_an_opening_that_crosses_a_stop_neither_keeps_the_slot_nor_starts_its_jobs(server: MemoryJobServer) -> None:
    """Guards: the courier may be saying that the slot is open in the moment in which the member stops it."""

    class Courier:
        """Says what it was about to say, and then that nothing is left."""

        def open(self, *_: Any) -> None: ...

        def close(self, *_: Any) -> None: ...

        def stop(self, *_: Any) -> None:
            slots.report(Opened(0, 1))
            slots.report(Drained(0))

    worker = Worker("a", server, World())
    slots = SharedSlots(Courier(), worker.keeper, worker.lease, lambda _: None)
    admit(worker)
    slots.open(("ks", 0), 1, "a-0")
    slots.stop(("ks", 0))
    run(worker)
    assert worker.drained == {0}
    assert not worker.host.world.starts


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


def test_a_raised_epoch_starts_a_job_anew_under_it(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    run(worker)
    worker.keeper.open(0, 5, 1)
    run(worker)
    assert worker.host.world.starts == [("k", "a", 1), ("k", "a", 5)]


def crash(worker: Worker, turns: int, *killers: str) -> None:
    """Let time pass; a job of these keys ends the host when it is started."""
    for _ in range(turns):
        worker.work()
        if any(isinstance(said, Start) and said.key in killers for said in worker.host.inbox):
            worker.host.die()
            worker.host.boot()
        while worker.host.inbox:
            worker.host.step()


def test_a_start_that_ends_the_host_again_and_again_is_given_up(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    crash(worker, 200, "k")
    assert state(worker) == "gone"
    outcome = worker.store.outcome("id", 0)
    assert outcome is not None
    assert "3 starts of it came to no end" in outcome.error


def test_its_neighbours_are_not_given_up_with_it(server: MemoryJobServer) -> None:
    worker = alone(server)
    admit(worker)
    for n in range(7):
        admit(worker, f"n{n}", f"id{n}")
    crash(worker, 1000, "k")
    outcome = worker.store.outcome("id", 0)
    assert outcome is not None and outcome.error
    assert {record.key for record in worker.store.records()} == {f"n{n}" for n in range(7)}
    assert {record.state for record in worker.store.records()} == {JobState.RUNNING}


def test_a_job_that_has_run_and_ends_the_host_again_and_again_shows_as_failing_and_waits(
    server: MemoryJobServer,
) -> None:
    worker = alone(server)
    admit(worker)
    admit(worker, "other", "other")
    run(worker)
    starts = len(worker.host.world.starts)
    worker.host.die()
    worker.host.boot()
    crash(worker, 1500, "k")
    found = {record.key: record for record in worker.store.records()}
    assert (found["k"].state, found["other"].state) == (JobState.FAILING, JobState.RUNNING)
    assert "the job host has died" in found["k"].error
    assert found["k"].attempt < 12, "it waits longer each time"
    assert len(worker.host.world.starts) - starts < 12


def test_a_start_that_takes_whole_workers_with_it_is_given_up_too(server: MemoryJobServer) -> None:
    """Guards: who has not seen it die starts it for ever, each worker anew."""
    store = MemoryJobs(server, "ks")
    admission, _ = store.admit(NewJob("job", "k", 0, "id", b"1"), max_queued=10, outcome_ttl=60)
    assert admission is Admission.ADMITTED
    for epoch in range(1, 8):
        worker = Worker(f"w{epoch}", server, World(), Terms(1000.0, 1000.0, max_attempts=3))
        worker.keeper.open(0, epoch, 1)
        for _ in range(10):
            worker.work()
    outcome = store.outcome("id", 0)
    assert outcome is not None and "6 starts of it came to no end" in outcome.error


def test_a_start_that_was_too_late_when_its_host_was_killed_has_failed(server: MemoryJobServer) -> None:
    """Guards: what blocks the host does so again in each next one."""
    worker = alone(server, start_timeout=1.0, stop_timeout=1.0)
    admit(worker)
    for _ in range(40):
        worker.work()  # the host says nothing
    assert worker.host.number == 3, "it was killed once"
    outcome = worker.store.outcome("id", 0)
    assert outcome == Outcome("its start took longer than 1 s")


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
    assert worker.store.outcome("id", 0) == Outcome(STOPPED)


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
