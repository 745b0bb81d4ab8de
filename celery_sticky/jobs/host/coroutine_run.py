"""The run of a job that is a coroutine."""

from __future__ import annotations

import asyncio
from typing import Any

from celery_sticky.jobs.handler import Job, JobSpec
from celery_sticky.jobs.host.function_run import FunctionRun
from celery_sticky.jobs.host.surroundings import Surroundings, error_text, job_of
from celery_sticky.jobs.host.tasks import context_of
from celery_sticky.jobs.wire import Start

CANCELLED = "CancelledError"


class CoroutineRun(FunctionRun):
    """A job that is a coroutine: its first task runs from start to end; stopping cancels it."""

    __slots__ = ("_task",)

    def __init__(self, spec: JobSpec, start: Start, here: Surroundings) -> None:
        super().__init__(start, here)
        job = job_of(spec, start, here, self._begun, self._inbox, self.end)
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run(spec.handler, job), context=context_of(start.ref))
        self._task.add_done_callback(self._take_in)

    def _interrupt(self) -> None:
        self._tasks.cancel(self._ref, self._task)

    async def _run(self, function: Any, job: Job) -> str:
        error = ""
        try:
            await function(job)
        except asyncio.CancelledError:
            error = CANCELLED
        except BaseException as exc:  # SystemExit must end only this job: raised in a task, it would end the loop
            job.logger.exception("raised an error")
            error = error_text(exc)
        await self._end_tasks(error)
        return error

    def _take_in(self, task: asyncio.Task[str]) -> None:
        error = CANCELLED if task.cancelled() else task.result()
        self._finish("" if error == CANCELLED and self._stopping else error)
