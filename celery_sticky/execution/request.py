"""Celery's Request for messages of slot queues: it reserves its start, and reports when the task has released its key.

`celery.worker.request.create_request_cls` (Celery 5.5 to 5.7) makes a subclass that replaces `execute_using_pool` and
`on_success` without calling ours, so they are wrapped when that subclass is created. The full set of ends is:
on_success, on_failure (also retry, ignore, reject, lost process), a hard time limit, and a revoke before the start.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import SoftTimeLimitExceeded, Terminated, TimeLimitExceeded, WorkerLostError
from billiard.pool import MaybeEncodingError
from celery.app.task import Context
from celery.exceptions import Ignore, InvalidTaskError, Reject, Retry, TaskRevokedError
from celery.worker.request import Request
from celery.worker.state import task_ready

from celery_sticky.execution.outcome import DEATHS
from celery_sticky.execution.results import kept
from celery_sticky.execution.retry import DeferredRetry
from celery_sticky.execution.run import TaskRun
from celery_sticky.execution.shield import forget_job

logger = logging.getLogger("celery_sticky")

KILLED = (False, None, None)
"""What Celery's gevent and eventlet pools report of a killed greenlet; a success has a runtime instead."""
OF_A_TASK = (Reject, Ignore, Retry, SoftTimeLimitExceeded, MaybeEncodingError)
"""Errors with which a child reports a task that it did run."""


class PoolClosed(RuntimeError):
    """The pool takes no tasks now."""


class StickyRequest:
    """Mixed into the Request class of a task; type checkers cannot know what `super()` is then."""

    _run: TaskRun
    _task: Any
    _aside = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "execute_using_pool" in cls.__dict__:
            cls.execute_using_pool = _reserving(cls.__dict__["execute_using_pool"])  # type: ignore[attr-defined]
        if "on_success" in cls.__dict__:
            cls.on_success = _letting_go(cls.__dict__["on_success"])  # type: ignore[attr-defined]

    def __init__(self, message: Any, **options: Any) -> None:
        self._run = message.run
        try:
            super().__init__(message, **options)  # type: ignore[call-arg]
        except InvalidTaskError:
            raise
        except Exception as error:  # only the message can be the cause
            raise InvalidTaskError(f"{type(error).__name__}: {error}") from error
        task = self._task
        if not task.acks_late or not task.reject_on_worker_lost or task.retry_on_worker_lost:
            self._write_aside()

    def _write_aside(self) -> None:
        """Let another thread store what Celery stores of this task in the main process."""
        if not self._aside:
            self._task, self._aside = kept(self._task, self._run.context.results), True

    @property
    def eta(self) -> None:
        """None: the message waited in the broker and is due. `request.eta` in the task is the original."""
        return None

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """Note that the pool has taken the task and it runs."""
        run = self._run
        run.pid = run.context.leaders.of(pid) if run.context.has_processes else pid
        run.said.began = run.accepting = run.entry.began = True
        if run.entry.run is not None:
            run.context.courier.began()
        try:
            super().on_accepted(pid, time_accepted)  # type: ignore[misc]
        except Exception:
            _tell_failed(self, "on_accepted")
        finally:
            run.accepting = False

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
        """Handle a task that failed, retries, was rejected, was lost with its process, or could not begin."""
        run, error = self._run, _exception(exc_info)
        run.said.error, run.said.over = error, return_ok
        processes = run.context.has_processes
        if processes and not return_ok and not isinstance(error, (*OF_A_TASK, *DEATHS)):
            task_ready(self)  # the child failed before the task's body
            run.let_go()
            return
        self._write_aside()
        try:
            with _tolerating(self, "on_failure"):
                super().on_failure(exc_info, send_failed_event, return_ok)  # type: ignore[misc]
        finally:
            if isinstance(error, WorkerLostError | Terminated):
                run.kill_remains()
            if not (processes and isinstance(error, TimeLimitExceeded)):
                run.let_go()  # otherwise `on_timeout` follows

    def on_retry(self, exc_info: Any) -> None:
        """Handle a retry: if it supplies another message, this replaces the task's message."""
        with _tolerating(self, "on_retry"):
            super().on_retry(exc_info)  # type: ignore[misc]
        # After Celery's own handler, which acknowledges.
        if isinstance(retry := _exception(exc_info), DeferredRetry):
            self._run.defer(retry.sticky_due, retry.sticky_body)

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Handle a time limit; only the hard limit ends the task."""
        run = self._run
        if not soft:
            run.said.error, run.said.over = TimeLimitExceeded(timeout), True
            self._write_aside()
        with _tolerating(self, "on_timeout"):
            super().on_timeout(soft, timeout)  # type: ignore[misc]
        if not soft and not (run.said.acknowledged or run.said.rejected):  # Celery's handler failed before that
            run.said.acknowledged = bool(_acks_on_timeout(self._task))
        if not soft and run.context.has_processes:
            run.let_go_when_dead()  # it is killed after this
        elif not soft:
            run.let_go()

    def cancel(self, pool: Any, *args: Any, **kwargs: Any) -> None:
        """Cancel the task in a cold shutdown only; Celery also calls this when it loses a connection, not ours."""
        context = self._run.context
        if context.ending and context.has_processes:
            super().cancel(pool, *args, **kwargs)  # type: ignore[misc]

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        self._write_aside()
        with _tolerating(self, "the revoke"):
            super()._announce_revoked(reason, terminated, signum, expired)  # type: ignore[misc]
        self.acknowledge()  # type: ignore[attr-defined]
        self._already_revoked = True
        # A terminated task is let go when its process is dead, which on_failure reports; other pools do not report it.
        if not (terminated and self._run.context.has_processes):
            self._run.let_go()


def _acks_on_timeout(task: Any) -> Any:
    own = getattr(task, "acks_on_timeout", None)  # Celery 5.5 has one setting for failures and timeouts
    return task.acks_on_failure_or_timeout if own is None else own


@contextmanager
def _tolerating(request: Any, what: str) -> Iterator[None]:
    """Log errors of Celery's own code, so that they cannot keep a task from releasing its key."""
    try:
        yield
    except Exception:
        _tell_failed(request, what)


def _tell_failed(request: Any, what: str) -> None:
    logger.exception("sticky: %s of task %s[%s] failed in Celery's own code", what, request.name, request.id)


def _exception(exc_info: Any) -> Any:
    """Return the error raised by the task. Pools without processes leave it wrapped."""
    error = exc_info.exception
    return error.exc if isinstance(error, ExceptionWithTraceback) else error


def _reserving(execute: Any) -> Any:
    @functools.wraps(execute)
    def execute_using_pool(self: Any, pool: Any, **kwargs: Any) -> Any:
        run: TaskRun = self._run
        if not run.start(self):
            raise TaskRevokedError(self.id)  # makes the worker release the pool's place, and has no other effect
        try:
            _name_custom_headers(self.request_dict)
            if not run.context.has_processes:
                # Avoids decoding the body twice: Celery takes a body without a content type as it is.
                self._body, self._content_type = self._payload, None
            result = execute(self, pool, **kwargs)
            if result is None and run.context.has_processes:
                raise PoolClosed("the pool takes no tasks now")
        except TaskRevokedError:
            raise
        except Exception as error:
            if run.context.has_processes:
                forget_job(pool, self)
            task_ready(self)
            run.fail(error)
            raise TaskRevokedError(self.id) from error  # as above
        _watch(result, run)
        return result

    return execute_using_pool


def _name_custom_headers(fields: dict[str, Any]) -> None:
    """Mark which of a message's headers are the application's own; otherwise Celery works it out for each task.

    Celery uses its `Context` for that (celery/app/task.py), which removes every name it knows. Here it is done once for
    all messages with the same names. No such headers are marked by an empty mapping: for None Celery would look again.
    """
    if fields.get("headers") is None:
        fields["headers"] = {name: fields[name] for name in _custom_headers(tuple(fields))}


@functools.lru_cache(maxsize=1024)
def _custom_headers(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(Context(dict.fromkeys(names)).headers or ())


def _watch(result: Any, run: TaskRun) -> None:
    # If Celery's own code raises in a thread or greenlet, or it ends before its turn, no callback is called.
    if (future := getattr(result, "f", None)) is not None:
        future.add_done_callback(lambda done: _gone(run, None if done.cancelled() else done.exception()))
    elif (link := getattr(result, "link", None)) is not None:
        run.leaves = True
        link(lambda *_: _left(run, result))


def _error_of(ended: Any) -> BaseException | None:
    """Return the error raised by a greenlet that has ended."""
    if hasattr(ended, "exception"):  # gevent's
        raised: BaseException | None = ended.exception
        return raised
    try:
        ended.wait()
    except Exception as error:
        return error
    return None


def _left(run: TaskRun, greenlet: Any) -> None:
    if not run.done:
        _gone(run, _error_of(greenlet))
    run.leave_pool()


def _gone(run: TaskRun, error: BaseException | None) -> None:
    if run.done:
        return
    task_ready(run.request)
    if error is None and not run.accepted:
        run.unstart()
    elif error is not None and run.said.error is None:
        run.fail(error)
    else:
        run.let_go()


def _letting_go(on_success: Any) -> Any:
    @functools.wraps(on_success)
    def ended(self: Any, outcome: Any, **kwargs: Any) -> Any:
        run: TaskRun = self._run
        try:
            if outcome == KILLED and outcome[0] is False:  # 0: a task that already succeeded, and is not run again
                task_ready(self)
                return
            if not isinstance(outcome, tuple):  # a pool without processes: the task raised an exit exception
                task_ready(self)
                run.said.error = _exception(outcome)
                return
            run.said.over = True
            try:
                on_success(self, outcome, **kwargs)
            except Exception:
                _tell_failed(self, "on_success")
            if not outcome[0]:
                self.acknowledge()  # Celery checked `acks_late` of the task itself, not of our stand-in
        finally:
            run.let_go()

    return ended


def sticky_request_class(base: type[Request]) -> type[Any]:
    """Return `base` with `StickyRequest` mixed in."""
    return type(f"Sticky{base.__name__}", (StickyRequest, base), {})
