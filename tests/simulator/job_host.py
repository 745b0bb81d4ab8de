"""A job host: it runs jobs as their lives say, until it is killed or kills itself. It plays `jobs.host`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from celery_sticky.jobs.keeper.host_watch import STEP
from celery_sticky.jobs.wire import (
    Blocked,
    Calls,
    Ended,
    Failed,
    Message,
    Noted,
    Notify,
    Ping,
    Pong,
    Start,
    Started,
    Stop,
    Taken,
    Unhandled,
    Waits,
)
from celery_sticky.jobs.wire import Call as HandlerCall
from celery_sticky.slots import Slot
from celery_sticky.stores.jobs import JobState
from simulator.job_invariants import RECOVERS
from simulator.job_threads import Threads
from simulator.jobs_scenario import NAME, Call, Life, failures
from simulator.terms import JOB_THREADS, KEYSPACE, MAX_DELIVERIES, WATCHDOG

if TYPE_CHECKING:
    from celery_sticky.jobs.keeper.host_flow import HostFlow
    from simulator.process import Process
    from simulator.supervisor import SteppedSupervisor

LOOK = 0.01
"""Seconds after the end of trust by which a host has ended itself."""
LIFE = 3
"""How many times longer than its start a run lasts that ends by itself."""


class HostedJob:
    """A run of a job in a host, from the order to start it until nothing of it is left."""

    def __init__(self, host: SimulatedHost, start: Start, call: Call) -> None:
        self.host, self.process, self.start = host, host.process, start
        self.life, self.seconds = Life.LIVES, call.seconds
        self.threaded = call.number % 2 == 1
        """Whether its handler's calls run in threads; else it is a coroutine."""
        self.key = int(start.key)
        self.slot: Slot = host.supervisor.jobs.slot(self.key)
        self.called_at = 0.0
        self.notes: deque[Notify] = deque()
        self.retries = False
        """Whether notifications wait because the first of them was not handled."""
        self.called = self.started = self.stopping = self.over = False

    def __str__(self) -> str:
        return f"job {self.key}, ref {self.start.ref}, at {self.process.origin}, epoch {self.start.epoch}"

    @property
    def stands_still(self) -> bool:
        """Whether its host is frozen."""
        return self.host.stands_still_until > self.process.world.now

    @property
    def does_nothing(self) -> bool:
        """Whether its host is frozen, or the loop of its host hangs."""
        return self.stands_still or self.host.hung_until > self.process.world.now

    @property
    def as_recorded(self) -> tuple[JobState, bool, str, int]:
        """State, freshness, worker and epoch of its record once everything is in order."""
        return JobState.RUNNING, False, self.process.name, self.start.epoch


class SimulatedHost:
    """One process that runs jobs."""

    def __init__(self, supervisor: SteppedSupervisor, process: Process, number: int, flow: HostFlow) -> None:
        self.supervisor, self.process, self.number, self.flow = supervisor, process, number, flow
        self.executed = frozenset[int]()
        """See `Host.executed`."""
        self._world, self._witness = process.world, supervisor.jobs.witness
        self.pid, self.alive = number, True
        self.frozen_until = self.hung_until = 0.0
        self._culprit = 0
        """The run that blocks the loop; 0: none of them."""
        self._starts, self._stops = Threads(JOB_THREADS), Threads(JOB_THREADS)
        self._runs: dict[int, HostedJob] = {}
        self._orders: deque[Message] = deque()
        self._alarm = 0

    @property
    def stands_still_until(self) -> float:
        """Until when the whole process stands still."""
        return max(self.frozen_until, self.process.frozen_until)

    def send(self, messages: Sequence[Message]) -> None:
        """Send it orders; they arrive in their order."""
        for message in messages:
            self._orders.append(message)
            if isinstance(message, Start):
                self._witness.ordered(message, self.process)
            self._in_loop(self.process.rng.uniform(0, 0.01), lambda: self._obey(self._orders.popleft()))

    def kill(self) -> None:
        """See `HostProcess.kill`."""
        if self.alive:
            self._world.note(self.process.origin, "job host %s is killed", self.number)
            if self._world.now < self.hung_until and (run := self._runs.get(self._culprit)):
                self._witness.dispatched[run.start.id].failed = True  # its worker may have told that it blocks the loop
            self.die()

    def listen(self) -> None:
        """See `HostProcess.listen`: a simulated host says nothing before it has loaded the app."""

    def close(self, timeout: float) -> None:
        """See `HostProcess.close`: only a process in which nothing runs is ended like that."""
        self.die()

    def die(self) -> None:
        """End now, with all that runs."""
        if not self.alive:
            return
        self._world.note(self.process.origin, "job host %s is dead", self.number)
        self.alive = False
        if self._runs:
            self._witness.disturbed(self._world.now + RECOVERS)
        in_threads = {ref for ref, run in self._runs.items() if run.threaded and run.called and not run.started}
        in_loop = {self._culprit} if self._world.now < self.hung_until else set()
        self.executed |= in_threads | in_loop - {0}
        for run in list(self._runs.values()):
            self._over(run)
        self.supervisor.exited(self)

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
        elif not all(self._trusted(run.start) for run in self._runs.values()):
            self.die()
        else:
            world.after(max(0.0, process.trust_ends_in()) + LOOK, partial(self._look_again, self._alarm))

    def _look_again(self, alarm: int) -> None:
        if alarm == self._alarm:
            self.look_at_the_lease()

    def hang(self, until: float) -> None:
        """Let its loop do nothing until then, because of some run; its watchdog says so."""
        self.hung_until = until
        self._culprit = self.process.rng.choice([0, *(ref for ref, run in self._runs.items() if run.called)])
        self._world.after(WATCHDOG / 2, partial(self._report, self._culprit, WATCHDOG / 2))

    def _report(self, culprit: int, seconds: float) -> None:
        if not self.alive or self._world.now >= self.hung_until:
            return
        if self._world.now >= self.stands_still_until:
            key = str(self._runs[culprit].key) if culprit else ""
            blocked = Blocked(culprit, NAME if culprit else "", key, seconds)
            self._say(blocked)
        self._world.after(STEP, partial(self._report, culprit, seconds + STEP))

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
            case Stop(ref) if (run := self._runs.get(ref)) and not run.stopping:
                run.stopping = True
                if not run.called:
                    self._take_back(run)
                elif run.threaded:
                    self._stop_in_thread(run)
                elif run.started or run.life is not Life.HANGS_AT_START:
                    self._in_loop(run.seconds if run.started else 0.0, partial(self._stop, run))
            case Notify(ref) if run := self._runs.get(ref):
                run.notes.append(message)
                self._in_loop(0.0, partial(self._take, run))
            case Ping():
                self._say(Pong())

    def _start(self, start: Start) -> None:
        if not self._may_start(start):
            self.die()
            return
        run = HostedJob(self, start, self._witness.dispatched[start.id].call)
        self._runs[start.ref] = run
        if not run.threaded or self._starts.enter(run):
            self._in_loop(0.0, partial(self._begin, run))
        else:
            self._say(Waits(start.ref, HandlerCall.START))
        self._world.after(0.0, self.look_at_the_lease)

    def _begin(self, run: HostedJob) -> None:
        """The handler is called, unless a stop came just before."""
        if run.over:
            return
        job = self._witness.dispatched[run.start.id]
        run.life = job.call.lives[job.runs] if job.runs < len(job.call.lives) else Life.LIVES
        self._say(Calls(run.start.ref, HandlerCall.START))
        run.called, run.called_at = True, self._world.now
        self._world.note(self.process.origin, "runs %s, which %s", run, run.life)
        self._witness.begins(run)
        if run.life is not Life.HANGS_AT_START:
            self._in_loop(run.seconds, partial(self._started, run))

    def _take_back(self, run: HostedJob) -> None:
        waited = self._starts.withdraw(run)
        self._end(run, Ended(run.start.ref))
        if not waited:
            self._leave(run, self._starts)

    def _stop_in_thread(self, run: HostedJob) -> None:
        if not run.started:
            self._say(Waits(run.start.ref, HandlerCall.STOP))
        elif self._stops.enter(run):
            self._in_loop(run.seconds, partial(self._stop, run))
        else:
            self._say(Waits(run.start.ref, HandlerCall.STOP))

    def _leave(self, run: HostedJob, threads: Threads) -> None:
        if not run.threaded or (after := threads.leave()) is None:
            return
        if threads is self._starts:
            self._in_loop(0.0, partial(self._begin, after))
        else:
            self._say(Calls(after.start.ref, HandlerCall.STOP))
            self._in_loop(after.seconds, partial(self._stop, after))

    def _may_start(self, start: Start) -> bool:
        """Whether the membership that the run will rely on is trusted; the keeper asks the same, a moment before."""
        return self._trusted(start)

    def _trusted(self, start: Start) -> bool:
        return self.process.lease.trusted(KEYSPACE, start.membership)

    def _started(self, run: HostedJob) -> None:
        if run.over or (run.stopping and not run.threaded):
            return
        match run.life:
            case Life.NO_START:
                self._end(run, Failed(run.start.ref, "no"), failed=True)
            case Life.KILLS_AT_START:
                self._killed(run)
                return
            case _:
                run.started = self._witness.dispatched[run.start.id].started = True
                self._say(Started(run.start.ref))
                if run.stopping:
                    self._stop_after_start(run)
                self._in_loop(LIFE * run.seconds, partial(self._lived, run))
        self._leave(run, self._starts)

    def _stop_after_start(self, run: HostedJob) -> None:
        if self._stops.enter(run):
            self._say(Calls(run.start.ref, HandlerCall.STOP))
            self._in_loop(run.seconds, partial(self._stop, run))
        else:
            self._say(Waits(run.start.ref, HandlerCall.STOP))

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
                self._killed(run)

    def _killed(self, run: HostedJob) -> None:
        self._witness.killed_at = self._world.now
        if run.key % 2:  # else it is some thread of the job that does it
            self.executed = frozenset((run.start.ref,))
        self.die()

    def _stop(self, run: HostedJob) -> None:
        if not run.over and run.life is not Life.HANGS_AT_STOP:
            self._witness.gives_way(run)
            self._end(run, Ended(run.start.ref))
            self._leave(run, self._stops)

    def _take(self, run: HostedJob) -> None:
        if not run.notes or run.retries or run.stopping or run.over:
            return
        told = run.notes[0]
        self._say(Taken(told.ref, told.note, told.delivery))
        if told.delivery <= failures(told.payload):
            self._fail(run, told)
            return
        self._world.note(self.process.origin, "%s takes note %s", run, told.note)
        self._witness.takes(run, told.note)
        self._say(Noted(told.ref, told.note))
        run.notes.popleft()
        if run.notes:
            self._in_loop(0.0, partial(self._take, run))

    def _fail(self, run: HostedJob, told: Notify) -> None:
        self._world.note(self.process.origin, "%s does not handle note %s", run, told.note)
        self._witness.fails(run, told.note)
        self._say(Unhandled(told.ref, told.note, told.delivery, "no"))
        if not run.threaded:
            self._end(run, Ended(told.ref, "no"), failed=True)
            return
        run.notes.popleft()
        run.retries = told.delivery < MAX_DELIVERIES
        if run.retries:
            run.notes.appendleft(replace(told, delivery=told.delivery + 1))
        self._in_loop(1.0, partial(self._retry, run))

    def _retry(self, run: HostedJob) -> None:
        run.retries = False
        self._take(run)

    def _end(self, run: HostedJob, answer: Ended | Failed, *, failed: bool = False) -> None:
        self._witness.dispatched[run.start.id].failed |= failed
        self._over(run)
        self._say(answer)

    def _over(self, run: HostedJob) -> None:
        run.over = True
        del self._runs[run.start.ref]
        self._world.note(self.process.origin, "%s is over", run)
        if run.called:
            self._witness.ends(run)

    def _say(self, message: Message) -> None:
        self.supervisor.heard(self, message)
