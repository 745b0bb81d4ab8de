"""A job host: it runs jobs as their lives say, until it is killed or kills itself. It plays `jobs.host`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from celery_sticky.jobs.wire import Ended, Failed, Message, Noted, Notify, Start, Started, Stop
from celery_sticky.keys import Slot
from celery_sticky.stores.jobs import JobState
from simulator.jobs_scenario import Life

if TYPE_CHECKING:
    from simulator.job_hosts import JobHosts
    from simulator.process import Process

LOOK = 0.01
"""Seconds after the end of trust by which a host has ended itself."""
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
                self._killed()
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
                self._killed()

    def _killed(self) -> None:
        self._witness.killed_at = self._world.now
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
