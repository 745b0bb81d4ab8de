"""Which job runs in which process of a worker: shared hosts, the host of schedules, processes apart, and trials."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from celery_sticky.jobs.keeper.home import Home
from celery_sticky.jobs.keeper.host_flow import RETRY_FIRST, RETRY_LAST, Begin, Blame, Flow, HostFlow
from celery_sticky.jobs.keeper.hosts import IDLE, LOADING, JobHosts
from celery_sticky.jobs.keeper.strikes import FORGET, Strikes
from celery_sticky.jobs.wire import Ended, Message, Ready, Start
from celery_sticky.stores.flow import Pause


class Process:
    """A process that runs nothing."""

    pid = 1

    def __init__(self) -> None:
        self.executed = frozenset[int]()
        self.sent: list[Message] = []
        self.closed = False

    def listen(self) -> None:
        """Nothing."""

    def send(self, messages: Collection[Message]) -> None:
        self.sent += messages

    def kill(self) -> None:
        """Nothing: the test says when it is dead."""

    def close(self, timeout: float) -> None:
        self.closed = True


class Bench:
    """The hosts of a worker, and a keeper. `loads`: a process loads the app at once."""

    def __init__(self, *, hosts: int = 1, quarantine: int = 2, loads: bool = True) -> None:
        self.now, self.loads = 1000.0, loads
        self.up: list[bool] = []
        self.ended: list[tuple[int, Blame]] = []
        self.changes = 0
        self.processes: dict[int, tuple[HostFlow, Process]] = {}
        self.pauses: list[float] = []
        trust: Any = SimpleNamespace(trusted=lambda *_: True)
        self.hosts = JobHosts(trust, lambda: self.now, self._launch, hosts=hosts, quarantine=quarantine)
        self.hosts.listeners = [self]
        for host in self.hosts.shared:
            self._launch(host, host.begin())

    def _launch(self, host: HostFlow, flow: Flow) -> None:
        answer: Any = None
        while True:
            try:
                request = flow.send(answer)
            except StopIteration:
                break
            answer = None
            match request:
                case Pause(seconds):
                    self.pauses.append(seconds)
                case Begin():
                    answer = Process()
                    self.processes[host._number] = (host, answer)
        if self.loads and host._host is not None:
            host.heard(Ready(()))

    # -- a keeper ------------------------------------------------------------------------------

    def hosts_up(self, *, up: bool) -> None:
        self.up.append(up)

    def host_started(self) -> None:
        self.changes += 1

    def host_ended(self, number: int, blame: Blame) -> None:
        self.ended.append((number, blame))

    def heard(self, message: Message) -> None:
        """Nothing."""

    # -- what the test does --------------------------------------------------------------------

    def place(self, job: str, home: Home = Home.SHARED) -> int:
        return self.hosts.place(("ks", job), f"job {job}", home)

    def start(self, ref: int, home: Home = Home.SHARED) -> int:
        """Start the job of this number; return in which process."""
        number = self.place(str(ref), home)
        self.hosts.say(number, [Start(ref, "job", str(ref), "ks", str(ref), 1, 1, None, 1)])
        return number

    def dies(self, number: int, *executed: int) -> Blame:
        """End a process that executed these runs; return who is to blame."""
        host, process = self.processes.pop(number)
        process.executed = frozenset(executed)
        self._launch(host, host.replace(-9))
        assert self.ended[-1][0] == number
        return self.ended[-1][1]


def test_jobs_are_spread_over_the_shared_hosts_and_keep_theirs() -> None:
    bench = Bench(hosts=3)
    places = [bench.place(f"job{n}") for n in range(300)]
    assert {places.count(number) > 60 for number in set(places)} == {True} and len(set(places)) == 3
    assert [bench.place(f"job{n}") for n in range(300)] == places


def test_a_worker_has_hosts_as_long_as_one_is_up() -> None:
    bench = Bench(hosts=2)
    assert bench.up == [True, True]
    bench.loads = False
    bench.dies(1)
    assert bench.up == [True, True]
    bench.dies(2)
    assert bench.up == [True, True, False]


def test_a_worker_has_no_host_from_the_kill_on_and_not_only_from_the_end_of_its_process() -> None:
    bench = Bench(hosts=2)
    bench.hosts.kill(1, "a test", {})
    assert bench.up == [True, True]
    bench.hosts.kill(2, "a test", {})
    assert bench.up == [True, True, False]


def test_a_job_waits_for_its_own_host_and_the_keepers_hear_when_it_is_back() -> None:
    bench = Bench(hosts=2)
    number = bench.place("x")
    bench.loads = False
    bench.dies(number)
    assert bench.place("x") == 0
    before = bench.changes
    next(host for host in bench.hosts.shared if not host.up).heard(Ready(()))
    assert bench.place("x") > number and bench.changes == before + 1


def test_schedules_have_a_lasting_process_of_their_own() -> None:
    bench = Bench()
    first = bench.place("schedule:x", Home.BUILT_IN)
    first = first or bench.place("schedule:x", Home.BUILT_IN)
    assert first != bench.place("job") and first == bench.place("ticker:y", Home.BUILT_IN)
    bench.dies(first)
    assert bench.place("schedule:x", Home.BUILT_IN) > first


def test_a_job_apart_has_a_process_for_itself_for_as_long_as_it_runs() -> None:
    bench = Bench()
    number = bench.start(7, Home.QUARANTINE)
    assert number and number != bench.place("7") and number == bench.place("7", Home.QUARANTINE)
    host, process = bench.processes[number]
    host.heard(Ended(7))
    assert process.closed
    assert bench.place("7", Home.QUARANTINE) != number, "the next start has a new one"


def test_only_so_many_jobs_run_apart_at_a_time_and_the_next_one_hears_when_there_is_room() -> None:
    bench = Bench(quarantine=2)
    assert bench.start(1, Home.QUARANTINE) and bench.start(2, Home.QUARANTINE)
    assert bench.place("3", Home.QUARANTINE) == 0
    before = bench.changes
    bench.processes[bench.place("1", Home.QUARANTINE)][0].heard(Ended(1))
    assert bench.changes > before
    assert bench.place("3", Home.QUARANTINE)


def test_isolated_jobs_have_a_process_each_however_many_they_are_and_are_to_blame_for_its_end() -> None:
    bench = Bench(quarantine=1)
    numbers = [bench.start(ref, Home.ISOLATED) for ref in range(5)]
    assert len({bench.place("shared"), *numbers, bench.start(7, Home.QUARANTINE)}) == 7
    assert bench.dies(numbers[2]) == {2: "its process ended"}
    assert bench.place("1", Home.ISOLATED) == numbers[1] and bench.place("2", Home.ISOLATED) not in numbers


def test_processes_of_single_jobs_load_the_app_one_after_the_other() -> None:
    bench = Bench(quarantine=9)
    bench.loads = False
    wanted = [("a", Home.ISOLATED), ("b", Home.QUARANTINE), ("c", Home.ISOLATED)]
    for loaded in range(3):
        assert [bool(bench.place(*one)) for one in wanted] == [number < loaded for number in range(3)]
        assert len(bench.processes) == 2 + loaded, "the shared host, and one that loads"
        before = bench.changes
        bench.processes[max(bench.processes)][0].heard(Ready(()))
        assert bench.changes == before + 1, "the keepers hear that the next one may load"
    assert all(bench.place(*one) for one in wanted)


def test_a_process_that_does_not_load_the_app_or_takes_long_does_not_keep_the_next_one_from_it() -> None:
    bench = Bench(quarantine=9)
    bench.loads = False
    assert not bench.place("a", Home.ISOLATED) and not bench.place("b", Home.ISOLATED)
    bench.dies(max(bench.processes))
    bench.place("b", Home.ISOLATED)
    assert len(bench.processes) == 2
    bench.hosts.look()
    assert not bench.place("c", Home.QUARANTINE) and len(bench.processes) == 2
    bench.now += RETRY_LAST + LOADING
    before = bench.changes
    bench.hosts.look()
    assert bench.changes == before + 1
    bench.place("c", Home.QUARANTINE)
    assert len(bench.processes) == 3


def test_a_job_apart_is_to_blame_for_the_end_of_its_process_whatever_it_executed() -> None:
    bench = Bench()
    number = bench.start(7, Home.QUARANTINE)
    assert bench.dies(number) == {7: "its process ended"}
    assert bench.place("7", Home.QUARANTINE) != number


def test_a_process_that_its_job_never_needed_is_ended() -> None:
    bench = Bench()
    number = bench.place("7", Home.QUARANTINE) or bench.place("7", Home.QUARANTINE)
    bench.now += IDLE + 1
    bench.hosts.look()
    assert bench.processes[number][1].closed and not bench.processes[1][1].closed


def test_processes_that_cannot_load_the_app_follow_each_other_less_and_less_often() -> None:
    bench = Bench()
    bench.loads = False
    for _ in range(4):
        bench.place("7", Home.QUARANTINE)
        bench.dies(max(bench.processes))
    bench.place("7", Home.QUARANTINE)
    assert bench.pauses == [0.0, 2 * RETRY_FIRST, 4 * RETRY_FIRST, 8 * RETRY_FIRST, 16 * RETRY_FIRST]


@pytest.mark.parametrize("culprit", range(20))
def test_a_job_that_ends_its_process_unseen_is_soon_the_only_suspect(culprit: int) -> None:
    bench = Bench()
    jobs = range(1, 21)
    where = {job: bench.start(job) for job in jobs}
    deaths = 0
    while True:
        deaths += 1
        number = where[culprit + 1]
        blame = bench.dies(number)
        if blame:
            break
        for job in [job for job in jobs if where[job] == number]:
            where[job] = bench.start(job) or bench.start(job)
        assert deaths < 10
    assert blame.keys() == {culprit + 1}


A, B, C, D = (("ks", name) for name in "abcd")


def test_one_unexplained_death_separates_nobody() -> None:
    strikes = Strikes()
    assert strikes.host_ended([A, B], 0.0) is None
    assert not strikes.apart(A, 0.0) and not strikes.apart(B, 0.0)
    assert strikes.host_ended([A, B], FORGET + 1.0) is None
    assert not strikes.apart(A, FORGET + 1.0), "it was too long ago"
    assert Strikes().host_ended([A], 0.0) is None, "not even one that was alone"


def test_suspects_are_separated_for_as_long_as_they_are_suspects() -> None:
    strikes = Strikes()
    strikes.host_ended([A, B], 0.0)
    strikes.host_ended([A, B], 1.0)
    assert [strikes.apart(A, FORGET), strikes.apart(B, FORGET)] == [True, False]
    assert not strikes.apart(A, FORGET + 2.0)


def test_suspects_that_were_elsewhere_are_no_more() -> None:
    strikes = Strikes()
    strikes.host_ended([A, B], 0.0)
    strikes.host_ended([C, D], 1.0)
    assert strikes.host_ended([C, ("ks", "x")], 2.0) == C
