"""The connection between the members and jobs of a Celery worker and the application."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import fields
from functools import partial
from typing import Any

from celery.worker import state as worker_state

from celery_sticky.errors import RefusedToStart
from celery_sticky.instrumentation.facts import JobFact, JobFailed, JobStarted, JobStopped
from celery_sticky.instrumentation.registry import Instruments
from celery_sticky.signals import (
    job_failed,
    job_started,
    job_stopped,
    pins_forgotten,
    pins_lost,
    slots_gained,
    slots_lost,
)

logger = logging.getLogger("celery_sticky")


def signal_jobs(instruments: Instruments) -> None:
    """Have a signal sent for each start, stop and failure of a job."""
    for kind, signal in ((JobStarted, job_started), (JobStopped, job_stopped), (JobFailed, job_failed)):
        instruments.add(kind, partial(_send, signal))


def _send(signal: Any, fact: JobFact) -> None:
    if signal.receivers:
        named = {field.name: getattr(fact, field.name) for field in fields(fact) if field.name != "worker"}
        signal.send(sender=fact.worker, **named)


class WorkerHooks:
    """See `membership.flow.Hooks`."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._known: set[str] = set()

    @property
    def heeded(self) -> bool:
        """See `Hooks.heeded`."""
        return bool(slots_gained.receivers or slots_lost.receivers)

    def gained(self, keyspace: str, slots: frozenset[int]) -> None:
        """See `Hooks.gained`."""
        slots_gained.send(sender=self._worker.hostname, keyspace=keyspace, slots=slots)

    def lost(self, keyspace: str, slots: frozenset[int]) -> None:
        """See `Hooks.lost`."""
        slots_lost.send(sender=self._worker.hostname, keyspace=keyspace, slots=slots)

    def refused(self, error: RefusedToStart) -> None:
        """See `Hooks.refused`."""
        logger.critical("sticky: this worker stops: %s", error)
        worker_state.should_stop = 1  # Celery's loops check this, and shut down with this exit code

    def fresh_revokes(self) -> Collection[str]:
        """See `Hooks.fresh_revokes`."""
        current = _revoked_here()
        self._known = self._known & current  # ids that Celery has forgotten need not be kept
        return current - self._known

    def revokes_told(self, task_ids: Collection[str]) -> None:
        """See `Hooks.revokes_told`."""
        self._known = self._known | set(task_ids)

    def learn_revokes(self, task_ids: Collection[str]) -> None:
        """See `Hooks.learn_revokes`."""
        for task_id in task_ids:
            worker_state.revoked.add(task_id)
        self.revokes_told(task_ids)


class WorkerPinHooks:
    """See `placement.lost_pins.PinHooks`; for one keyspace."""

    def __init__(self, hostname: str, keyspace: str) -> None:
        self._hostname, self._keyspace = hostname, keyspace

    def pins_lost(self, keys: frozenset[str]) -> None:
        """See `PinHooks.pins_lost`."""
        pins_lost.send(sender=self._hostname, keyspace=self._keyspace, keys=keys)

    def pins_forgotten(self) -> None:
        """See `PinHooks.pins_forgotten`."""
        logger.warning(
            "keyspace %s: the store may have forgotten pins of this worker: it lost its data, or this worker was away "
            "for over a day. Receivers of the signal pins_forgotten should pin their keys again (%d connected)",
            self._keyspace,
            len(pins_forgotten.receivers or ()),
        )
        pins_forgotten.send(sender=self._hostname, keyspace=self._keyspace)


def _revoked_here() -> set[str]:
    # A LimitedSet (celery/utils/collections.py), whose own iterator sorts. The list is copied in one step, because the
    # main thread may add to it.
    return set(list(worker_state.revoked._data))  # noqa: C414
