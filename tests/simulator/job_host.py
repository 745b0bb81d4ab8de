"""A worker's job hosts: each runs jobs as their lives say, in a process of its own, until it is killed or kills itself.

It plays `jobs.keeper.supervisor`, `jobs.keeper.process` and `jobs.host`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from celery_sticky.jobs.keeper.supervisor import GRACE, LOADED_LAST, RETRY_FIRST
from celery_sticky.jobs.keeper.suspects import Suspects
from celery_sticky.jobs.wire import Ended, Failed, Message, Noted, Notify, Start, Started, Stop
from celery_sticky.keys import Slot
from celery_sticky.stores.jobs import JobState
from simulator.jobs_scenario import Fault, HostFault, Life
from simulator.terms import KEYSPACE

if TYPE_CHECKING:
    from simulator.jobs_world import JobsWorld
    from simulator.keeper import SteppedKeeper
    from simulator.process import Process

LOOK = 0.01
"""Seconds after the end of trust by which a host has ended itself."""
STEP = 0.25
"""Seconds until anybody sees that a lease was ended early."""
LIFE = 3
"""How many times longer than its start a run lasts that ends by itself."""


class HostedJob:
    """A run of a job in a host, from the order to start it until nothing of it is left."""

    def __init__(self, host: SimulatedHost, start: Start, life: Life, seconds: float) -> None:
        self.host, self.process, self.start = host, host.process, start
        self.life, self.seconds = life, seconds
        self.key = int(start.key)
        self.slot: Slot = host.hosts.jobs.slot(self.key)
        self.started = self.stopping = self.over = False

    def __str__(self) -> str:
        return f"job {self.key}, ref {self.start.ref}, at {self.process.origin}, epoch {self.start.epoch}"

    @property
    def stands_still(self) -> bool:
        """Whether its host is frozen."""
        return self.host.stands_still_until > self.process.world.now

    @property
    def as_recorded(self) -> tuple[JobState, bool, str, int]:
        """State, freshness, worker and epoch of its record once everything is in order."""
        return JobState.RUNNING, False, self.process.name, self.start.epoch


class SimulatedHost:
    """One process that runs jobs."""

    def __init__(self, hosts: JobHosts, process: Process, number: int) -> None:
        self.hosts, self.process, self.number = hosts, process, number
        self._world, self._witness = process.world, hosts.jobs.witness
        self.alive = True
        self.frozen_until = self.hung_until = 0.0
        self._runs: dict[int, HostedJob] = {}
        self._orders: deque[Message] = deque()
        self._alarm = 0

    @property
    def stands_still_until(self) -> float:
        """Until when the whole process stands still."""
        return max(self.frozen_until, self.process.frozen_until)

    def send(self, message: Message) -> None:
        """Send it an order; orders arrive in their order."""
        self._orders.append(message)
        self._in_loop(self.process.rng.uniform(0, 0.01), lambda: self._obey(self._orders.popleft()))

    def die(self) -> None:
        """End now, with all that runs."""
        if not self.alive:
            return
        self._world.note(self.process.origin, "job host %s is dead", self.number)
        self.alive = False
        for run in list(self._runs.values()):
            self._over(run)
        self.hosts.answer(partial(self.hosts.exited, self))

    def thaw(self) -> None:
        """Go on after a pause: first of all it looks at its lease."""
        if not self.alive or self._world.now < self.stands_still_until:
            return
        self.look_at_the_lease()
        for run in list(self._runs.values()):
            self._witness.thaws(run)

    def look_at_the_lease(self) -> None:
        """Die if something that runs relies on a membership that is not trusted; else look again when trust may end."""
        self._alarm += 1
        if not (self.alive and self._runs):
            return
        world, process = self._world, self.process
        if world.now < self.stands_still_until:
            world.at(self.stands_still_until, partial(self._look_again, self._alarm))
        elif not all(self.hosts.trusted(run.start.membership) for run in self._runs.values()):
            self.die()
        else:
            world.after(max(0.0, process.trust_ends_in()) + LOOK, partial(self._look_again, self._alarm))

    def _look_again(self, alarm: int) -> None:
        if alarm == self._alarm:
            self.look_at_the_lease()

    # -- its loop ------------------------------------------------------------------------------

    def _in_loop(self, delay: float, do: Callable[[], None]) -> None:
        self._world.after(delay, partial(self._turned, do))

    def _turned(self, do: Callable[[], None]) -> None:
        if not self.alive:
            return
        until = max(self.stands_still_until, self.hung_until)
        if self._world.now < until:
            self._world.at(until, partial(self._turned, do))
        else:
            do()

    def _obey(self, message: Message) -> None:
        match message:
            case Start():
                self._start(message)
            case Stop(ref) if run := self._runs.get(ref):
                run.stopping = True
                if run.started or run.life is not Life.HANGS_AT_START:
                    self._in_loop(run.seconds if run.started else 0.0, partial(self._stop, run))
            case Notify(ref, note) if run := self._runs.get(ref):
                self._in_loop(0.0, partial(self._take, run, note))

    def _start(self, start: Start) -> None:
        if not self._may_start(start):
            self.die()
            return
        job = self._witness.dispatched[start.id]
        life = job.call.lives[job.runs] if job.runs < len(job.call.lives) else Life.LIVES
        run = HostedJob(self, start, life, job.call.seconds)
        self._world.note(self.process.origin, "runs %s, which %s", run, life)
        self._witness.begins(run)
        self._runs[start.ref] = run
        self.look_at_the_lease()
        if life is not Life.HANGS_AT_START:
            self._in_loop(run.seconds, partial(self._started, run))

    def _may_start(self, start: Start) -> bool:
        """Whether the membership that the run will rely on is trusted; the keeper asks the same, a moment before."""
        return self.hosts.trusted(start.membership)

    def _started(self, run: HostedJob) -> None:
        match run.life:
            case _ if run.over or run.stopping:
                return
            case Life.NO_START:
                self._end(run, Failed(run.start.ref, "no"), failed=True)
            case Life.KILLS_AT_START:
                self.die()
            case _:
                run.started = self._witness.dispatched[run.start.id].started = True
                self._say(Started(run.start.ref))
                self._in_loop(LIFE * run.seconds, partial(self._lived, run))

    def _lived(self, run: HostedJob) -> None:
        match run.life:
            case _ if run.over or run.stopping:
                return
            case Life.ENDS:
                self._witness.dispatched[run.start.id].ended = True
                self._end(run, Ended(run.start.ref))
            case Life.FAILS:
                self._end(run, Ended(run.start.ref, "fails"), failed=True)
            case Life.KILLS:
                self.die()

    def _stop(self, run: HostedJob) -> None:
        if not run.over and run.life is not Life.HANGS_AT_STOP:
            self._end(run, Ended(run.start.ref))

    def _take(self, run: HostedJob, note: str) -> None:
        if run.started and not (run.stopping or run.over):
            self._world.note(self.process.origin, "%s takes note %s", run, note)
            self._witness.takes(run, note)
            self._say(Noted(run.start.ref, note))

    def _end(self, run: HostedJob, answer: Ended | Failed, *, failed: bool = False) -> None:
        self._witness.dispatched[run.start.id].failed |= failed
        self._over(run)
        self._say(answer)

    def _over(self, run: HostedJob) -> None:
        run.over = True
        del self._runs[run.start.ref]
        self._world.note(self.process.origin, "%s is over", run)
        self._witness.ends(run)

    def _say(self, message: Message) -> None:
        self.hosts.answer(lambda: self.hosts.keeper.heard(message))


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
