"""One run: start workers, send tasks, inject faults, drain, and collect the history for the checker."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from celery_sticky.cli.verify.cluster import Cluster, RunOptions, can_proxy, now
from celery_sticky.cli.verify.faketime import libfaketime, why_not
from celery_sticky.cli.verify.job_workload import JobWorkload
from celery_sticky.cli.verify.moves import Moves
from celery_sticky.cli.verify.nemesis import Nemesis
from celery_sticky.cli.verify.observer import Observer
from celery_sticky.cli.verify.pins import calm_file
from celery_sticky.cli.verify.plan import CASCADE, FaultPlan, make_plan
from celery_sticky.cli.verify.senders import Senders
from celery_sticky.cli.verify.site import Mode
from celery_sticky.cli.verify.supervisor import Supervisor
from celery_sticky.cli.verify.timeline import Done, Frozen, Timeline
from celery_sticky.cli.verify.witness import Witness
from celery_sticky.errors import StickyError
from celery_sticky.testing.history import Event
from celery_sticky.testing.slot_log import SlotEvent

Tell = Callable[[float, str], None]
"""Function of the seconds since the load began and a text."""

STARTING = 60.0
"""Seconds the workers may take until they share the slots."""
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
BEATS = 3
"""Heartbeats in a lease."""
STARTING_JOBS = 1.0
"""Seconds from the end of a takeover until its jobs run."""
LONGER = 1.6
"""Maximum duration of the faults relative to the planned duration of the run. Later faults are skipped."""


@dataclass(frozen=True, slots=True)
class VerifyRun:
    """The recorded history and results of a run, for the checker."""

    run_options: RunOptions
    plan: FaultPlan
    timeline: Timeline
    events: list[Event]
    job_events: list[Event]
    slot_events: list[SlotEvent]
    deaths: dict[int, int]
    buried: dict[str, str]
    stuck: Collection[str]
    """Ids of tasks that did not finish in time and still have a message at the broker."""
    slots: int
    eviction_timeout: float
    jobs_seen: int
    """Time of the last check that all jobs run. Jobs may end after it."""
    moves: Moves | None = None
    """The changes of placement; None if the run does not use a placed keyspace."""
    untold: Sequence[Event] = ()
    """Pins that workers wrongly believe to hold at the end."""
    unburied: Sequence[str] = ()
    """Malformed messages that are not buried at the end."""

    @property
    def job_limit(self) -> float:
        """Longest time in seconds that a job may not be running, whatever happens to its worker."""
        return limit_of(self.eviction_timeout, self.run_options.ttl)


def limit_of(eviction_timeout: float, ttl: float) -> float:
    """Return the longest allowed gap of a job: a takeover, one heartbeat to notice it, and the start of the job."""
    return eviction_timeout + ttl / BEATS + STARTING_JOBS


def names_of(workers: int) -> tuple[str, ...]:
    """Return the names of the initial workers."""
    return tuple(f"w{number}" for number in range(1, workers + 1))


OF_BROKER = ("broker-restart", "broker-freeze", "broker-rollback", "broker-full", "wrong-type")
"""Faults that need a broker started by verify."""
ONE_ADDRESS = {"partition", *OF_BROKER}
"""Faults that need a broker with a fixed address. With Sentinel the address changes."""


def impossible(run_options: RunOptions) -> dict[str, str]:
    """Return the faults that are impossible with these options, with the reason."""
    found = {}
    if run_options.broker is not None:
        for fault in (*OF_BROKER, "failover"):
            found[fault] = "it needs a broker that verify started itself"
        if run_options.store is None:
            found["store-rollback"] = "it needs a store that verify started itself"
    if run_options.store is not None:
        found["store-rollback"] = "it needs a store that verify started itself"
    if others := ONE_ADDRESS & set(run_options.faults):
        found.setdefault("failover", f"{', '.join(sorted(others))} need a broker with a fixed address: leave them out")
    if run_options.mode is not Mode.STICKY:
        found["store-rollback"] = "plain Celery has no store"
        found["wrong-type"] = "plain Celery has no slot records"
        found["backend-away"] = found["malformed"] = "plain Celery runs here without results and without a dead queue"
    if not all(can_proxy(url) for url in (run_options.broker, run_options.store) if url is not None):
        found["partition"] = "its proxy works only for servers at a redis:// address"
    if run_options.workers < CASCADE:
        found["cascade"] = f"it kills two of at least {CASCADE} workers"
    if run_options.pool != "prefork":
        found["child-kill"] = f"workers of the pool {run_options.pool} have no child processes"
    if (reason := why_not()) is not None:
        found["clock"] = reason
    return found


def plan_of(run_options: RunOptions) -> FaultPlan:
    """Return the plan of faults for a run with these options."""
    return make_plan(
        run_options.faults,
        impossible=impossible(run_options),
        workers=names_of(run_options.workers),
        seconds=run_options.seconds,
        eviction_timeout=run_options.ttl * 1.27,
        seed=run_options.seed,
    )


def perform(run_options: RunOptions, tell: Tell) -> VerifyRun:
    """Do one run and leave nothing behind.

    Raises:
        StickyError: the run could not be completed.
    """
    plan = plan_of(run_options)
    proxied = frozenset(name for step in plan.steps if step.fault == "partition" for name in step.workers)
    clock = libfaketime() if any(step.fault == "clock" for step in plan.steps) else None
    fails_over = any(step.fault == "failover" for step in plan.steps)
    with Cluster(run_options, proxied=proxied, clock=clock, fails_over=fails_over) as cluster:
        observer = Observer(cluster.site)
        # A store that is rolled back forgets dispatches and stops, so the recorded job workload would be wrong.
        job_workload = JobWorkload(
            cluster.site, seed=run_options.seed, renew="store-rollback" not in run_options.faults
        )
        try:
            return _Run(cluster, observer, job_workload, plan, tell).play()
        finally:
            job_workload.close()
            observer.close()


class _Run:
    """The course of one run."""

    def __init__(
        self, cluster: Cluster, observer: Observer, job_workload: JobWorkload, plan: FaultPlan, tell: Tell
    ) -> None:
        self._cluster, self._observer, self._job_workload, self._plan, self._tell = (
            cluster,
            observer,
            job_workload,
            plan,
            tell,
        )
        self._run_options = cluster.run_options
        self._witness: Witness | None = None
        self._frozen: list[Frozen] = []
        self._done: list[Done] = []
        self._began = now()

    def play(self) -> VerifyRun:
        self._start()
        supervisor = Supervisor(self._cluster)
        try:
            skipped = self._load()
            stuck = self._drain()
            self._job_workload.await_running(
                self._observer.right, limit_of(self._cluster.site.eviction_timeout, self._run_options.ttl)
            )
            seen = now()
            untold = self._untold()
        finally:
            supervisor.close()
            if self._witness is not None:
                self._witness.close()
        buried, unburied = self._observer.buried(), self._unburied()
        self._stop()
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
        )

    def _start(self) -> None:
        self._observer.initialise()
        self._witness = self._observer.witness()
        for name in names_of(self._run_options.workers):
            self._cluster.start(name)
        until = time.monotonic() + STARTING
        while not self._ready():
            for worker in self._cluster.workers.values():
                if not worker.alive:
                    raise StickyError(f"worker {worker.name} did not start; the end of its log:\n{worker.tail(15)}")
            if time.monotonic() > until:
                raise StickyError(f"the workers were not ready within {STARTING:.0f} s")
            time.sleep(0.1)
        self._job_workload.want_all()
        if not self._job_workload.await_running(self._observer.right, STARTING):
            raise StickyError(f"the jobs did not run within {STARTING:.0f} s")

    def _ready(self) -> bool:
        if self._run_options.mode is Mode.STICKY:
            return self._observer.settled(self._cluster.workers) is not None
        return all("ready." in worker.log for worker in self._cluster.workers.values())

    @property
    def _elapsed(self) -> float:
        return (now() - self._began) / 1e9

    def _wait(self, until: float) -> None:
        time.sleep(max(0.0, until - self._elapsed))

    def _load(self) -> list[str]:
        """Run the senders and inject the faults; return the steps that were skipped for lack of time."""
        self._began = now()
        with Senders(self._cluster, self._plan.kinds) as senders, self._job_workload:
            faults = Nemesis(self._cluster, self._observer, senders.order)
            faults.keep_copy()
            skipped = self._steps(faults)
            self._wait(self._run_options.seconds)
            if not senders.alive:
                raise StickyError("a sender has ended by itself")
            senders.end()
        calm_file(self._cluster.site).touch()
        self._frozen = faults.frozen
        return skipped

    def _steps(self, faults: Nemesis) -> list[str]:
        skipped: list[str] = []
        for step in self._plan.steps:
            if self._elapsed > LONGER * self._run_options.seconds:
                skipped.append(str(step))
                continue
            self._wait(step.at)
            self._tell(self._elapsed, str(step))
            done = faults.do(step)
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
            time.sleep(0.3)
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
        if (
            not self._cluster.site.pinned or "store-rollback" in self._run_options.faults
        ):  # a rollback forgets pins silently
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

    def _stop(self) -> None:
        workers = list(self._cluster.workers.values())
        for worker in workers:
            if worker.alive:
                worker.kill(signal.SIGTERM)
        until = time.monotonic() + STOPPING
        for worker in workers:
            if not worker.wait_ended(max(0.0, until - time.monotonic())):
                worker.kill_all()
