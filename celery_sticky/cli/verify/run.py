"""One run: start workers, send tasks, inject faults, drain, and collect the history for the checker."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from celery_sticky.cli.verify.bad_workload import BadWorkload
from celery_sticky.cli.verify.cast import names_of
from celery_sticky.cli.verify.cluster import Cluster
from celery_sticky.cli.verify.faketime import libfaketime
from celery_sticky.cli.verify.faults import FAULTS
from celery_sticky.cli.verify.faults.base import Fault
from celery_sticky.cli.verify.faults.broker import Failover
from celery_sticky.cli.verify.faults.cut_off import Clock, Partition
from celery_sticky.cli.verify.faults.stores import BackendAway
from celery_sticky.cli.verify.job_workload import JobWorkload
from celery_sticky.cli.verify.nemesis import Nemesis
from celery_sticky.cli.verify.notes import NoteWorkload
from celery_sticky.cli.verify.observer import Observer
from celery_sticky.cli.verify.options import RunOptions
from celery_sticky.cli.verify.outcome import VerifyRun
from celery_sticky.cli.verify.pins import calm_file
from celery_sticky.cli.verify.plan import FaultPlan, make_plan
from celery_sticky.cli.verify.senders import Senders
from celery_sticky.cli.verify.servers import Role
from celery_sticky.cli.verify.site import Mode
from celery_sticky.cli.verify.supervisor import Supervisor
from celery_sticky.cli.verify.timeline import Done, Frozen, Timeline
from celery_sticky.cli.verify.witness import Witness
from celery_sticky.errors import StickyError
from celery_sticky.testing.history import Event
from celery_sticky.testing.servers.base import Ability

Tell = Callable[[float, str], None]
"""Function of the seconds since the load began and a text."""

STARTING = 60.0
"""Seconds the workers may take until they share the slots, and the jobs until they run, before the load and after it.
Jobs that are late are found by their gaps."""
STANDSTILL = 70.0
"""Seconds without any finished task after which the remaining tasks count as stuck. Slow tasks may have to run
again."""
DRAINING = 300.0
"""Seconds after the last send after which the remaining tasks count as stuck in any case."""
DRAINING_STOCK = 25.0
"""The same for plain Celery. It is longer than its visibility timeout."""
STOPPING = 20.0
TELLING = 15.0
"""Seconds within which a worker is told that it has lost a pin. It checks every 5 s."""
LONGER, LEAST_LONGER = 1.6, 60.0
"""Maximum duration of the faults: relative to the planned duration of the run, and at least so many seconds more than
it, so that a short run on a busy machine has all of its faults. Later ones are skipped."""


def impossible(run_options: RunOptions) -> dict[type[Fault], str]:
    """Return the faults that are impossible with these options, with the reason.

    Raises:
        InvalidSettings: a given server is of an unknown kind.
    """
    reasons = {fault: fault.impossible(run_options) for fault in FAULTS}
    return {fault: reason for fault, reason in reasons.items() if reason is not None}


def plan_of(run_options: RunOptions) -> FaultPlan:
    """Return the plan of faults for a run with these options."""
    return make_plan(
        run_options.faults,
        impossible=impossible(run_options),
        workers=names_of(run_options.workers),
        seconds=run_options.seconds,
        eviction_timeout=run_options.eviction_timeout,
        seed=run_options.seed,
        jobs=run_options.mode is Mode.STICKY and run_options.jobs > 0,
    )


def perform(run_options: RunOptions, tell: Tell) -> VerifyRun:
    """Do one run and leave nothing behind.

    Raises:
        StickyError: the run could not be completed.
    """
    plan = plan_of(run_options)
    with _cluster(run_options, plan) as cluster:
        observer = Observer(cluster.site, cluster.servers.broker)
        workloads = Workloads(
            JobWorkload(cluster.site, seed=run_options.seed, renew=store_is_spared(run_options)),
            BadWorkload(cluster.site, seed=run_options.seed, seconds=run_options.seconds),
            NoteWorkload(cluster.site, seed=run_options.seed),
        )
        try:
            return _Run(cluster, observer, workloads, plan, tell).play()
        finally:
            workloads.close()
            observer.close()


def store_is_spared(run_options: RunOptions) -> bool:
    """Return whether no fault hits the store, so that each dispatch and stop of a job has a known outcome.

    A store that is rolled back forgets some, and one that does not answer may have done them.
    """
    roles = {Role.STORE, Role.BROKER} if run_options.own_is_both else {Role.STORE}
    needs = (need for fault in run_options.faults for need in fault.needs)
    return not any(role in roles and ability is not Ability.PROXY for role, ability in needs)


def _cluster(run_options: RunOptions, plan: FaultPlan) -> Cluster:
    """Return a cluster with what the planned faults act on."""
    kinds = {type(fault) for fault in plan.steps}
    return Cluster(
        run_options,
        proxied={name for fault in plan.steps if isinstance(fault, Partition) for name in fault.workers},
        clock=libfaketime() if Clock in kinds else None,
        fails_over=Failover in kinds,
        results=BackendAway in kinds,
    )


@dataclass(frozen=True, slots=True)
class Workloads:
    """What keeps jobs busy in a run."""

    jobs: JobWorkload
    bad: BadWorkload
    notes: NoteWorkload

    def close(self) -> None:
        """Close the connections."""
        self.jobs.close()
        self.bad.close()
        self.notes.close()


class _Run:
    """The course of one run."""

    def __init__(self, cluster: Cluster, observer: Observer, workloads: Workloads, plan: FaultPlan, tell: Tell) -> None:
        self._cluster, self._observer, self._workloads = cluster, observer, workloads
        self._plan, self._tell, self._run_options = plan, tell, cluster.run_options
        self._witness: Witness | None = None
        self._frozen: list[Frozen] = []
        self._done: list[Done] = []
        self._began = time.monotonic_ns()

    def play(self) -> VerifyRun:
        self._start()
        supervisor = Supervisor(self._cluster)
        try:
            skipped = self._load()
            stuck = self._drain()
            bad_jobs, bad_left = self._workloads.bad.finish()
            seen = self._jobs_run() or time.monotonic_ns()
            note_events = self._workloads.notes.settled()
            untold = self._untold()
        finally:
            supervisor.close()
            if self._witness is not None:
                self._witness.close()
        buried, unburied = self._observer.buried(), self._unburied()
        self._cluster.stop_workers(STOPPING)
        crashes = tuple(supervisor.crashes)
        return VerifyRun(
            self._run_options,
            self._plan,
            Timeline(self._began, self._done, self._frozen, supervisor.restarts, skipped, crashes),
            self._observer.events(),
            self._observer.job_events(),
            self._observer.slot_events(),
            self._cluster.deaths,
            buried,
            stuck,
            self._cluster.site.slots,
            self._cluster.site.eviction_timeout,
            seen,
            self._witness.moves if self._witness is not None else None,
            untold,
            unburied,
            bad_jobs,
            bad_left,
            note_events,
        )

    def _start(self) -> None:
        self._observer.initialise()
        self._witness = self._observer.witness()
        for name in names_of(self._run_options.workers):
            self._cluster.start(name)
        until = time.monotonic() + STARTING
        while not self._ready():
            self._cluster.check()
            if time.monotonic() > until:
                raise StickyError(f"the workers were not ready within {STARTING:.0f} s")
            time.sleep(0.1)  # poll
        self._workloads.jobs.want_all()
        if self._jobs_run() is None:
            raise StickyError(f"the jobs did not run within {STARTING:.0f} s")

    def _jobs_run(self) -> int | None:
        return self._workloads.jobs.await_running(self._observer.right, self._observer.all_ran_at, STARTING)

    def _ready(self) -> bool:
        if self._run_options.mode is Mode.STICKY:
            return self._observer.settled(self._cluster.workers) is not None
        return all("ready." in worker.log for worker in self._cluster.workers.values())

    @property
    def _elapsed(self) -> float:
        return (time.monotonic_ns() - self._began) / 1e9

    def _wait(self, until: float) -> None:
        time.sleep(max(0.0, until - self._elapsed))

    def _load(self) -> list[str]:
        """Run the senders and inject the faults; return the steps that were skipped for lack of time."""
        self._began = time.monotonic_ns()
        workloads = self._workloads
        with Senders(self._cluster, self._plan.kinds) as senders, workloads.jobs, workloads.bad, workloads.notes:
            nemesis = Nemesis(self._cluster, self._observer, senders.order)
            nemesis.prepare(self._plan.steps)
            skipped = self._steps(nemesis)
            self._wait(self._run_options.seconds)
            if not senders.alive:
                raise StickyError("a sender has ended by itself")
            senders.end()
        calm_file(self._cluster.site).touch()
        self._frozen = nemesis.frozen
        return skipped

    def _steps(self, nemesis: Nemesis) -> list[str]:
        skipped: list[str] = []
        seconds = self._run_options.seconds
        for step in self._plan.steps:
            if self._elapsed > max(LONGER * seconds, seconds + LEAST_LONGER):
                skipped.append(str(step))
                continue
            self._wait(step.at)
            self._tell(self._elapsed, str(step))
            done = nemesis.do(step)
            self._done.append(done)
            if done.note:
                self._tell(self._elapsed, f"  {done.note}")
        return skipped

    def _drain(self) -> set[str]:
        left = self._left()
        self._tell(self._elapsed, f"all tasks are sent; {len(left)} are unfinished")
        sent = moved = time.monotonic()
        limit = DRAINING if self._run_options.mode is Mode.STICKY else DRAINING_STOCK
        while left and time.monotonic() < min(sent + limit, moved + STANDSTILL):
            time.sleep(0.3)  # poll
            before, left = len(left), self._left()
            moved = time.monotonic() if len(left) < before else moved
        spent = time.monotonic() - sent
        self._tell(self._elapsed, "all tasks are done" if not left else f"{len(left)} unfinished after {spent:.0f} s")
        return self._observer.waiting(event.task_id for event in left) if left else set()

    def _left(self) -> list[Event]:
        """Return the unfinished tasks, without those whose messages the broker has lost."""
        left = self._observer.unfinished()
        forgotten = [event for event in left if any(done.forgot(event) for done in self._done)]
        if not forgotten:
            return left
        there = self._observer.waiting(event.task_id for event in forgotten)
        return [event for event in left if event not in forgotten or event.task_id in there]

    def _untold(self) -> list[Event]:
        """Return pins that workers wrongly believe to hold, after the time within which they should be told.

        Raises:
            StickyError: the store did not return the pins.
        """
        if not self._cluster.site.pinned:
            return []
        until = time.monotonic() + TELLING
        while (untold := self._observer.untold(self._cluster.workers.values())) != [] and time.monotonic() < until:
            time.sleep(0.3)  # poll
        if untold is None:
            raise StickyError(f"the store did not return the pins within {TELLING:g} s: check that it is running")
        return untold

    def _unburied(self) -> list[str]:
        """Return the malformed messages that are not buried after workers had the time to read them."""
        until = time.monotonic() + TELLING
        while (unburied := self._observer.unburied()) and time.monotonic() < until:
            time.sleep(0.3)  # poll
        if any(done.forgot_until for done in self._done):
            there = self._observer.waiting(unburied)
            return [tag for tag in unburied if tag in there]
        return unburied
