"""Keepers of many keyspaces in their thread, on memory servers; hosts without processes."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from threading import Event as Door
from typing import Any, cast
from unittest.mock import Mock

import pytest
from harness.fake_host import FakeHost
from harness.fake_host import World as Hosts

from celery_sticky.errors import StoreUnavailable
from celery_sticky.execution.jobs import WorkerJobs
from celery_sticky.jobs.keeper.flow import Surroundings
from celery_sticky.jobs.keeper.held import JobTimeouts
from celery_sticky.jobs.keeper.home import Home
from celery_sticky.jobs.keeper.keeper import BROKEN_PAUSE, Keeper
from celery_sticky.jobs.keeper.reconciler import JobReconciler
from celery_sticky.jobs.wire import Stop
from celery_sticky.ownership.events import Drained, Event, HostDown, HostUp
from celery_sticky.platform import seat as seats
from celery_sticky.platform.flow_thread import FlowThread
from celery_sticky.platform.seat import Seat
from celery_sticky.slots import Slot
from celery_sticky.stores.flow import Pause, Watch
from celery_sticky.stores.jobs import Admission, JobRecord, JobStore, NewJob, SlotJobs
from celery_sticky.stores.memory.jobs import MemoryJobs, MemoryJobServer, memory_job_server
from celery_sticky.stores.memory.shared import MemoryShared
from celery_sticky.stores.shared import OwnClient
from celery_sticky.testing.waiting import wait_until

NEVER = 1e6
MANY = 20
TIMEOUTS = JobTimeouts(start_timeout=1000.0, stop_timeout=1000.0, max_attempts=3)


class ToldJobs(MemoryJobs):
    """A job store that does what a test says when it is looked at."""

    def __init__(self, client: Client, keyspace: str) -> None:
        super().__init__(client.server, keyspace)
        self._client, self.keyspace = client, keyspace

    def look(self, known: Mapping[Slot, int]) -> Mapping[Slot, SlotJobs]:
        self._client.is_silent()
        found = super().look(known)
        self._client.looked(self.keyspace)
        return found


class Client(MemoryShared):
    """A client of a memory server; and how the server is."""

    def __init__(self) -> None:
        self.name = f"keepers-{time.monotonic_ns()}"
        super().__init__(self.name, "p")
        self.server: MemoryJobServer = memory_job_server(self.name, "p")
        self.silence = 0.0
        """Seconds that each request takes, because the server does not answer."""
        self.silent = 0
        self.looked: Callable[[str], None] = lambda keyspace: None

    def job_store(self, keyspace: str) -> ToldJobs:
        return self.opened(ToldJobs(self, keyspace))

    def is_silent(self) -> None:
        if self.silence:
            self.silent += 1
            time.sleep(self.silence)
            raise StoreUnavailable("no answer")


def place(host: FakeHost, record: JobRecord, home: Home) -> int:
    return host.place(("", record.id), "", home)


class Worker:
    """The keepers of a worker with their hosts, one for each keyspace."""

    def __init__(self, client: Client, thread: Callable[[], FlowThread[JobStore]], keyspaces: int) -> None:
        self.client = client
        self.hosts: dict[str, FakeHost] = {}
        self.keepers: dict[str, Keeper] = {}
        self.reports: list[Event] = []
        for number in range(keyspaces):
            name = f"k{number}"
            self.hosts[name] = host = FakeHost("w", Hosts())
            reconciler = JobReconciler(TIMEOUTS, place=partial(place, host), keyspace=name)
            self.keepers[name] = host.keeper = Keeper(self._surroundings(name, host), reconciler, thread())

    def _surroundings(self, keyspace: str, host: FakeHost) -> Surroundings:
        return Surroundings(
            keyspace,
            "w",
            host,
            lambda membership: True,
            self.reports.append,
            time.monotonic,
            poll=NEVER,  # so signals alone have to do
            outcome_ttl=60.0,
        )

    def start(self) -> None:
        for keyspace, keeper in self.keepers.items():
            keeper.open(0, 1, 1)
            keeper.start()
            self.hosts[keyspace].boot()

    def admit(self, keyspace: str, key: str = "k") -> None:
        """Dispatch a job, as another process does."""
        job = NewJob("job", key, 0, f"{keyspace}-{key}", b"1")
        admission, _ = MemoryJobs(self.client.server, keyspace).admit(job, max_queued=100, outcome_ttl=60)
        assert admission is Admission.ADMITTED

    def step(self) -> None:
        """Let each host handle its messages."""
        for host in self.hosts.values():
            while host.inbox:
                host.step()

    def run(self, keyspace: str) -> set[str]:
        """Return the keys of the jobs that run in a keyspace."""
        self.step()
        return {start.key for start in self.hosts[keyspace].runs.values()}

    def records(self, keyspace: str) -> dict[str, str]:
        self.step()
        return {record.key: record.state.value for record in MemoryJobs(self.client.server, keyspace).records()}

    def finish(self) -> None:
        for keeper in self.keepers.values():
            keeper.finish(0.0)
        for keeper in self.keepers.values():
            keeper.finish(5.0)


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def worker(client: Client) -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def make(keyspaces: int = 1, thread: FlowThread[JobStore] | None = None) -> Worker:
        shared = thread or FlowThread[JobStore](lambda: client)
        made.append(Worker(client, lambda: shared, keyspaces))
        return made[-1]

    yield make
    client.silence = 0.0
    for one in made:
        one.finish()


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def idle(worker: Worker) -> None:
    """Wait until every job is recorded as running and no keeper has anything to do."""
    seats_of = [keeper._seat for keeper in worker.keepers.values()]
    wait_until(lambda: all(seat is not None and seat.due > time.monotonic() + 1.0 for seat in seats_of), 10, "it rests")


def test_keepers_of_many_keyspaces_take_one_thread(worker: Callable[..., Worker]) -> None:
    before = threads()
    made = worker(MANY)
    made.start()
    for keyspace in made.keepers:
        made.admit(keyspace)
    running = {"k": "running"}
    wait_until(lambda: all(made.records(keyspace) == running for keyspace in made.keepers), 20, "all jobs run")
    assert threads() == before + 1
    made.finish()
    wait_until(lambda: threads() == before, 5, "the thread has ended")


def test_a_signal_is_for_one_keyspace(worker: Callable[..., Worker], client: Client) -> None:
    made = worker(3)
    made.start()
    idle(made)
    looks: list[str] = []
    client.looked = looks.append
    made.admit("k1")
    wait_until(lambda: made.records("k1") == {"k": "running"}, 10, "it runs")
    assert set(looks) == {"k1"}


def test_a_driver_without_a_shared_client_has_a_thread_for_each_keyspace(client: Client) -> None:
    before = threads()

    def thread() -> FlowThread[JobStore]:
        return FlowThread(lambda: OwnClient(job_store=partial(ToldJobs, client)))

    made = Worker(client, thread, 2)
    made.start()
    for keyspace in made.keepers:
        made.admit(keyspace)
    wait_until(lambda: all(made.records(name) == {"k": "running"} for name in made.keepers), 10, "all jobs run")
    assert threads() == before + 2
    made.finish()


# -- nothing is missed -----------------------------------------------------------------------------


class LateSeats(FlowThread[JobStore]):
    """The keeper has had its first turn before `add` returns."""

    then: Callable[[], None]

    def add(self, seat: Seat[JobStore]) -> None:
        super().add(seat)
        wait_until(lambda: seat._state is seats.State.WATCHES and seat.due > time.monotonic() + 1, 10, "it rests")
        self.then()


def test_what_is_posted_during_the_start_is_taken_in(worker: Callable[..., Worker], client: Client) -> None:
    thread = LateSeats(lambda: client)
    made = worker(thread=thread)
    thread.then = lambda: made.keepers["k0"].open(0, 1, 1)
    made.admit("k0")
    made.hosts["k0"].boot()
    made.keepers["k0"].start()
    wait_until(lambda: made.records("k0") == {"k": "running"}, 5, "the slot is open, and its job runs")


def test_a_wake_during_a_turn_is_kept(worker: Callable[..., Worker], client: Client) -> None:
    made = worker()
    made.start()
    idle(made)

    def post(_: str) -> None:
        client.looked = lambda keyspace: None
        made.keepers["k0"].stop(0)

    client.looked = post  # while the turn stands at its request
    made.admit("k0")

    def drained() -> bool:
        made.step()
        return Drained(0) in made.reports

    wait_until(drained, 5, "the slot is given up")


def test_a_signal_between_two_requests_of_a_turn_is_heeded(worker: Callable[..., Worker], client: Client) -> None:
    made = worker(2)
    made.start()
    idle(made)

    def change(keyspace: str) -> None:
        client.looked = lambda keyspace: None
        made.admit("k0", "second")

    client.looked = change  # after the answer was made
    made.admit("k0", "first")
    wait_until(lambda: made.records("k0") == {"first": "running", "second": "running"}, 5, "both run")


def test_a_change_right_after_the_first_look_is_heard(worker: Callable[..., Worker], client: Client) -> None:
    made = worker()

    def change(keyspace: str) -> None:
        client.looked = lambda keyspace: None
        made.admit(keyspace)

    client.looked = change
    made.start()
    wait_until(lambda: made.records("k0") == {"k": "running"}, 5, "it was subscribed before")


# -- without the store -----------------------------------------------------------------------------


def test_while_the_store_is_silent_jobs_are_stopped_and_it_is_logged_once(
    worker: Callable[..., Worker], client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "celery_sticky.jobs")
    made = worker(3)
    made.start()
    for keyspace in made.keepers:
        made.admit(keyspace)
    wait_until(lambda: all(made.records(name) == {"k": "running"} for name in made.keepers), 10, "all jobs run")
    idle(made)
    client.silence = 0.05
    for keyspace in made.keepers:
        MemoryJobs(client.server, keyspace).notify(0, "job", "k", b"1", limit=10)  # so that the keepers ask
    wait_until(lambda: client.silent > 5, 10, "they have asked often")
    for keeper in made.keepers.values():
        keeper.stop(0)
    wait_until(lambda: all(host.inbox == deque([Stop(1)]) for host in made.hosts.values()), 5, "all jobs are stopped")
    client.silence = 0.0
    wait_until(lambda: len(caplog.records) == 6, 5, "the outage is over for all")
    for keyspace in made.keepers:
        said = [record for record in caplog.records if f"jobs of keyspace {keyspace}:" in record.getMessage()]
        assert [record.levelname for record in said] == ["WARNING", "INFO"]
        assert "the store does not answer: no answer. Running jobs continue while the lease" in said[0].getMessage()
        assert "the store answers again" in said[1].getMessage()


def test_a_turn_that_fails_takes_in_what_was_posted_and_the_next_one_ends_the_outage(
    worker: Callable[..., Worker], client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "celery_sticky.jobs")
    keeper, store = worker().keepers["k0"], client.job_store("k0")

    def watch() -> tuple[Any, Watch]:
        """Return a new turn that has got to its last request, and that request."""
        turn = keeper._routine.turn()
        request = next(turn)
        while not isinstance(request, Watch):
            request = turn.send(request(store))  # type: ignore[operator]
        return turn, request

    turn = keeper._routine.turn()
    assert next(turn) == Watch(0.0), "it subscribes"
    taken: list[str] = []
    keeper._post(lambda: taken.append("it"))
    assert turn.throw(StoreUnavailable("away")) == Pause(BROKEN_PAUSE)
    assert taken == ["it"]
    turn, request = watch()
    assert request.seconds == 0.0, "whether it can subscribe again"
    with pytest.raises(StopIteration):
        turn.send(())
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    turn, request = watch()
    assert request.seconds > 1000.0


def test_what_is_posted_is_taken_in_although_the_store_has_never_answered(
    worker: Callable[..., Worker], client: Client
) -> None:
    client.server.stop()
    made = worker()
    made.start()
    made.keepers["k0"].stop(0)
    wait_until(lambda: Drained(0) in made.reports, 5, "nothing ran in the slot")


def test_a_broken_subscription_is_made_again(worker: Callable[..., Worker], client: Client) -> None:
    made = worker(2)
    made.start()
    idle(made)
    client.server.cut()
    wait_until(lambda: len(client.server.subscriptions) == 2, 5, "both are subscribed again")
    idle(made)
    made.admit("k1")
    wait_until(lambda: made.records("k1") == {"k": "running"}, 5, "it is heard")


def test_a_keeper_finishes_in_time_when_the_store_never_answers(worker: Callable[..., Worker], client: Client) -> None:
    door, stands = Door(), Door()

    def hang(_: str) -> None:
        stands.set()
        assert door.wait(30)

    made = worker(2)
    made.start()
    idle(made)
    client.looked = hang
    made.admit("k0")
    assert stands.wait(5)
    for keeper in made.keepers.values():
        begun = time.monotonic()
        keeper.finish(0.2)
        assert 0.2 <= time.monotonic() - begun < 2.0
    client.looked = lambda keyspace: None
    door.set()
    own = [keeper._seat for keeper in made.keepers.values()]
    wait_until(lambda: all(seat is not None and seat.ended for seat in own), 5, "they end when the request does")


def test_an_unexpected_error_ends_one_turn_of_one_keyspace(
    worker: Callable[..., Worker], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(seats, "ERROR_PAUSE", 0.05)
    made = worker(2)

    def fail() -> Any:
        raise RuntimeError("nobody expects this")

    made.keepers["k0"]._post(fail)
    made.start()
    for keyspace in made.keepers:
        made.admit(keyspace)
    wait_until(lambda: all(made.records(name) == {"k": "running"} for name in made.keepers), 10, "all jobs run")
    assert [record.getMessage() for record in caplog.records] == [
        "jobs of keyspace k0: unexpected error in the keeper; it tries again in 1 s"
    ]


def test_a_worker_that_stops_tells_all_keepers_before_it_waits_for_one() -> None:
    """Guards: a silent store costs a timeout for each keyspace in turn."""
    told: set[str] = set()

    class Stopping:
        def __init__(self, name: str) -> None:
            self.name = name

        def finish(self, timeout: float) -> None:
            assert timeout == 0.0 or told == {"a", "b", "c"}
            told.add(self.name)

    ended: list[float] = []
    around = Mock()
    jobs = WorkerJobs(around, {name: cast(Any, Stopping(name)) for name in "abc"}, Mock(finish=ended.append))
    jobs.finish(5.0)
    assert len(ended) == 1


# -- slots that another worker already has ---------------------------------------------------------


def lost_with_a_job(worker: Callable[..., Worker]) -> Worker:
    """Return a worker that runs a job in its slot, and whose keeper has no thread any more: the test takes in."""
    made = worker()
    made.start()
    made.admit("k0")
    wait_until(lambda: made.records("k0") == {"k": "running"}, 10, "it runs")
    made.finish()
    made.reports.clear()
    return made


def test_the_member_knows_before_it_joins_again_that_a_lost_slot_costs_the_host(worker: Callable[..., Worker]) -> None:
    made = lost_with_a_job(worker)
    made.keepers["k0"].close(0)
    assert made.reports == [HostDown()], "at once: its next request may be to join"
    made.hosts["k0"].boot = lambda: None  # type: ignore[method-assign]
    made.keepers["k0"].take_in()
    assert made.reports[-1] == HostDown(), "until the next process has loaded the app"


def test_the_member_hears_that_the_host_survived_the_loss_of_a_slot(worker: Callable[..., Worker]) -> None:
    made = lost_with_a_job(worker)
    made.hosts["k0"].kill = lambda *_: None  # type: ignore[method-assign]
    made.keepers["k0"].close(0)  # the job ran apart, or there are more hosts
    made.keepers["k0"].take_in()
    assert made.reports == [HostDown(), HostUp()]


def test_a_lost_slot_without_running_jobs_costs_no_host(worker: Callable[..., Worker]) -> None:
    made = lost_with_a_job(worker)
    made.keepers["k0"].close(1)
    assert HostDown() not in made.reports
