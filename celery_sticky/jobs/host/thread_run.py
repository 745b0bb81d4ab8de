"""The run of a job that is a plain function. It has a thread of its own."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

from celery_sticky.jobs.handler import JobSpec
from celery_sticky.jobs.host.function_run import FunctionRun
from celery_sticky.jobs.host.surroundings import Surroundings, error_text, thread_job_of
from celery_sticky.jobs.host.tasks import context_of
from celery_sticky.jobs.thread_inbox import ThreadInbox
from celery_sticky.jobs.wire import Start

NO_COROUTINE = "it returned a coroutine, which a plain function cannot run: declare the job with `async def`"


class ThreadRun(FunctionRun):
    """A job that is a plain function: stopping sets `job.stopping` and ends its waits for notifications."""

    __slots__ = ("_job", "_loop", "_thread", "_waits")

    def __init__(self, spec: JobSpec, start: Start, here: Surroundings) -> None:
        super().__init__(start, here)
        self._loop = asyncio.get_running_loop()
        self._waits = ThreadInbox(self._inbox, self._loop)
        self._job = thread_job_of(spec, start, here, self._begun, self._waits, self.end)
        context = context_of(start.ref)
        self._thread = threading.Thread(
            target=context.run, args=(self._run, spec.handler), name=f"job {spec.name}", daemon=True
        )
        self._loop.call_soon(self._begin)  # then the worker knows of the call, even if it ends the process

    def _interrupt(self) -> None:
        self._job.stopping.set()
        self._waits.stop()

    def _begin(self) -> None:
        if self._stopping:
            self._finish("")
            return
        try:
            self._thread.start()
        except RuntimeError as error:  # there are too many threads
            self._finish(error_text(error))

    def _run(self, function: Any) -> None:
        error = ""
        try:
            result = function(self._job)
            if inspect.iscoroutine(result):
                result.close()
                error = NO_COROUTINE
        except BaseException as exc:  # SystemExit too is an error of this job only
            self._job.logger.exception("raised an error")
            error = error_text(exc)
        self._loop.call_soon_threadsafe(self._take_in, error)

    def _take_in(self, error: str) -> None:
        ending = self._loop.create_task(self._end_tasks(error))
        ending.add_done_callback(lambda _: self._finish(error))
