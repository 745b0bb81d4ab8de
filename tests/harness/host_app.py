"""An app with jobs that log what they do. Each line of the file STICKY_JOB_LOG has a word and the key of a job."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import time
from typing import Any

from celery import Celery

from celery_sticky import Sticky
from celery_sticky.jobs.handler import Job, JobHandler, ThreadJob

app = Celery("jobs", broker="memory://", set_as_current=False)
sticky = Sticky(app)


def note(word: str, job: Job | ThreadJob) -> None:
    """Append a line with a single write."""
    log = os.open(os.environ["STICKY_JOB_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, f"{word} {job.key}\n".encode())
    os.close(log)


@sticky.job("listen")
async def listen(job: Job) -> None:
    """Log each notification, until stopped."""
    note("begins", job)
    try:
        async for payload in job.inbox:
            job.logger.warning("hears %s", payload)
            note(f"hears:{payload}", job)
    finally:
        note("stops", job)


@sticky.job("plain")
def plain(job: ThreadJob) -> None:
    """The same in a thread."""
    note("begins", job)
    for payload in job.inbox:
        note(f"hears:{payload}", job)
    note("stops", job)


@sticky.job("idle")
async def idle(job: Job) -> None:
    """Wait until cancelled."""
    job.started()
    await asyncio.get_running_loop().create_future()


@sticky.job("quiet")
async def quiet(job: Job) -> None:
    """Wait for notifications, as most jobs do most of the time."""
    async for _ in job.inbox:
        pass


@sticky.job("slow")
async def slow(job: Job) -> None:
    """Report no start for longer than a test lasts."""
    note("begins", job)
    await asyncio.sleep(3600)


@sticky.job("stubborn")
async def stubborn(job: Job) -> None:
    """Ignore cancellation, as often as the payload says."""
    job.started()
    left = job.payload or 1_000_000
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            left -= 1
            if left < 0:
                raise
            note("goes on", job)


@sticky.job("block")
async def block(job: Job) -> None:
    """Block the event loop."""
    job.started()
    await asyncio.sleep(0)  # the host can report the start before the loop is blocked
    note("blocks", job)
    time.sleep(3600)


@sticky.job("fail")
async def fail(job: Job) -> None:
    """Raise, before or after the reported start."""
    if job.payload == "later":
        job.started()
    raise {"exit": SystemExit, "interrupt": KeyboardInterrupt}.get(job.payload, LookupError)("no\nluck")


@sticky.job("spawn")
async def spawn(job: Job) -> None:
    """Start a program and a forked process; on a notification, terminate both and log their exit codes."""
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
    """End the process of the job host."""
    os._exit(7)


@sticky.job("stray")
async def stray(job: Job) -> None:
    """Stop the loop; with a payload, also leave a task that tries to end the process."""

    async def leave() -> None:
        sys.exit("away")

    asyncio.get_running_loop().stop()
    if job.payload:
        TASKS.append(asyncio.create_task(leave()))
    await job.inbox.get()


@sticky.job("family")
async def family(job: Job) -> None:
    """Have two tasks that take notifications, and keep no reference to one that raises."""

    async def consume() -> None:
        try:
            async for payload in job.inbox:
                await asyncio.sleep(0.01)
                if payload == "bad":
                    raise LookupError("cannot take it")
        finally:
            note("child ends", job)

    for _ in range(2):
        asyncio.create_task(consume())  # noqa: RUF006  as people write it
    await asyncio.sleep(3600)


@sticky.job("lag")
async def lag(job: Job) -> None:
    """Log the longest time, in seconds, for which the loop was busy with something else."""
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
    """Log each call. The payload selects what fails and how long `start` takes; each notification takes 20 ms."""

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
    """The same with coroutines, which run in the loop."""

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
