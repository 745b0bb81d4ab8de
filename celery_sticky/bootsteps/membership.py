"""Worker step: takes part in keyspaces. It creates what the other steps share, and starts membership and heartbeats.

It is created before the pool forks, so that the children share the lease; the threads start after the pool.
"""

from __future__ import annotations

import logging
from typing import Any

import click
from celery import bootsteps, signals

from celery_sticky.errors import StickyError
from celery_sticky.execution.assembly import make_context
from celery_sticky.execution.context import WorkerContext
from celery_sticky.execution.forced import force
from celery_sticky.execution.interrupts import Interrupts
from celery_sticky.execution.server_warnings import warn_of_servers
from celery_sticky.ownership.events import BrokerDown
from celery_sticky.platform.native import share_with_threads
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


class Membership(bootsteps.StartStopStep):
    """Takes part in the keyspaces of this worker."""

    # Threads start after all forks: a child would inherit any lock that a thread held at that moment.
    requires = (
        "celery.worker.components:Pool",
        "celery.worker.components:Beat",
        "celery_sticky.bootsteps.control:Control",
    )

    def __init__(self, worker: Any, sticky_keyspaces: Any = None, without_sticky: bool = False, **kwargs: Any) -> None:
        worker.sticky = None
        self.enabled = not without_sticky
        super().__init__(worker, **kwargs)
        if self.enabled:
            worker.sticky = self._context = _make_context(worker, sticky_keyspaces)
            force(worker.app.tasks, self._context.tasks.all())
            self._guard(worker.app.tasks)

    def _guard(self, tasks: Any) -> None:
        watch = self._context.trust_watch
        if isinstance(watch, Interrupts):
            for name, task in tasks.items():
                if not name.startswith("celery."):  # a message may bring its own key to a task without one
                    watch.guard(task)

    def create(self, worker: Any) -> Membership:
        """Return the service that is started and stopped: this step."""
        return self

    def start(self, worker: Any) -> None:
        """Join every keyspace under the worker's name, and begin to send heartbeats."""
        if not self.enabled:
            return
        signals.worker_shutting_down.connect(self._leave, weak=False)
        self._leave_before_cold_shutdown(worker)
        of_slots, of_jobs = (slots_gained, slots_lost), (job_started, job_stopped, job_failed)
        share_with_threads(*of_slots, *of_jobs, pins_lost, pins_forgotten)  # logging is set up by now
        self._context.trust_watch.start()
        warn_of_servers(self._context.servers, self._context.settings.io_timeout)
        if self._context.loop_watch is not None:
            self._context.loop_watch.start()
        names = ", ".join(f"{name} ({slots} slots)" for name, slots in self._context.keyspaces.items())
        logger.info("sticky: keyspaces %s; ownership is kept at %s", names, self._context.store_url)
        if self._context.jobs is not None:
            self._context.jobs.start()
        for placer in self._context.placers.values():
            placer.start()
        for member in self._context.members.values():
            member.post(BrokerDown())  # until `Delivery` starts: owned slots would be idle until then
            member.start()

    def _leave_before_cold_shutdown(self, worker: Any) -> None:
        # Celery sends its signal only after the soft shutdown and after waiting for the tasks it cancelled.
        wait = worker.wait_for_soft_shutdown

        def leave_and_wait() -> None:
            self._leave()
            wait()

        worker.wait_for_soft_shutdown = leave_and_wait

    def _leave(self, **_: Any) -> None:
        if self._context.loop_watch is not None:
            self._context.loop_watch.stop()
        for member in self._context.members.values():
            member.leave()

    def close(self, worker: Any) -> None:
        """Begin to give the slots away, because the worker begins to shut down."""
        if self.enabled:
            self._leave()
            signals.worker_shutting_down.disconnect(self._leave)

    def stop(self, worker: Any) -> None:
        """Do nothing: tasks may still run. The step `Handover` ends everything when the pool has drained."""

    terminate = stop

    def info(self, worker: Any) -> dict[str, Any]:
        """Return the output of `inspect stats`."""
        return {"sticky": self._context.describe()} if self.enabled else {}


def _make_context(worker: Any, chosen: Any) -> WorkerContext:
    try:
        return make_context(worker, chosen)
    except StickyError as error:
        if click.get_current_context(silent=True) is None:
            raise  # a program started the worker, not a command
        raise click.ClickException(str(error)) from error  # one line, like other errors of the command line
