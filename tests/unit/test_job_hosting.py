"""The job host's supervisor: when hosts start, are replaced and killed, and when a worker may take slots."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest

from celery_sticky.flows import run_flow
from celery_sticky.jobs.keeper import host_flow
from celery_sticky.jobs.keeper.home import Home
from celery_sticky.jobs.keeper.host_flow import (
    GRACE,
    LOADED_LAST,
    RETRY_FIRST,
    RETRY_LAST,
    STEADY,
    Begin,
    Blame,
    HostFlow,
    Request,
)
from celery_sticky.jobs.keeper.process import HostProcess
from celery_sticky.jobs.keeper.supervisor import Supervisor
from celery_sticky.jobs.wire import Blocked, Ended, Failed, Message, Ping, Pong, Ready, Start, Started, Stop, Unready
from celery_sticky.membership.deadline import STEP
from celery_sticky.membership.lease import Lease
from celery_sticky.stores.flow import Pause
from celery_sticky.testing.processes import children
from celery_sticky.testing.waiting import wait_until

WHO = ("default", "id")


class FakeHost:
    """Runs nothing."""

    pid = 1

    def __init__(self) -> None:
        self.executed = frozenset[int]()
        self.sent: list[Message] = []
        self.kills = 0
        self.on_listen: Callable[[], None] = lambda: None

    def listen(self) -> None:
        """Say what the test wants it to say at once."""
        self.on_listen()

    def send(self, messages: Sequence[Message]) -> None:
        """Record them."""
        self.sent += messages

    def kill(self) -> None:
        """Count it."""
        self.kills += 1

    def close(self, timeout: float) -> None:
        """Nothing."""


class FakeLease:
    """Trust that the test gives and takes."""

    def __init__(self) -> None:
        self.lasts = True

    def until(self, keyspace: str) -> float:
        """Never, or long ago."""
        return float("inf") if self.lasts else float("-inf")

    def membership(self, keyspace: str) -> int:
        """Always the first."""
        return 1

    def trusted(self, keyspace: str, membership: int) -> bool:
        """As the test says."""
        return self.lasts and membership == 1


class FakeOwner:
    """Whom a host tells of itself."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.numbers = 0

    def number(self) -> int:
        """Count."""
        self.numbers += 1
        return self.numbers

    def host_started(self, host: HostFlow) -> None:
        """Record it."""
        self.told.append(host.up)

    def host_ended(self, host: HostFlow, number: int, runs: Collection[Start], blame: Blame | None) -> None:
        """Record it."""
        self.told.append((number, sorted(run.ref for run in runs), blame))

    def heard(self, host: HostFlow, message: Message) -> None:
        """Record it."""
        self.told.append(message)


class FakeKeeper:
    """A keeper that the test asks nothing."""

    def hosts_up(self, *, up: bool) -> None:
        """Nothing."""

    def host_started(self) -> None:
        """Nothing."""

    def host_ended(self, number: int, blame: Blame) -> None:
        """Nothing."""

    def heard(self, message: Message) -> None:
        """Nothing."""


def start(ref: int = 7, membership: int = 1) -> Start:
    """Return the order to start a run."""
    return Start(ref, "sync", f"t-{ref}", "default", f"id{ref}", 1, 1, None, membership)


class Bench:
    """The decisions about a host, with a clock and processes that the test plays."""

    def __init__(self, *, lasting: bool = True, watchdog: float = 0.0) -> None:
        self.now = 1000.0
        self.lease, self.owner = FakeLease(), FakeOwner()
        self.flow = HostFlow(
            "the job host", self.owner, self.lease, lambda: self.now, lasting=lasting, watchdog=watchdog
        )
        self.hosts: list[FakeHost] = []
        self.pauses: list[float] = []
        self.failures: list[OSError] = []
        """Raised by the next attempts to start a process."""
        run_flow(self.flow.begin(), self._perform)

    def runs(self, *refs: int) -> None:
        """Have the process load the app and start these."""
        self.flow.heard(Ready(()))
        self.flow.say(self.flow.up, [start(ref) for ref in refs])

    def dies(self, status: int = -9, executed: Collection[int] = ()) -> object:
        """End the process, and run the flow until the next one has started; return who is to blame."""
        if self.flow._host is not None:
            self.hosts[-1].executed = frozenset(executed)
        told = len(self.owner.told)
        run_flow(self.flow.replace(status), self._perform)
        ended = self.owner.told[told]
        assert isinstance(ended, tuple)
        return ended[2]

    def _perform(self, request: Request) -> FakeHost | None:
        match request:
            case Pause(seconds):
                self.pauses.append(seconds)
                self.now += seconds
                return None
            case Begin():
                if self.failures:
                    raise self.failures.pop()
                self.hosts.append(FakeHost())
                return self.hosts[-1]


def test_a_host_that_cannot_be_started_again_is_tried_until_it_can(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.failures = [OSError("no memory"), OSError("no memory")]
    bench.dies()
    assert len(bench.hosts) == 2
    assert bench.pauses == [RETRY_FIRST, RETRY_LAST, RETRY_LAST]
    assert "cannot be started; trying again in 30 s" in caplog.text


def test_no_host_follows_the_last_one() -> None:
    bench = Bench()
    bench.flow.finish(0.0)
    bench.dies()
    assert (len(bench.hosts), bench.pauses, bench.owner.told) == (1, [], [(1, [], {})])


def test_no_host_starts_when_the_worker_stops_during_the_pause() -> None:
    bench = Bench()
    replacing = bench.flow.replace(-9)
    assert next(replacing) == Pause(RETRY_FIRST)
    bench.flow.finish(0.0)
    with pytest.raises(StopIteration):
        replacing.send(None)


@pytest.mark.parametrize(
    ("cause", "blame"),
    [
        ("itself", {7: "its process ended (exit status -11) while it was executed"}),
        ("idle", None),
        ("a kill with blame", {8: "its stop took longer"}),
        ("a kill of whom it may concern", {7: "its process ended (exit status -11) while it was executed"}),
        ("a kill of nobody's fault", {}),
        ("trust", {}),
        ("the worker's end", {}),
    ],
)
def test_who_was_executed_is_to_blame_unless_it_is_known_better(cause: str, blame: object) -> None:
    bench = Bench()
    bench.runs(7, 8)
    match cause:
        case "a kill with blame":
            bench.flow.kill(1, "it does not stop", {8: "its stop took longer"})
        case "a kill of whom it may concern":
            bench.flow.kill(1, "it does not answer", None)
        case "a kill of nobody's fault":
            bench.flow.kill(1, "another worker has the slot", {})
        case "the worker's end":
            bench.flow.finish(0.0)
    bench.lease.lasts = cause != "trust"
    assert bench.dies(-11, () if cause == "idle" else (7, 99)) == blame


def test_a_kill_accounts_only_for_the_process_that_was_killed() -> None:
    bench = Bench()
    bench.runs(7)
    bench.flow.kill(1, "it does not stop", {})
    bench.dies()
    bench.runs(7)
    assert bench.dies(-9, (7,)) != {}


def test_a_process_that_is_being_killed_takes_no_more_jobs() -> None:
    bench = Bench()
    bench.runs(7)
    assert bench.flow.up == 1
    bench.flow.kill(1, "it does not stop", {})
    assert bench.flow.up == 0


def test_a_run_that_has_ended_is_not_to_blame_and_needs_no_trust() -> None:
    bench = Bench()
    bench.runs(7, 8)
    bench.flow.heard(Ended(7))
    bench.flow.heard(Failed(8, "no"))
    bench.lease.lasts = False
    bench.flow.watch.look()
    bench.now += GRACE + 1
    bench.flow.watch.look()
    assert bench.hosts[0].kills == 0
    assert bench.dies(-9, (7, 8)) is None


def test_a_loop_that_is_blocked_is_the_fault_of_the_run_that_blocks_it() -> None:
    bench = Bench(watchdog=30.0)
    bench.runs(7)
    bench.flow.heard(Blocked(7, "sync", "t-7", 30.2))
    for _ in range(40):
        bench.now += 1.0
        bench.flow.look()
    assert bench.hosts[0].kills == 1 and Ping() in bench.hosts[0].sent
    assert bench.dies(-9, (7, 8)) == {7: "it blocked the event loop of its job host for 30 s"}


@pytest.mark.parametrize("answers", [False, True])
def test_a_stop_that_is_late_while_another_run_blocks_the_loop_is_the_fault_of_that_run(answers: bool) -> None:
    bench = Bench(watchdog=30.0)
    bench.runs(7, 8)
    bench.flow.heard(Blocked(7, "sync", "t-7", 9.6))
    if answers:
        bench.flow.heard(Pong())
    late = {8: "its stop took longer than 10 s"}
    bench.flow.kill(1, "its stop took longer than 10 s", late)
    assert bench.dies(-9, (7,)) == (late if answers else {7: "it blocked the event loop of its job host for 10 s"})


def test_a_process_that_is_not_lasting_is_not_replaced(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(lasting=False)
    bench.runs(7)
    bench.dies(-11, (7,))
    assert (len(bench.hosts), bench.pauses) == (1, [])
    assert "the job host has died (exit status -11), to blame: 1 of its jobs" in caplog.text


def test_orders_reach_only_the_host_that_they_are_for() -> None:
    bench = Bench()
    bench.flow.say(1, [Stop(1)])
    bench.dies()
    bench.flow.say(1, [Stop(2)])
    bench.flow.kill(1, "it does not stop", {})
    bench.flow.say(2, [Stop(3)])
    assert [host.sent for host in bench.hosts] == [[Stop(1)], [Stop(3)]]
    assert [host.kills for host in bench.hosts] == [0, 0]


def test_a_host_that_survives_the_end_of_trust_is_killed_after_a_grace() -> None:
    bench = Bench()
    bench.runs(7)
    assert bench.flow.watch.look() == STEP
    bench.lease.lasts = False
    bench.flow.watch.look()
    bench.now += GRACE - 0.01
    bench.flow.watch.look()
    assert bench.hosts[0].kills == 0
    bench.now += 0.02
    bench.flow.watch.look()
    assert bench.hosts[0].kills == 1


def test_the_grace_starts_again_once_trust_is_back() -> None:
    bench = Bench()
    bench.runs(7)
    for lasts in (False, True, False):
        bench.lease.lasts = lasts
        bench.flow.watch.look()
        bench.now += GRACE + 1
    assert bench.hosts[0].kills == 0


def test_a_host_that_loads_the_app_and_dies_is_soon_replaced_however_often() -> None:
    bench = Bench()
    for n in range(20):
        if n < 10:
            bench.flow.heard(Ready(()))
        bench.dies(1)
    assert bench.pauses[0] == RETRY_FIRST
    assert (max(bench.pauses[:10]), bench.pauses[-1]) == (LOADED_LAST, RETRY_LAST)


def test_a_host_that_has_worked_for_long_is_replaced_at_once_again() -> None:
    bench = Bench()
    for _ in range(5):
        bench.dies()
    bench.now += STEADY + 1
    bench.dies()
    assert bench.pauses[-2:] == [16 * RETRY_FIRST, RETRY_FIRST]


def test_its_owner_hears_of_a_host_and_its_runs_and_its_end() -> None:
    bench = Bench()
    bench.runs(7)
    bench.flow.heard(Started(7))
    bench.dies()
    bench.flow.heard(Ready(("default/sync",)))
    assert bench.owner.told == [1, Started(7), (1, [7], None), 2]


def test_after_the_death_of_one_to_blame_the_next_process_starts_soon() -> None:
    bench = Bench()
    for _ in range(5):
        bench.runs(7)
        bench.dies(-9, (7,))
    assert bench.pauses == [RETRY_FIRST] * 5


def test_a_host_that_cannot_load_the_app_is_told_with_the_error_and_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.flow.heard(Unready("shop: ModuleNotFoundError: No module named 'crm'"))
    bench.dies(1)
    assert "has not loaded the app: shop: ModuleNotFoundError: No module named 'crm'" in caplog.text
    assert "sticky_job_app" in caplog.text
    bench.dies(-9)
    assert "has not loaded the app: it died first (exit status -9)" in caplog.text


def test_a_supervisor_starts_the_next_host_in_the_thread_that_saw_the_end_of_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exits: list[Callable[[int], None]] = []

    def spawn(name: str, on_message: Callable[[Message], None], on_exit: Callable[[int], None]) -> FakeHost:
        exits.append(on_exit)
        return FakeHost()

    monkeypatch.setattr(host_flow, "RETRY_FIRST", 0.001)
    supervisor = Supervisor(spawn, Lease({"default": 4}))
    supervisor.start(())
    exits[0](-9)
    assert len(exits) == 2
    supervisor.finish(0.0)


def test_what_is_said_in_answer_to_the_first_message_of_a_process_reaches_it() -> None:
    host = FakeHost()

    class Starting(FakeKeeper):
        def host_started(self) -> None:
            supervisor.say(supervisor.place(WHO, "", Home.SHARED), [Stop(7)])

    def spawn(name: str, on_message: Callable[[Message], None], on_exit: Callable[[int], None]) -> FakeHost:
        host.on_listen = lambda: on_message(Ready(("default/sync",)))
        return host

    supervisor = Supervisor(spawn, Lease({"default": 4}))
    supervisor.start([Starting()])
    supervisor.finish(0.0)
    assert host.sent == [Stop(7)]


def test_a_process_that_ends_at_once_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts: list[FakeHost] = []

    def spawn(name: str, on_message: Callable[[Message], None], on_exit: Callable[[int], None]) -> FakeHost:
        hosts.append(host := FakeHost())
        if len(hosts) == 1:
            host.on_listen = threading.Thread(target=on_exit, args=(1,), daemon=True).start
        return host

    monkeypatch.setattr(host_flow, "RETRY_FIRST", 0.001)
    supervisor = Supervisor(spawn, Lease({"default": 4}))
    supervisor.start([FakeKeeper()])
    wait_until(lambda: len(hosts) == 2)
    wait_until(lambda: supervisor._hosts.shared[0]._host is hosts[1])
    supervisor.finish(0.0)


@pytest.mark.parametrize("answer", ["ready", "exit"])
def test_a_worker_waits_until_its_host_has_loaded_the_app_or_failed_to(answer: str) -> None:
    answers: list[Callable[[], None]] = []

    def spawn(name: str, on_message: Callable[[Message], None], on_exit: Callable[[int], None]) -> FakeHost:
        answers.append(lambda: on_message(Ready(("default/sync",))) if answer == "ready" else on_exit(1))
        return FakeHost()

    supervisor = Supervisor(spawn, Lease({"default": 4}))
    supervisor.start(())
    supervisor.await_host(0.05)
    waiting = threading.Thread(target=supervisor.await_host, args=(60.0,), daemon=True)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive(), "nothing was said yet"
    threading.Thread(target=answers[0], daemon=True).start()
    waiting.join(20)
    assert not waiting.is_alive()
    supervisor.finish(0.0)


def test_a_program_that_cannot_be_started_leaves_no_reaper_behind(tmp_path: Path) -> None:
    before = children(os.getpid())
    lease = Lease({"default": 4})
    with pytest.raises(FileNotFoundError):
        HostProcess([str(tmp_path / "missing")], lease.descriptor, 1, lambda _: None, lambda _: None)
    assert children(os.getpid()) == before
