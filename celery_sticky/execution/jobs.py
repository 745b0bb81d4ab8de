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
from celery_sticky.drivers import open_job_store
from celery_sticky.execution.job_host import app_name, host_command
from celery_sticky.jobs.keeper.flow import Surroundings
from celery_sticky.jobs.keeper.held import JobTimeouts
from celery_sticky.jobs.keeper.keeper import Keeper
from celery_sticky.jobs.keeper.process import HostProcess
from celery_sticky.jobs.keeper.reconciler import JobReconciler
from celery_sticky.jobs.keeper.slots import SharedSlots
from celery_sticky.jobs.keeper.supervisor import REMEDY, Supervisor
from celery_sticky.jobs.keeper.suspects import Suspects
from celery_sticky.membership.flow import Slots
from celery_sticky.membership.lease import Lease, boottime
from celery_sticky.ownership.events import Event, HostDown
from celery_sticky.placement.placer import Placer
from celery_sticky.settings import Settings

logger = logging.getLogger("celery_sticky.jobs")

LOADING = 10.0
"""Maximum seconds for which a worker waits for its job host to load the app before it starts without it."""
GRACE = 2.0
"""Seconds a stopping worker waits in addition to the time that jobs may take to stop."""


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


class WorkerJobs:
    """Keepers and job host of a worker, as its boot steps see them."""

    def __init__(self, around: Around, keepers: Mapping[str, Keeper], supervisor: Supervisor) -> None:
        self._around, self._keepers, self._supervisor = around, keepers, supervisor
        self._slots = {
            name: SharedSlots(around.courier, keeper, around.lease.membership, partial(around.post, name))
            for name, keeper in keepers.items()
        }

    @property
    def stop_timeout(self) -> float:
        """Seconds the jobs may take to stop."""
        return self._around.settings.job_stop_timeout + GRACE

    def slots(self, keyspace: str) -> Slots:
        """Return the object that carries out a member's orders on its slots."""
        return self._slots.get(keyspace) or self._around.courier

    def report(self, keyspace: str, event: Event) -> None:
        """Pass on the courier's report on a keyspace."""
        shared = self._slots.get(keyspace)
        if shared is not None:
            shared.report(event)
        else:
            self._around.post(keyspace, event)

    def start(self) -> None:
        """Start the host and the keepers' threads; return when jobs can start, or after `LOADING` seconds.

        The members of keyspaces with jobs join only when there is a host: until then their slots would be idle.
        """
        for keyspace in self._keepers:
            self._around.post(keyspace, HostDown())
        self._supervisor.start(tuple(self._keepers.values()))
        for keeper in self._keepers.values():
            keeper.start()
        if not self._supervisor.await_host(LOADING):
            logger.error("jobs: the job host has not loaded the app within %g s. %s", LOADING, REMEDY)

    def finish(self, timeout: float) -> None:
        """End the threads and the host; runs that are left are killed."""
        deadline = time.monotonic() + timeout
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
    command = host_command(worker, app_name(worker.app, around.settings.job_app), around.keyspaces)
    suspects = Suspects()
    supervisor = Supervisor(partial(HostProcess, command, around.lease.descriptor), around.lease, suspects)
    refs = itertools.count(1)
    keepers = {name: _make_keeper(around, wiring, supervisor, suspects, refs, name) for name in keyspaces}
    return WorkerJobs(around, keepers, supervisor)


def _make_keeper(
    around: Around, wiring: Any, supervisor: Supervisor, suspects: Suspects, refs: Any, keyspace: str
) -> Keeper:
    settings = around.settings
    timeouts = JobTimeouts(settings.job_start_timeout, settings.job_stop_timeout, settings.max_attempts)
    where, built_in = wiring.store_at, wiring.declared.built_in(keyspace, around.keyspaces[keyspace])
    placer = around.placers.get(keyspace)
    here = Surroundings(
        keyspace,
        around.hostname,
        supervisor,
        partial(around.lease.trusted, keyspace),
        partial(around.post, keyspace),
        boottime,
        poll=settings.job_poll,
        outcome_ttl=settings.job_outcome_ttl,
        placer=placer.jobs if placer is not None else None,
    )
    reconciler = JobReconciler(
        timeouts, keyspace=keyspace, suspects=suspects, refs=refs, built_in=built_in, placed=placer is not None
    )
    open_store = partial(
        open_job_store, where, keyspace, prefix=settings.key_prefix, socket_timeout=settings.io_timeout
    )
    keeper = Keeper(here, reconciler, open_store)
    if placer is not None:
        placer.jobs.keeper = keeper
    return keeper
