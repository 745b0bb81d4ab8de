"""An app with jobs. What they do is written down, a word and a key a line, in the file that STICKY_JOB_LOG names."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import time
from typing import Any

from celery import Celery

from celery_sticky import Sticky
from celery_sticky.jobs.handler import Job, JobHandler

app = Celery("jobs", broker="memory://", set_as_current=False)
sticky = Sticky(app)


def note(word: str, job: Job) -> None:
    """Write a line, in one piece."""
    log = os.open(os.environ["STICKY_JOB_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, f"{word} {job.key}\n".encode())
    os.close(log)


@sticky.job("listen")
async def listen(job: Job) -> None:
    """Takes notifications, until it is stopped."""
    note("begins", job)
    try:
        async for payload in job.inbox:
            job.logger.warning("hears %s", payload)
            note(f"hears:{payload}", job)
    finally:
        note("stops", job)


@sticky.job("idle")
async def idle(job: Job) -> None:
    """Waits for what never comes."""
    job.started()
    await asyncio.get_running_loop().create_future()


@sticky.job("quiet")
async def quiet(job: Job) -> None:
    """Waits at its inbox, as most jobs do most of the time."""
    async for _ in job.inbox:
        pass


@sticky.job("slow")
async def slow(job: Job) -> None:
    """Has not started within the time of a test."""
    note("begins", job)
    await asyncio.sleep(3600)


@sticky.job("stubborn")
async def stubborn(job: Job) -> None:
    """Cannot be cancelled."""
    job.started()
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            note("goes on", job)


@sticky.job("block")
async def block(job: Job) -> None:
    """Blocks the event loop."""
    job.started()
    await asyncio.sleep(0)
    note("blocks", job)
    time.sleep(3600)


@sticky.job("fail")
async def fail(job: Job) -> None:
    """Raises, before or after it has started."""
    if job.payload == "later":
        job.started()
    raise {"exit": SystemExit, "interrupt": KeyboardInterrupt}.get(job.payload, LookupError)("no\nluck")


@sticky.job("spawn")
async def spawn(job: Job) -> None:
    """Starts a program and a process forked off, terminates both when it is notified, and says how they ended."""
    program = await asyncio.create_subprocess_exec(*SLEEP, close_fds=False)
    forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,))
    forked.start()
    note(f"program:{program.pid}", job)
    note(f"forked:{forked.pid}", job)
    await job.inbox.get()
    program.terminate()
    forked.terminate()
    status = await program.wait()
    await asyncio.to_thread(forked.join)
    note(f"ended:{status}:{forked.exitcode}", job)


@sticky.job("crash")
async def crash(job: Job) -> None:
    """Ends the process."""
    os._exit(7)


@sticky.job("stray")
async def stray(job: Job) -> None:
    """Leaves a task that wants to end the process, and stops the loop."""

    async def leave() -> None:
        sys.exit("away")

    asyncio.get_running_loop().stop()
    if job.payload:
        TASKS.append(asyncio.create_task(leave()))
    await job.inbox.get()


@sticky.job("lag")
async def lag(job: Job) -> None:
    """Measures for how many seconds the loop was busy with something else, at most."""
    job.started()
    longest = 0.0
    try:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0)
            longest = max(longest, time.monotonic() - began)
            await asyncio.sleep(0.001)
    finally:
        note(f"lag:{longest:.3f}", job)


class Recorder(JobHandler):
    """Writes down what is called. The payload says what fails or takes time; notifications take a moment."""

    def start(self, job: Job) -> Any:
        """See `JobHandler`."""
        note("starts", job)
        self.wants = job.payload
        time.sleep(self.wants.get("pause", 0))
        if self.wants.get("fails") == "start":
            raise ConnectionError("no connection")

    def stop(self, job: Job) -> Any:
        """See `JobHandler`."""
        note("stops", job)
        if self.wants.get("fails") == "stop":
            raise OSError("left open")

    def notify(self, job: Job, payload: Any) -> Any:
        """See `JobHandler`."""
        note(f"takes:{payload}", job)
        time.sleep(0.02)
        note(f"took:{payload}", job)


class AsyncRecorder(Recorder):
    """The same in the loop."""

    async def start(self, job: Job) -> Any:
        """See `JobHandler`."""
        super().start(job)

    async def stop(self, job: Job) -> Any:
        """See `JobHandler`."""
        super().stop(job)

    async def notify(self, job: Job, payload: Any) -> Any:
        """See `JobHandler`."""
        super().notify(job, payload)


sticky.job("sync")(Recorder)
sticky.job("async")(AsyncRecorder)
sticky.job("elsewhere", keyspace="elsewhere")(idle)

TASKS: list[asyncio.Task[None]] = []
SLEEP = (sys.executable, "-c", "import time; time.sleep(3600)")
