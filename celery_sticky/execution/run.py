"""One hand-out of a message to Celery: collects what Celery reports, and tells the courier when it has ended."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from typing import Any

from billiard.exceptions import Terminated, WorkerLostError
from celery.worker.state import task_ready
from kombu.message import Message

from celery_sticky.delivery.gate import Entry
from celery_sticky.delivery.state import End, Item
from celery_sticky.errors import StickyError
from celery_sticky.execution.context import WorkerContext
from celery_sticky.execution.outcome import Ending, Said, decide, may_have_run
from celery_sticky.execution.readable import Unreadable
from celery_sticky.membership.deadline import Reliance
from celery_sticky.platform.native import start_native_thread
from celery_sticky.platform.reaper import kill_group
from celery_sticky.queues.base import Outcome

logger = logging.getLogger("celery_sticky")

ACK = End(Outcome.ACK)


class TaskRun:
    """A turn of an entry. Celery may acknowledge at any time; the disposition is passed on when the task has ended."""

    def __init__(self, entry: Entry, reliance: Reliance, context: WorkerContext, ended: Callable[[], None]) -> None:
        self.entry, self.turn, self.reliance = entry, entry.turn, reliance
        self.context = context
        self._courier, self._lease, self._registry = context.courier, context.lease, context.runs
        self._ended = ended
        self.said = Said()
        self.accepting = self.done = self.leaves = False
        self.pid: int | None = None
        self.request: Any = None
        self._next: tuple[float, bytes] = (0.0, b"")

    @property
    def accepted(self) -> bool:
        """Whether the pool has confirmed that the task runs."""
        return self.said.began

    def start(self, request: Any) -> bool:
        """Reserve the start; return False if the slot is lost, or the lease is not trusted now."""
        if self.done or not self._courier.start_entry(self.entry, self.turn):
            self.done = True
            task_ready(request)
            return False
        self.request, self.said.reserved = request, True
        self._registry[id(self)] = self
        return True

    # -- reports of Celery ---------------------------------------------------------------------

    def acknowledge(self, *_: Any) -> None:
        """Record Celery's acknowledgement. One at accept is ignored: a keyed task is settled after it ran."""
        if not self.accepting:
            self.said.acknowledged = True

    def reject(self, _logger: Any, _errors: Any, requeue: bool = False) -> None:
        """Record Celery's rejection: the message gets another turn in its place, or is buried."""
        self.said.rejected, self.said.requeue = True, bool(requeue)

    def defer(self, due: float, body: bytes) -> None:
        """Record a retry: the message of the next try replaces this one, when it is due."""
        self.said.retried, self._next = True, (due, body)

    # -- the end -------------------------------------------------------------------------------

    def let_go(self) -> None:
        """Finish the run; the task has ended in some way. Only the first call counts."""
        if self.done:
            return
        self.done = True
        self._registry.pop(id(self), None)
        try:
            self._pass_on()
        finally:
            if not self.leaves:
                self._ended()

    def fail(self, error: BaseException) -> None:
        """Finish the run after an error of Celery's own code or of the pool, which report nothing more of the task."""
        if not self.done:
            self.said.error = error
            self.let_go()

    def refuse(self, error: StickyError) -> None:
        """Bury a message from which no worker can build a task, and report the error to its caller."""
        self.said.unreadable, self.said.error = True, error
        self.let_go()

    def unstart(self) -> None:
        """Finish the run whose reserved start never took place."""
        self.said.dropped = True
        self.said.acknowledged = self.said.rejected = False
        self.let_go()

    def lose_pool(self) -> None:
        """Finish the run: the pool has ended, and reports nothing more of it."""
        if self._once and self.context.has_processes:
            self.let_go()  # its process may have begun
        else:
            self.unstart()

    @property
    def _once(self) -> bool:
        """Whether the task must not run again if it may have run."""
        return self.entry.run is not None and self.entry.run.once

    def _pass_on(self) -> None:
        entry, courier, error = self.entry, self._courier, self.said.error
        ending = decide(self.said, to_blame=self._is_to_blame, failures=entry.failures)
        if self._once and may_have_run(ending, self.said):
            courier.abandon(entry, self._cause() or "its process died")
            return
        match ending:
            case Ending.ENDED:
                courier.end(entry, ACK)
            case Ending.RETRIED:
                due, body = self._next
                courier.end(entry, End(Outcome.DEFER, due=due, body=body))
            case Ending.REJECTED:
                courier.end(entry, End(Outcome.BURY, reason=_reason(error)))
            case Ending.UNREADABLE:
                end = unreadable(error)
                logger.error("sticky: task %r is buried unstarted: %s", entry.content.envelope.task_id, end.reason)
                courier.end(entry, end)
            case Ending.DIED:
                courier.again(entry, counted=True, cause=self._cause())
            case Ending.INTERRUPTED | Ending.NOT_STARTED:
                courier.again(entry, counted=False)
            case Ending.REQUEUED:
                courier.rest(entry, self.turn, after_run=True, cause=_reason(error))
            case Ending.FAILED:
                courier.rest(entry, self.turn, after_run=False, cause=_reason(error))

    def _is_to_blame(self) -> bool:
        # If the worker itself ended the task, it is not the task's fault.
        return self._lease.trusted(*self.reliance) and not self.context.ending

    def _cause(self) -> str:
        """Return why the task did not end; empty if its process died."""
        error, processes = self.said.error, self.context.has_processes
        died = error is None or (processes and isinstance(error, WorkerLostError | Terminated))
        return "" if died else _reason(error)

    def leave_pool(self) -> None:
        """Free the pool's place: the task's greenlet, which reports its end (`leaves`), has ended only now."""
        self._ended()

    def let_go_when_dead(self) -> None:
        """Finish the run once the task's process is dead."""
        start_native_thread(self._outlive)

    def _outlive(self) -> None:
        if self.pid is not None:
            with contextlib.suppress(ChildProcessError):  # the pool has already reaped it
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            self.kill_remains()
        self.let_go()

    def kill_remains(self) -> None:
        """Kill what the task's dead process started, before the key becomes free."""
        if self.context.has_processes and self.pid is not None:
            kill_group(self.pid)


def unreadable(error: BaseException | None) -> End:
    """Return the end of a message from which no worker can build a task."""
    told = error if isinstance(error, StickyError) else Unreadable(f"no task can be built from it: {_reason(error)}")
    return End(Outcome.BURY, reason=str(told), error=told)


def _reason(error: BaseException | None) -> str:
    return "rejected" if error is None else repr(error)[:500]


class StickyMessage(Message):
    """A message of a slot queue, in the form that Celery's strategies need."""

    def __init__(self, run: TaskRun, queue: str, accept: Any, headers: dict[str, Any]) -> None:
        item: Item = run.entry.content
        envelope = item.envelope
        super().__init__(
            body=envelope.body,
            delivery_tag=item.delivery.tag,
            content_type=envelope.content_type,
            content_encoding=envelope.content_encoding,
            delivery_info={
                "exchange": "",
                "routing_key": queue,
                "priority": item.delivery.priority,
                "redelivered": run.entry.attempts is not None or run.entry.requeues > 0,
            },
            properties=envelope.properties,
            headers=headers,
            accept=accept,
            channel=NoChannel(),
        )
        self.run = run

    def ack_log_error(self, logger: Any, errors: Any, multiple: bool = False) -> None:
        """Acknowledge, as `ack` does."""
        self.run.acknowledge()

    def reject_log_error(self, logger: Any, errors: Any, requeue: bool = False) -> None:
        """Reject, as `reject` does."""
        self.run.reject(logger, errors, requeue)

    def ack(self, multiple: bool = False) -> None:
        """Record the acknowledgement in the run."""
        self.run.acknowledge()

    def reject(self, requeue: bool = False) -> None:
        """Record the rejection in the run."""
        self.run.reject(None, None, requeue)


class NoChannel:
    """The channel attributes that Kombu's Message reads."""

    no_ack_consumers = None


def unaccepted(registry: dict[int, TaskRun]) -> list[TaskRun]:
    """Return the runs whose start is reserved but not confirmed by the pool."""
    return [run for run in tuple(registry.values()) if not run.accepted]
