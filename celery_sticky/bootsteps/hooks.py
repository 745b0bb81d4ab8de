"""What the members of a Celery worker tell the application, and what they learn from it."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from celery.worker import state as worker_state

from celery_sticky.errors import RefusedToStart
from celery_sticky.signals import slots_gained, slots_lost

logger = logging.getLogger("celery_sticky")


class WorkerHooks:
    """See `worker.member.Hooks`."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._known: set[str] = set()

    def gained(self, keyspace: str, slots: frozenset[int]) -> None:
        """See `Hooks.gained`."""
        slots_gained.send(sender=self._worker.hostname, keyspace=keyspace, slots=slots)

    def lost(self, keyspace: str, slots: frozenset[int]) -> None:
        """See `Hooks.lost`."""
        slots_lost.send(sender=self._worker.hostname, keyspace=keyspace, slots=slots)

    def refused(self, error: RefusedToStart) -> None:
        """See `Hooks.refused`."""
        logger.critical("sticky: this worker stops: %s", error)
        worker_state.should_stop = 1  # looked at by Celery's loops, which then shut down with this exit code

    def fresh_revokes(self) -> Collection[str]:
        """See `Hooks.fresh_revokes`."""
        revoked = worker_state.revoked  # a LimitedSet (celery/utils/collections.py), whose own iterator sorts
        if len(revoked) == len(self._known) and len(revoked) < revoked.maxlen:
            return ()
        current = set(list(revoked._data))  # noqa: C414  a list is made in one step, while the main thread may add
        fresh, self._known = current - self._known, current
        return fresh

    def learn_revokes(self, task_ids: Collection[str]) -> None:
        """See `Hooks.learn_revokes`."""
        for task_id in task_ids:
            worker_state.revoked.add(task_id)
        self._known |= set(task_ids)
