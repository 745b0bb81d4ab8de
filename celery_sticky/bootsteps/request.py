"""Celery's Request for messages of slot queues: it reserves its start, and says when the task has let go of its key.

`celery.worker.request.create_request_cls` (Celery 5.5 to 5.7) makes a subclass that replaces `execute_using_pool` and
`on_success` without calling ours, so they are wrapped in that subclass, at its birth. The full set of ends is:
on_success, on_failure (also retry, ignore, reject, lost process), a hard time limit, and a revoke before the start.
"""

from __future__ import annotations

import functools
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.app.task import Context
from celery.exceptions import TaskRevokedError
from celery.local import Proxy
from celery.worker.request import Request
from celery.worker.state import task_ready

from celery_sticky.bootsteps.retry import DeferredRetry
from celery_sticky.bootsteps.run import Run

KILLED = (False, None, None)
"""What Celery's gevent and eventlet pools say of a task whose greenlet was killed; success has a runtime."""


class _Kept(Proxy):
    """A task without a key, run under the key that its message brings: kept until it ended, as keyed tasks are."""

    acks_late = True
    reject_on_worker_lost = True
    retry_on_worker_lost = False


class StickyRequest:
    """Mixed into the Request class of a task: what `super()` is then, no type checker can know."""

    _run: Run
    _task: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "execute_using_pool" in cls.__dict__:
            cls.execute_using_pool = _reserving(cls.__dict__["execute_using_pool"])  # type: ignore[attr-defined]
        if "on_success" in cls.__dict__:
            cls.on_success = _letting_go(cls.__dict__["on_success"])  # type: ignore[attr-defined]

    def __init__(self, message: Any, **options: Any) -> None:
        self._run = message.run
        super().__init__(message, **options)  # type: ignore[call-arg]
        task = self._task
        if not task.acks_late or not task.reject_on_worker_lost or task.retry_on_worker_lost:
            self._task = _Kept(lambda: task)

    @property
    def eta(self) -> None:
        """None: the message has waited in the broker, it is due. `request.eta` in the task is the original."""
        return None

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """The pool has taken the task: it runs."""
        run = self._run
        run.pid = run.part.leaders.of(pid) if run.part.has_processes else pid
        run.accepted = run.accepting = True
        try:
            super().on_accepted(pid, time_accepted)  # type: ignore[misc]
        finally:
            run.accepting = False

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """The task has failed, retries, is rejected, or was lost with its process."""
        self._run.reason = repr(_exception(exc_info))[:500]
        try:
            return super().on_failure(exc_info, *args, **kwargs)  # type: ignore[misc]
        finally:
            if isinstance(_exception(exc_info), WorkerLostError | Terminated):
                self._run.kill_remains()
            if not (self._run.part.has_processes and isinstance(_exception(exc_info), TimeLimitExceeded)):
                self._run.let_go()  # else `on_timeout` follows

    def on_retry(self, exc_info: Any) -> None:
        """The task retries: its message is replaced, if the retry brings another one."""
        try:
            super().on_retry(exc_info)  # type: ignore[misc]
        finally:
            # After Celery's own, which acknowledges.
            if isinstance(retry := _exception(exc_info), DeferredRetry):
                self._run.defer(retry.sticky_due, retry.sticky_body)

    def on_timeout(self, soft: bool, timeout: float) -> Any:
        """The task has run into a time limit; only at the hard one it ends."""
        try:
            return super().on_timeout(soft, timeout)  # type: ignore[misc]
        finally:
            if not soft and self._run.part.has_processes:
                self._run.let_go_when_dead()  # it is killed after this
            elif not soft:
                self._run.let_go()

    def cancel(self, pool: Any, *args: Any, **kwargs: Any) -> None:
        """Celery gives up on the running task: in a cold shutdown, or it lost a connection that is none of ours."""
        part = self._run.part
        if part.ending and part.has_processes:
            super().cancel(pool, *args, **kwargs)  # type: ignore[misc]

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        super()._announce_revoked(reason, terminated, signum, expired)  # type: ignore[misc]
        # A terminated task lets go when its process is dead, which on_failure tells; other pools do not tell.
        if not (terminated and self._run.part.has_processes):
            self._run.let_go()


def _exception(exc_info: Any) -> Any:
    """Return what the task raised. Pools without processes leave it wrapped."""
    error = exc_info.exception
    return error.exc if isinstance(error, ExceptionWithTraceback) else error


def _reserving(execute: Any) -> Any:
    @functools.wraps(execute)
    def execute_using_pool(self: Any, pool: Any, **kwargs: Any) -> Any:
        if not self._run.start(self):
            raise TaskRevokedError(self.id)  # makes the worker give the pool's place free again, and nothing else
        _name_custom_headers(self.request_dict)
        if not self._run.part.has_processes:
            # What was decoded here need not be decoded again there: without a content type Celery takes it as it is.
            self._body, self._content_type = self._payload, None
        result = execute(self, pool, **kwargs)
        _watch(result, self._run)
        return result

    return execute_using_pool


def _name_custom_headers(fields: dict[str, Any]) -> None:
    """Say which of a message's headers are the application's own: else Celery finds out anew for each task.

    Celery asks its `Context` (celery/app/task.py), which takes away every name it knows; here it is asked once for all
    messages with the same names. Where there are none, an empty mapping says so: for None it would look again.
    """
    if fields.get("headers") is None:
        fields["headers"] = {name: fields[name] for name in _custom_headers(tuple(fields))}


@functools.lru_cache(maxsize=1024)
def _custom_headers(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(Context(dict.fromkeys(names)).headers or ())


def _watch(result: Any, run: Run) -> None:
    # A thread or greenlet that ends by an exception in Celery's own code calls nobody back.
    if (future := getattr(result, "f", None)) is not None:
        future.add_done_callback(lambda _: run.let_go())
    elif (link := getattr(result, "link", None)) is not None:
        link(lambda *_: run.leave_pool())


def _letting_go(on_success: Any) -> Any:
    @functools.wraps(on_success)
    def ended(self: Any, outcome: Any, **kwargs: Any) -> Any:
        try:
            if outcome == KILLED:
                task_ready(self)
                return
            on_success(self, outcome, **kwargs)
            if not outcome[0]:
                self.acknowledge()  # Celery has asked the task itself, not ours, whether it acknowledges late
        finally:
            self._run.let_go()

    return ended


def sticky_request_class(base: type[Request]) -> type[Any]:
    """Return `base` with `StickyRequest` mixed in."""
    return type(f"Sticky{base.__name__}", (StickyRequest, base), {})
