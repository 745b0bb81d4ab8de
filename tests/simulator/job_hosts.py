"""A worker's job hosts, one after the other. It plays `jobs.keeper.supervisor` and `jobs.keeper.process`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from celery_sticky.jobs.keeper.supervisor import GRACE, LOADED_LAST, RETRY_FIRST
from celery_sticky.jobs.keeper.suspects import Suspects
from celery_sticky.jobs.wire import Message
from simulator.job_host import SimulatedHost
from simulator.jobs_scenario import Fault, HostFault
from simulator.terms import KEYSPACE

if TYPE_CHECKING:
    from simulator.jobs_world import JobsWorld
    from simulator.keeper import SteppedKeeper
    from simulator.process import Process

STEP = 0.25
"""Seconds until anybody sees that a lease was ended early."""


class JobHosts:
    """The job hosts of a worker, one after the other."""

    keeper: SteppedKeeper

    def __init__(self, process: Process, jobs: JobsWorld, trusted: Callable[[int], bool]) -> None:
        self._process, self._world, self.jobs, self.trusted = process, process.world, jobs, trusted
        self.suspects = Suspects()
        self._host: SimulatedHost | None = None
        self._number = self._killed = self._failures = 0
        self._answers: deque[Callable[[], None]] = deque()
        self._watching = False
        self._untrusted_since: float | None = None

    def begin(self) -> None:
        """Start a host."""
        self._number += 1
        self._host = host = SimulatedHost(self, self._process, self._number)
        self._world.after(self._process.rng.uniform(0.05, 0.5), partial(self._loaded, host))

    def _loaded(self, host: SimulatedHost) -> None:
        if host.alive:
            self.answer(partial(self.keeper.host_started, host.number))

    def answer(self, take_in: Callable[[], None]) -> None:
        """Have the worker take in what a host says; that comes in its order."""
        self._answers.append(take_in)
        self._process.later(self._process.rng.uniform(0, 0.01), lambda: self._answers.popleft()())

    def exited(self, host: SimulatedHost) -> None:
        """See `Supervisor`: a host has ended."""
        self._host = None
        killed = self._killed == host.number or not all(self.trusted(number) for _, number in self.keeper.relied_on())
        self.suspects.host_ended(self._process.clock, killed=killed)
        self.keeper.host_ended()
        self._failures += 1
        pause = min(RETRY_FIRST * 2.0 ** min(self._failures - 1, 10), LOADED_LAST)
        self._process.later(pause, self.begin)

    # -- for the keeper ------------------------------------------------------------------------

    def say(self, number: int, messages: Sequence[Message]) -> None:
        """See `Hosting.say`."""
        if self._host is not None and number == self._number:
            for message in messages:
                self._host.send(message)
                if not self._watching:
                    self._watch()

    def kill(self, number: int, reason: str) -> None:
        """See `Hosting.kill`."""
        if self._host is not None and number == self._number:
            self._world.note(self._process.origin, "kills job host %s: %s", number, reason)
            self._killed = number
            self._host.die()

    # -- the lease, seen from the worker -------------------------------------------------------

    def look_at_the_lease(self) -> None:
        """The host sees that the lease may have ended early."""
        if self._host is not None:
            self._host.look_at_the_lease()

    def _watch(self) -> None:
        """See `Supervisor._watch`: kill a host that does not end itself when trust ends."""
        now, relied_on = self._world.now, [number for _, number in self.keeper.relied_on()]
        self._watching = bool(relied_on)
        if all(map(self.trusted, relied_on)):
            self._untrusted_since = None
        elif self._untrusted_since is None:
            self._untrusted_since = now
        elif now >= self._untrusted_since + GRACE:
            self.kill(self._number, f"the lease of {KEYSPACE} has ended")
        if self._watching:
            self._process.later(STEP, self._watch)

    # -- what befalls it -----------------------------------------------------------------------

    def strike(self, fault: Fault) -> None:
        """Have the fault happen to the present host."""
        if (host := self._host) is None or not host.alive:
            return
        until = self._world.now + fault.seconds
        match fault.kind:
            case HostFault.DIES:
                host.die()
            case HostFault.HANGS:
                host.hung_until = until
            case HostFault.FREEZES:
                host.frozen_until = until
                self._world.at(until, host.thaw)

    def thaw(self) -> None:
        """The host goes on."""
        if self._host is not None:
            self._host.thaw()

    def die_with_parent(self) -> None:
        """The host dies with its worker."""
        if self._host is not None:
            self._host.die()
