"""A worker's job hosts without threads and processes: the shipped `JobHosts` decide, and the world's events perform."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from celery_sticky.jobs.keeper.home import Home
from celery_sticky.jobs.keeper.host_flow import Begin, Blame, Flow, HostFlow
from celery_sticky.jobs.keeper.host_watch import STEP
from celery_sticky.jobs.keeper.hosts import JobHosts
from celery_sticky.jobs.keeper.strikes import Who
from celery_sticky.jobs.wire import Message, Ready
from celery_sticky.stores.flow import Pause
from simulator.job_host import SimulatedHost
from simulator.jobs_scenario import NAME, Fault, HostFault
from simulator.terms import HOSTS, KEYSPACE, QUARANTINE, WATCHDOG

if TYPE_CHECKING:
    from simulator.jobs_world import JobsWorld
    from simulator.keeper import SteppedKeeper
    from simulator.process import Process

KILLED = -9
"""The exit status of a simulated host."""


class SteppedSupervisor:
    """Does the same as `jobs.keeper.supervisor` and `jobs.keeper.process`, in the same order."""

    def __init__(self, process: Process, jobs: JobsWorld) -> None:
        self._process, self._world, self.jobs = process, process.world, jobs
        self._hosts = JobHosts(
            process.lease,
            lambda: process.clock,
            self._run,
            hosts=HOSTS,
            quarantine=QUARANTINE,
            watchdog=WATCHDOG,
        )
        self._processes: list[SimulatedHost] = []
        self._births = 0
        self._keeper: SteppedKeeper | None = None
        self._answers: deque[Callable[[], None]] = deque()
        self._watching = False

    def start(self, keeper: SteppedKeeper) -> None:
        """See `Supervisor.start`."""
        self._keeper, self._hosts.listeners = keeper, (keeper,)
        for host in self._hosts.shared:
            self._run(host, host.begin())
        self._process.later(STEP, self._look)

    def _look(self) -> None:
        """See `platform.repeated.Repeated`."""
        self._hosts.look()
        self._process.later(STEP, self._look)

    @property
    def delays_starts(self) -> bool:
        """Whether jobs may wait for a process of their own, because one has died."""
        return self._hosts.any_single

    # -- what the flows want -------------------------------------------------------------------

    def _run(self, host: HostFlow, flow: Flow, answer: SimulatedHost | None = None) -> None:
        try:
            request = flow.send(answer)
        except StopIteration:
            return
        match request:
            case Pause(seconds):
                self._process.later(seconds / self._process.rate, partial(self._run, host, flow))
            case Begin():
                self._run(host, flow, self._spawn(host))

    def _spawn(self, flow: HostFlow) -> SimulatedHost:
        self._births += 1
        host = SimulatedHost(self, self._process, self._births, flow)
        self._processes.append(host)
        self._world.after(self._process.rng.uniform(0.05, 0.5), partial(self._loaded, host))
        return host

    # -- from the hosts ------------------------------------------------------------------------

    def _loaded(self, host: SimulatedHost) -> None:
        if host.alive:
            self.heard(host, Ready((f"{KEYSPACE}/{NAME}",)))

    def heard(self, host: SimulatedHost, message: Message) -> None:
        """Take in a message from a process."""
        self._answer(partial(host.flow.heard, message))

    def exited(self, host: SimulatedHost) -> None:
        """Take in that a process has ended."""
        self._processes.remove(host)
        self._answer(lambda: self._run(host.flow, host.flow.replace(KILLED)))

    def _answer(self, take_in: Callable[[], None]) -> None:
        """Have the worker take in what a host says; that comes in its order."""
        self._answers.append(take_in)
        self._process.later(self._process.rng.uniform(0, 0.01), lambda: self._answers.popleft()())

    # -- for the keeper ------------------------------------------------------------------------

    def place(self, who: Who, label: str, home: Home) -> int:
        """See `Hosting.place`."""
        return self._hosts.place(who, label, home)

    def say(self, number: int, messages: Sequence[Message]) -> None:
        """See `Hosting.say`."""
        self._hosts.say(number, messages)
        if messages and not self._watching:
            self._watch()

    def kill(self, number: int, reason: str, blame: Blame) -> None:
        """See `Hosting.kill`."""
        self._world.note(self._process.origin, "kills job host %s: %s", number, reason)
        self._hosts.kill(number, reason, blame)

    def _watch(self) -> None:
        """See `Deadline`; while nothing runs, there is nothing to look at."""
        pause = self._hosts.trust.look()
        self._watching = any(host.runs for host in self._hosts._all())
        if self._watching:
            self._process.later(pause / self._process.rate, self._watch)

    # -- the lease, seen from the hosts --------------------------------------------------------

    def look_at_the_lease(self) -> None:
        """The hosts see that the lease may have ended early."""
        for host in list(self._processes):
            host.look_at_the_lease()

    # -- what befalls them ---------------------------------------------------------------------

    def strike(self, fault: Fault) -> None:
        """Have the fault happen to one of the present processes."""
        if not self._processes:
            return
        host = self._process.rng.choice(self._processes)
        until = self._world.now + fault.seconds
        match fault.kind:
            case HostFault.DIES:
                host.die()
            case HostFault.HANGS:
                host.hang(until)
            case HostFault.FREEZES:
                host.frozen_until = until
                self._world.at(until, host.thaw)

    def thaw(self) -> None:
        """The hosts go on."""
        for host in list(self._processes):
            host.thaw()

    def die_with_parent(self) -> None:
        """The hosts die with their worker."""
        for host in list(self._processes):
            host.die()
