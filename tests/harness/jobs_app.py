"""The worker app for tests of jobs: one job of each kind, each of which records its runs in the history."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from celery import Celery

from celery_sticky import Job, JobHandler, Plan, Sticky, ThreadJob
from celery_sticky.testing.recorder import Recorder
from harness import fault_tasks
from harness.app import AppConfig, make_app
from harness.slots_written import write_slots_down


def register(app: Celery, history: Path) -> Sticky:
    """Declare the jobs on `app`."""
    sticky, recorder = Sticky(app), Recorder(history)

    def recorded(job: Job | ThreadJob) -> Any:
        return recorder.run(job.key, 0, job.id, worker=job.worker, epoch=job.epoch, attempt=job.attempt)

    def note(job: Job | ThreadJob, payload: Any) -> None:
        recorder.published(f"note:{job.key}", payload, job.worker)

    @sticky.job("sync")
    async def sync(job: Job) -> None:
        """Record the run and its notifications; `payload` selects a fault."""
        payload = job.payload or {}
        if "raise" in payload:
            raise ValueError(payload["raise"])
        if "die" in payload:
            os._exit(3)
        with recorded(job):
            if "child" in payload:
                subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", payload["child"]])
            async for notification in job.inbox:
                if notification == "end":
                    return
                if notification == "fail":
                    raise RuntimeError("as told")
                if notification == "die":
                    os._exit(3)
                note(job, notification)
                await asyncio.sleep(payload.get("slow", 0))

    @sticky.job("saves")
    async def saves(job: Job) -> None:
        """Note what an earlier run has saved, and save each notification."""
        with recorded(job):
            note(job, job.saved)
            async for notification in job.inbox:
                await job.save(notification)

    @sticky.job("saves-in-threads")
    class SavesInThreads(JobHandler):
        """The same, in threads."""

        def start(self, job: Job) -> None:
            self._run = recorded(job)
            self._run.__enter__()
            note(job, job.saved)

        def notify(self, job: Job, payload: Any) -> None:
            job.save_sync(payload)

        def stop(self, job: Job) -> None:
            job.save_sync("stopped")
            self._run.__exit__(None, None, None)

    @sticky.job("plain")
    def plain(job: ThreadJob) -> None:
        """Record the run and its notifications, in a thread."""
        with recorded(job):
            for notification in job.inbox:
                if notification == "fail":
                    job.fail("as told")
                elif notification == "end":
                    job.done()
                else:
                    note(job, notification)

    @sticky.job("stubborn")
    async def stubborn(job: Job) -> None:
        """Ignore cancellation."""
        with recorded(job):
            job.started()
            while True:
                try:
                    await asyncio.sleep(600)
                except asyncio.CancelledError:
                    continue

    @sticky.job("blocking")
    async def blocking(job: Job) -> None:
        """Block the event loop for `payload` seconds on each notification."""
        with recorded(job):
            async for _ in job.inbox:
                time.sleep(job.payload)

    @sticky.job("poll")
    class Poll(JobHandler):
        """A job whose three methods are not coroutines; `payload` says how long the first and the last take."""

        def start(self, job: Job) -> None:
            time.sleep((job.payload or {}).get("slow", 0))
            if "raise" in (job.payload or {}):
                raise ValueError(job.payload["raise"])
            self._run = recorded(job)
            self._run.__enter__()

        def stop(self, job: Job) -> None:
            time.sleep((job.payload or {}).get("slow_stop", 0))
            self._run.__exit__(None, None, None)
            if "raise_stop" in (job.payload or {}):
                raise OSError(job.payload["raise_stop"])

        def notify(self, job: Job, payload: Any) -> None:
            if payload == "fail":
                raise RuntimeError("as told")
            note(job, payload)

    @sticky.job("isolated", isolated=True, retry_backoff=0.2)
    async def isolated(job: Job) -> None:
        """Do what the payload says: raise, end the process, block its loop; or run."""
        if "block" in (job.payload or {}):
            with recorded(job):
                time.sleep(job.payload["block"])
        await sync(job)

    @sticky.job("isolated-poll", isolated=True, retry_backoff=0.2)
    class IsolatedPoll(Poll):
        """The same as `poll`."""

    @sticky.job("limited", max_starts=3, retry_backoff=0.1)
    async def limited(job: Job) -> None:
        """Raise what the payload says, or run."""
        await sync(job)

    wanted, hang = history.with_name("wanted"), history.with_name("hang")

    @sticky.schedule("planned", every=0.3, job="sync")
    def planned() -> Any:
        """Return the keys in the file `wanted`; without the file, an empty plan, which changes nothing."""
        recorder.published("schedule", 0, str(os.getpid()))
        if hang.exists():
            recorder.published("hangs", 0, str(os.getpid()))
            time.sleep(600)
        return {key: {"of": "plan"} for key in wanted.read_text().split()} if wanted.exists() else Plan()

    @sticky.ticker("tick", every=0.5)
    async def tick() -> None:
        recorder.published("tick", int(time.time() // 0.5), str(os.getpid()))

    return sticky


def make() -> Celery:
    """Return the app of a worker process."""
    config = AppConfig.from_environ(os.environ)
    made = make_app(config)
    fault_tasks.register(made, config.history)
    register(made, config.history)
    write_slots_down(config.history)
    return made


if "STICKY_APP_BROKER" in os.environ:
    app = make()
