"""The connection between the members of a Celery worker and the application."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from celery.worker import state as worker_state

from celery_sticky.errors import RefusedToStart
from celery_sticky.signals import slots_gained, slots_lost

logger = logging.getLogger("celery_sticky")


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


def _revoked_here() -> set[str]:
    # A LimitedSet (celery/utils/collections.py), whose own iterator sorts. The list is copied in one step, because the
    # main thread may add to it.
    return set(list(worker_state.revoked._data))  # noqa: C414
