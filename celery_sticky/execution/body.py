"""Guards Celery's code around a task's body, in the process that runs the task.

Celery stores results, counts chord parts and publishes callbacks around the body (celery/app/trace.py, 5.5 to 5.7).
Celery does not handle errors there. A pool of processes acknowledges a task that may never have begun. A thread or
greenlet ends without reporting a task that has. This module separates the cases: a body that has ended counts as ended,
whatever became of its result, and a body that never began raises `NotBegun`.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Callable
from pickle import PicklingError
from types import FrameType
from typing import Any

from billiard.einfo import ExceptionInfo
from billiard.exceptions import SoftTimeLimitExceeded
from celery import states
from celery.app.task import Context, Task
from celery.app.trace import TraceInfo, trace_ok_t
from celery.exceptions import Reject, Retry
from celery.utils.saferepr import saferepr
from celery.utils.serialization import get_pickleable_etype, get_pickleable_exception
from msgspec import Struct

logger = logging.getLogger("celery_sticky")

TRACER = "celery.app.trace"
"""The module whose frames run tasks."""
_here = threading.local()
"""The state of the body that this thread or greenlet runs, as `run`."""
SUSPECT = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, PicklingError)
"""Errors raised by code that meets an unexpected value, so the message may be the cause; not of a server outage."""


class NotBegun(Exception):
    """Celery failed before the task's body began: the task has not run."""

    def __init__(self, text: str, suspect: bool = False) -> None:
        super().__init__(text, suspect)
        self.text, self.suspect = text, suspect

    def __str__(self) -> str:
        return self.text


class _Body(Struct):
    """The state of the body of one run."""

    task: Any
    began: bool
    request: Any
    inside: bool = False
    returned: bool = False
    result: Any = None
    error: Exception | None = None
    at_end: Callable[[str | None, Any], None] | None = None


def at_end(call: Callable[[str | None, Any], None]) -> None:
    """Call `call` with state and value when the keyed run of this thread or greenlet has ended.

    A state of None means that an exception, the one being handled, broke the run off.
    """
    mark: _Body | None = getattr(_here, "run", None)
    if mark is not None:
        mark.at_end = call


def entering(task: Any) -> Any:
    """Return the request of the run that is about to enter this task's body here; None: the caller is not a pool."""
    mark: _Body | None = getattr(_here, "run", None)
    return mark.request if mark is not None and mark.task is task and not mark.inside else None


def error_here() -> Exception | None:
    """Return the error raised by the body that this thread or greenlet ran last, if it belongs to a keyed run."""
    mark: _Body | None = getattr(_here, "run", None)
    return None if mark is None else mark.error


def mark_body(task: Any) -> None:
    """Make a task's body record its begin and end. Call this before Celery builds the task's tracer."""
    if hasattr(task.run, "sticky_marked"):
        return
    body = task.run

    @functools.wraps(body)
    def run(*args: Any, **kwargs: Any) -> Any:
        mark: _Body | None = getattr(_here, "run", None)
        if mark is None or mark.inside or mark.task is not task:  # the last two: a body called it, not a pool
            return body(*args, **kwargs)
        mark.began = mark.inside = True
        if task.sticky_tracks:
            _store_started(task, mark.request)
        try:
            mark.result = body(*args, **kwargs)
        except Exception as error:
            mark.error = error
            raise
        mark.returned = True
        return mark.result

    run.sticky_marked = True  # type: ignore[attr-defined]
    task.run = run
    # Celery stores the state STARTED just before the body, and gives up the task if that fails, so we store it instead.
    task.sticky_tracks, task.track_started = task.track_started, False


def guard_traces(tasks: Any) -> None:
    """Guard the tracers that Celery built for these tasks."""
    for task in tasks.values():
        if hasattr(task.run, "sticky_marked") and not hasattr(task.__trace__, "sticky_guarded"):
            task.__trace__ = _guarded(task, task.__trace__)


def _guarded(task: Any, trace: Any) -> Any:
    # The effects of the application's own `__call__` or `before_start` are unknown, so such a task counts as begun.
    own = type(task)
    opaque = own.__call__ is not Task.__call__ or own.before_start is not Task.before_start

    def guarded(uuid: str, args: Any, kwargs: Any, request: Any = None) -> Any:
        if not request or request.get("sticky") is None:
            return (
                trace(uuid, args, kwargs, request) if not task.sticky_tracks else tracked(uuid, args, kwargs, request)
            )
        mark = _here.run = _Body(task, opaque, request)
        began = time.monotonic()
        try:
            outcome = trace(uuid, args, kwargs, request)
            if mark.at_end is not None:
                mark.at_end(*_end_of(outcome))
            return outcome if mark.returned and outcome.info is None else _checked(outcome, mark)
        except (MemoryError, Reject, NotBegun):
            raise
        except Exception as error:
            if mark.at_end is not None:
                mark.at_end(None, None)
            if not mark.began:
                raise NotBegun(repr(error), isinstance(error, SUSPECT)) from error
            logger.exception(
                "sticky: task %s[%s] has ended, but Celery failed after it; its message is settled and it does not run "
                "again; its result may be missing: check the result backend and the broker",
                task.name,
                uuid,
            )
            return _ended(task, mark, error, time.monotonic() - began)
        finally:
            _here.run = None

    def tracked(uuid: str, args: Any, kwargs: Any, request: Any) -> Any:
        """Run a task without a key; only STARTED is stored by us."""
        _here.run = _Body(task, opaque, {"id": uuid, **(request or {})})
        try:
            return trace(uuid, args, kwargs, request)
        finally:
            _here.run = None

    guarded.sticky_guarded = True  # type: ignore[attr-defined]
    return guarded


def _end_of(outcome: Any) -> tuple[str, Any]:
    info = outcome.info
    return (states.SUCCESS, outcome.retval) if info is None else (info.state, info.retval)


def _checked(outcome: Any, mark: _Body) -> Any:
    """Return Celery's outcome of the run, or a corrected one if Celery's says less than is known."""
    state = outcome.info.state if outcome.info is not None else states.SUCCESS
    if not mark.began and state == states.FAILURE:
        error = outcome.info.retval
        raise NotBegun(repr(error), isinstance(error, SUSPECT))
    if brings_next_try(mark.error) and state != states.RETRY:
        return _told(mark.error, states.RETRY, outcome.runtime)
    return outcome


def _ended(task: Any, mark: _Body, error: Exception, runtime: float) -> Any:
    if mark.returned:
        return trace_ok_t(mark.result, None, runtime, saferepr(mark.result, task.resultrepr_maxsize))
    if brings_next_try(mark.error):
        return _told(mark.error, states.RETRY, runtime)
    return _told(error if isinstance(mark.error, Retry) else mark.error or error, states.FAILURE, runtime)


def brings_next_try(error: Any) -> bool:
    """Return whether the error replaces the task's message by that of the next try."""
    return bool(getattr(error, "sticky_body", b""))


def _told(error: Any, state: str, runtime: float) -> Any:
    told = error if state == states.RETRY else get_pickleable_exception(error)
    kind = type(error) if state == states.RETRY else get_pickleable_etype(type(error))
    return trace_ok_t(ExceptionInfo((kind, told, error.__traceback__)), TraceInfo(state, error), runtime, None)


def _store_started(task: Any, request: dict[str, Any]) -> None:
    # At the same point as Celery: after its check whether the task already succeeded, whose state this would overwrite.
    ignored = request.get("ignore_result")
    if task.ignore_result if ignored is None else ignored:
        return
    meta = {"pid": os.getpid(), "hostname": request.get("hostname")}
    task_id = request["id"]
    try:
        task.backend.store_result(task_id, meta, states.STARTED, request=Context(request))
    except SoftTimeLimitExceeded:
        raise  # this one belongs to the task
    except Exception as error:
        logger.warning(
            "sticky: the state STARTED of task %s[%s] is not stored: %r; the task runs", task.name, task_id, error
        )


def runs_task(frame: FrameType) -> bool:
    """Return whether this frame belongs to a running task."""
    return frame.f_globals.get("__name__") == TRACER
