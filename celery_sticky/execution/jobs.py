"""The jobs' side of a worker: a keeper for each keyspace that has jobs, and the one job host."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from celery_sticky.execution.job_host import app_name, host_command
from celery_sticky.execution.part import Part
from celery_sticky.jobs.held import Terms
from celery_sticky.jobs.hosting import REMEDY, Supervisor
from celery_sticky.jobs.keeper import Keeper
from celery_sticky.jobs.process import HostProcess
from celery_sticky.jobs.roster import Roster
from celery_sticky.jobs.slots import SharedSlots
from celery_sticky.jobs.suspects import Suspects
from celery_sticky.membership.member import Slots
from celery_sticky.ownership.events import Event, HostDown
from celery_sticky.stores import open_job_store

logger = logging.getLogger("celery_sticky.jobs")

LOADING = 10.0
"""Seconds a worker waits at most for its job host to load the app, before it goes on to start without it."""
GRACE = 2.0
"""Seconds a worker waits longer at its end than jobs may take to stop."""


class WorkerJobs:
    """Keepers and job host of a worker, as its steps see them."""

    def __init__(self, part: Part, keepers: Mapping[str, Keeper], supervisor: Supervisor) -> None:
        self._part, self._keepers, self._supervisor = part, keepers, supervisor
        self._slots = {
            name: SharedSlots(part.courier, keeper, part.lease, partial(_post, part, name))
            for name, keeper in keepers.items()
        }

    @property
    def patience(self) -> float:
        """Seconds the jobs may take to stop."""
        return self._part.settings.job_stop_timeout + GRACE

    def slots(self, keyspace: str) -> Slots:
        """Return whom the member of a keyspace tells what to do with its slots."""
        return self._slots.get(keyspace) or self._part.courier

    def report(self, keyspace: str, event: Event) -> None:
        """Pass on what the courier says of a keyspace."""
        shared = self._slots.get(keyspace)
        if shared is not None:
            shared.report(event)
        else:
            _post(self._part, keyspace, event)

    def start(self) -> None:
        """Start the host and the keepers' threads; return when jobs can be started, or that may take longer.

        The members of keyspaces with jobs join when there is a host: what they own would stand still until then.
        """
        for keyspace in self._keepers:
            _post(self._part, keyspace, HostDown())
        self._supervisor.start(tuple(self._keepers.values()))
        for keeper in self._keepers.values():
            keeper.start()
        if not self._supervisor.await_host(LOADING):
            logger.error("jobs: the job host has not loaded the app within %g s. %s", LOADING, REMEDY)

    def finish(self, timeout: float) -> None:
        """End the threads and the host: what runs still is killed."""
        deadline = time.monotonic() + timeout
        for keeper in self._keepers.values():
            keeper.finish(max(0.1, deadline - time.monotonic()))
        self._supervisor.finish(max(0.1, deadline - time.monotonic()))

    def describe(self) -> dict[str, Any]:
        """Return what `inspect sticky_jobs` shows, by keyspace."""
        return {name: keeper.describe() for name, keeper in self._keepers.items()}


def make_jobs(worker: Any, part: Part) -> WorkerJobs | None:
    """Make what runs jobs in this worker, or nothing where the app declares none for its keyspaces.

    Raises:
        InvalidJob: a schedule is for a job that is not declared.
        StickyError: the app has no name by which a job host could load it.
    """
    wiring = worker.app.sticky_wiring
    wiring.declared.check()
    keyspaces = [name for name in part.keyspaces if name in wiring.declared.keyspaces]
    if not keyspaces:
        return None
    command = host_command(worker, app_name(worker.app, part.settings.job_app), part.keyspaces)
    suspects = Suspects()
    supervisor = Supervisor(partial(HostProcess, command, part.lease.descriptor), part.lease, suspects)
    refs = itertools.count(1)
    keepers = {name: _make_keeper(part, wiring, supervisor, suspects, refs, name) for name in keyspaces}
    return WorkerJobs(part, keepers, supervisor)


def _make_keeper(
    part: Part, wiring: Any, supervisor: Supervisor, suspects: Suspects, refs: Any, keyspace: str
) -> Keeper:
    settings = part.settings
    terms = Terms(settings.job_start_timeout, settings.job_stop_timeout, settings.max_attempts)
    where, house = wiring.store_at, wiring.declared.house(keyspace, part.keyspaces[keyspace])
    director = part.directors.get(keyspace)
    keeper = Keeper(
        keyspace,
        part.hostname,
        Roster(terms, keyspace=keyspace, suspects=suspects, refs=refs, house=house, directed=director is not None),
        partial(open_job_store, where, keyspace, prefix=settings.key_prefix, socket_timeout=settings.patience),
        supervisor,
        part.lease,
        partial(_post, part, keyspace),
        poll=settings.job_poll,
        outcome_ttl=settings.job_outcome_ttl,
        director=director.jobs if director is not None else None,
    )
    if director is not None:
        director.jobs.keeper = keeper
    return keeper


def _post(part: Part, keyspace: str, event: Event) -> None:
    part.members[keyspace].post(event)
