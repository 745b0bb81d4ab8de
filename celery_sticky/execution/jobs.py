"""The jobs of a worker: a keeper for each keyspace that has jobs, and the one job host."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from celery_sticky.delivery.courier import Courier
from celery_sticky.execution.job_host import app_name, host_command
from celery_sticky.execution.store_threads import ThreadOf, keeper_threads
from celery_sticky.instrumentation.registry import Instruments
from celery_sticky.jobs.host.threads import KINDS
from celery_sticky.jobs.keeper.ending import Ending
from celery_sticky.jobs.keeper.flow import Surroundings
from celery_sticky.jobs.keeper.held import JobTimeouts, name_of
from celery_sticky.jobs.keeper.home import Home
from celery_sticky.jobs.keeper.host_flow import REMEDY
from celery_sticky.jobs.keeper.keeper import Keeper
from celery_sticky.jobs.keeper.process import HostProcess
from celery_sticky.jobs.keeper.reconciler import JobReconciler
from celery_sticky.jobs.keeper.slots import SharedSlots
from celery_sticky.jobs.keeper.supervisor import Supervisor
from celery_sticky.membership.lease import Lease, boottime
from celery_sticky.ownership.events import Event, HostDown
from celery_sticky.placement.placer import Placer
from celery_sticky.settings import Settings
from celery_sticky.stores.jobs import JobRecord, JobStore

logger = logging.getLogger("celery_sticky.jobs")

LOADING = 10.0
"""Maximum seconds for which a worker waits for its job host to load the app before it starts without it."""


@dataclass(frozen=True, slots=True)
class Around:
    """The parts of a worker that its jobs deal with."""

    hostname: str
    settings: Settings
    keyspaces: Mapping[str, int]
    """Name -> slots."""
    lease: Lease
    courier: Courier
    placers: Mapping[str, Placer]
    post: Callable[[str, Event], None]
    """Tells a keyspace's member an event."""
    instruments: Instruments


class WorkerJobs:
    """Keepers and job host of a worker, as its boot steps see them."""

    def __init__(self, around: Around, keepers: Mapping[str, Keeper], supervisor: Supervisor) -> None:
        self._around, self._keepers, self._supervisor = around, keepers, supervisor
        self._slots = {
            name: SharedSlots(around.courier, keeper, around.lease.membership, partial(around.post, name))
            for name, keeper in keepers.items()
        }

    def slots(self, keyspace: str) -> SharedSlots | None:
        """Return the object that carries out a member's orders on its slots; None: the keyspace has no jobs."""
        return self._slots.get(keyspace)

    def report(self, keyspace: str, event: Event) -> None:
        """Pass on the courier's report on a keyspace."""
        shared = self._slots.get(keyspace)
        if shared is not None:
            shared.report(event)
        else:
            self._around.post(keyspace, event)

    def start(self) -> None:
        """Start the host and the keepers; return when jobs can start, or after `LOADING` seconds.

        The members of keyspaces with jobs join only when there is a host: until then their slots would be idle.
        """
        for keyspace in self._keepers:
            self._around.post(keyspace, HostDown())
        self._supervisor.start(tuple(self._keepers.values()))
        for keeper in self._keepers.values():
            keeper.start()
        if not self._supervisor.await_host(LOADING):
            logger.error("jobs: the job host has not loaded the app within %g s. %s", LOADING, REMEDY)

    def await_stops(self, *, cold: bool) -> None:
        """Wait until nothing runs any more: as long as runs still end; in a cold shutdown, as long as one may take."""
        ending = Ending(self._around.settings.job_stop_timeout, boottime(), cold=cold)
        while ending.goes_on([run for keeper in self._keepers.values() for run in keeper.runs()], boottime()):
            time.sleep(0.02)

    def finish(self, timeout: float) -> None:
        """End the keepers and the host; runs that are left are killed."""
        deadline = time.monotonic() + timeout
        for keeper in self._keepers.values():
            keeper.finish(0.0)  # all at once, because one request without an answer ends the turns of all
        for keeper in self._keepers.values():
            keeper.finish(max(0.1, deadline - time.monotonic()))
        self._supervisor.finish(max(0.1, deadline - time.monotonic()))

    def describe(self) -> dict[str, Any]:
        """Return the output of `inspect sticky_jobs`, by keyspace."""
        return {name: keeper.describe() for name, keeper in self._keepers.items()}


def make_jobs(worker: Any, around: Around) -> WorkerJobs | None:
    """Create the jobs part of this worker, or return None if the app declares none for its keyspaces.

    Raises:
        InvalidJob: a schedule names a job that is not declared.
        StickyError: the app has no name by which a job host could load it.
    """
    wiring = worker.app.sticky_wiring
    wiring.declared.check()
    keyspaces = [name for name in around.keyspaces if name in wiring.declared.keyspaces]
    if not keyspaces:
        return None
    settings = around.settings
    command_of = partial(host_command, worker, app_name(worker.app, settings.job_app), around.keyspaces)
    threads = len(KINDS) * settings.job_threads
    supervisor = Supervisor(
        lambda name, *hear: HostProcess(command_of(name), around.lease.descriptor, threads, *hear),
        around.lease,
        hosts=settings.job_hosts,
        quarantine=settings.job_quarantine,
        watchdog=settings.job_watchdog,
        grace=settings.job_grace,
    )
    refs = itertools.count(1)
    thread_of = keeper_threads(wiring.store_at, settings)
    keepers = {name: _make_keeper(around, wiring, supervisor, refs, thread_of, name) for name in keyspaces}
    return WorkerJobs(around, keepers, supervisor)


def _make_keeper(
    around: Around,
    wiring: Any,
    supervisor: Supervisor,
    refs: Any,
    thread_of: ThreadOf[JobStore],
    keyspace: str,
) -> Keeper:
    settings = around.settings
    timeouts = JobTimeouts(
        settings.job_start_timeout,
        settings.job_stop_timeout,
        settings.max_attempts,
        settings.job_max_deliveries,
        wiring.declared.max_deliveries(keyspace),
        wiring.declared.isolated(keyspace),
    )
    built_in = wiring.declared.built_in(keyspace, around.keyspaces[keyspace])
    placer = around.placers.get(keyspace)
    here = Surroundings(
        keyspace,
        around.hostname,
        supervisor,
        partial(around.lease.trusted, keyspace, seconds=settings.job_stop_before),
        partial(around.post, keyspace),
        boottime,
        poll=settings.job_poll,
        outcome_ttl=settings.job_outcome_ttl,
        placer=placer.jobs if placer is not None else None,
        instruments=around.instruments,
    )
    reconciler = JobReconciler(
        timeouts,
        place=partial(_place, supervisor, keyspace),
        keyspace=keyspace,
        worker=around.hostname,
        retry_of=partial(wiring.declared.retry_of, keyspace),
        refs=refs,
        built_in=built_in,
        placed=placer is not None,
    )
    keeper = Keeper(here, reconciler, thread_of())
    if placer is not None:
        placer.jobs.keeper = keeper
    return keeper


def _place(supervisor: Supervisor, keyspace: str, record: JobRecord, home: Home) -> int:
    return supervisor.place((keyspace, record.id), name_of(record), home)
