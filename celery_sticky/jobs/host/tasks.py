"""The asyncio tasks of runs: to which run each belongs, and that a cancellation which one of them loses is repeated.

Each step of such a task is marked, so that the worker knows which run was executed when the host died.

A run is a value in the context of its task. Tasks and callbacks that it creates inherit the context.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Generator
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any
from weakref import ref as weak

from celery_sticky.jobs.marks import LOOP, Marks

RUN: ContextVar[int] = ContextVar("RUN", default=0)
"""The ref of the run to which the current code belongs; 0: none."""
AGAIN = 0.5
"""Seconds until a cancellation that was lost is repeated."""


def context_of(run: int) -> Context:
    """Return the context for the task of a run."""
    context = copy_context()
    context.run(RUN.set, run)
    return context


class WatchedCoroutine:
    """A coroutine of a run, which marks its steps, and notices a cancellation that is lost.

    `asyncio.wait_for` of Python 3.11 loses one that arrives together with the result, and `except` clauses may.
    The exception of a cancellation lives while code handles it. So it is lost when the exception is gone and the
    coroutine is not.
    """

    __slots__ = ("_cancelled", "_coroutine", "_marks", "_send", "cancelled_at", "close", "run")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], run: int, marks: memoryview) -> None:
        self._coroutine, self.run, self._marks = coroutine, run, marks
        self._send, self.close = coroutine.send, coroutine.close
        self._cancelled: weak[BaseException] | None = None
        self.cancelled_at = float("-inf")
        """When it was last cancelled, by the clock of its loop."""

    def send(self, value: Any) -> Any:
        """See `collections.abc.Coroutine`."""
        self._marks[LOOP] = self.run
        try:
            return self._send(value)
        finally:
            self._marks[LOOP] = 0

    def throw(self, error: Any, *rest: Any) -> Any:
        """See `collections.abc.Coroutine`."""
        if isinstance(error, asyncio.CancelledError):
            self._cancelled, self.cancelled_at = weak(error), asyncio.get_running_loop().time()
        self._marks[LOOP] = self.run
        try:
            return self._coroutine.throw(error, *rest)
        finally:
            self._marks[LOOP] = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)  # `cr_frame` and the like, for those who look at tasks

    def has_lost_cancellation(self, since: float) -> bool:
        """Return True if it was cancelled at that time or later, and nothing handles its last cancellation any more."""
        return self._cancelled is not None and self._cancelled() is None and self.cancelled_at >= since


class RunTasks:
    """The tasks of the runs of one loop: cancels those of runs that stop, and those that a run leaves behind.

    A cancellation that is lost is repeated.
    """

    def __init__(self, marks: Marks) -> None:
        """Create none yet; their steps set these marks."""
        self._marks = marks.written
        self._tasks: dict[int, set[asyncio.Task[Any]]] = {}
        """Run -> its tasks."""
        self._stopping: dict[int, float] = {}
        """Run -> when it was first cancelled."""
        self._timer: asyncio.TimerHandle | None = None

    def create(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        """Create a task, as the task factory of the loop; watch its coroutine if it belongs to a run."""
        context = options.get("context")
        run = RUN.get() if context is None else context.get(RUN, 0)
        if not run:
            return asyncio.Task(coroutine, loop=loop, **options)
        if inspect.iscoroutine(coroutine):
            coroutine = WatchedCoroutine(coroutine, run, self._marks)
        task = asyncio.Task(coroutine, loop=loop, **options)
        self._tasks.setdefault(run, set()).add(task)
        task.add_done_callback(partial(self._forget, run))
        return task

    def cancel(self, run: int, task: asyncio.Task[Any]) -> None:
        """Cancel a run's first task, which in turn is to end the others."""
        task.cancel()
        self._repeat_for(run)

    async def end(self, run: int) -> None:
        """Cancel the tasks of a run except the current one, and wait until they have ended. May be cancelled itself."""
        cancelled = {asyncio.current_task()}
        while others := self._tasks.get(run, set()) - {asyncio.current_task()}:
            for task in others - cancelled:
                task.cancel()
            cancelled |= others
            self._repeat_for(run)
            with suppress(asyncio.CancelledError):  # by a stop: they were cancelled already
                await asyncio.wait(others, timeout=AGAIN)

    def _repeat_for(self, run: int) -> None:
        loop = asyncio.get_running_loop()
        self._stopping.setdefault(run, loop.time())
        if self._timer is None:
            self._timer = loop.call_later(AGAIN, self._repeat, context=Context())

    def _repeat(self) -> None:
        self._timer = None
        self._stopping = {run: since for run, since in self._stopping.items() if run in self._tasks}
        for run, since in self._stopping.items():
            for task in self._tasks[run]:
                coroutine = task.get_coro()
                if isinstance(coroutine, WatchedCoroutine) and coroutine.has_lost_cancellation(since):
                    task.cancel()
        if self._stopping:
            self._timer = asyncio.get_running_loop().call_later(AGAIN, self._repeat)

    def _forget(self, run: int, task: asyncio.Task[Any]) -> None:
        tasks = self._tasks[run]
        tasks.discard(task)
        if not tasks:
            del self._tasks[run]
