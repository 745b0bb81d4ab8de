"""Placed keyspaces, and tasks in them that record their runs in the history."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from celery import Celery, Task

from celery_sticky import Job, Keyspace, Pin, Plan, Sticky, Worker, jump
from celery_sticky.keys import hash_key
from celery_sticky.testing.recorder import Recorder


def rendezvous(key: str, workers: Sequence[Worker]) -> Worker:
    """Choose the worker whose name and the key have the highest hash: few keys move when workers change."""
    return max(workers, key=lambda worker: hash_key(f"{worker.name} {key}".encode()))


def quarrel(key: str, workers: Sequence[Worker]) -> Worker:
    """Disagree with the other processes: choose the worker that STICKY_TEST_SAYS names in this process."""
    here = os.environ.get("STICKY_TEST_SAYS")
    return next((worker for worker in workers if worker.name.partition("@")[0] == here), workers[0])


def broken(key: str, workers: Sequence[Worker]) -> Any:
    """Raise for the key `raise`; return an unknown worker for the key `stranger`."""
    if key == "raise":
        raise LookupError("no such shard")
    return "a stranger" if key == "stranger" else workers[0].name


KEYSPACES = (
    Keyspace("jumped", assign=jump),
    Keyspace("custom", assign=rendezvous),
    Keyspace("pinned", pins=True),
    Keyspace("strict", pins=True, unpinned="refuse"),
    Keyspace("capped", pins=True, unpinned="refuse", dead_limit=2),
    Keyspace("both", assign=jump, pins=True),
    Keyspace("broken", assign=broken),
    Keyspace("quarrel", assign=quarrel),
)


def register(app: Celery, history: Path, *, jobs: bool = True) -> None:
    """Declare the keyspaces, and define for each a task `<keyspace>.record` and, with `jobs`, a job `sync`."""
    recorder, sticky = Recorder(history), Sticky.of(app)
    job_recorder = Recorder(history.with_name("jobs.jsonl"))
    for keyspace in KEYSPACES:
        sticky.keyspace(keyspace)
        _define(app, recorder, keyspace.name)
        if jobs:
            _define_job(sticky, job_recorder, keyspace.name)

    @sticky.job("front")
    async def front(job: Job) -> None:
        """Pin the key of the job to this worker, as a front end does, and run until stopped."""
        await asyncio.to_thread(sticky.pin, job.key, "pinned")
        async for _ in job.inbox:
            pass

    pins: list[Pin] = []

    @app.task(name="pin", shared=False)
    def pin(key: str, keyspace: str, take: bool = False) -> int:
        """Pin a key to the worker that runs this task."""
        pins.append(sticky.pin(key, keyspace, take=take))
        return os.getpid()

    @app.task(name="release", shared=False)
    def release(number: int) -> bool:
        """Release a pin that this process has set; they are numbered from 0."""
        return pins[number].release()

    @app.task(name="owns", shared=False)
    def owns(key: str, keyspace: str) -> bool:
        """Tell whether the worker that runs this task has the key."""
        return sticky.owns(key, keyspace)

    @app.task(name="unpin", shared=False)
    def unpin(key: str, keyspace: str) -> bool:
        """Unpin a key from the worker that runs this task."""
        return sticky.unpin(key, keyspace)


def _define(app: Celery, recorder: Recorder, name: str) -> None:
    @app.task(name=f"{name}.record", shared=False, key="key", keyspace=name, bind=True, max_retries=3)
    def record(self: Task, key: str, n: int, seconds: float = 0.0, retry_in: float | None = None) -> int:
        """Run for `seconds` under `key`. No slot is recorded, because epochs belong to the key here."""
        sticky = self.request.sticky
        hostname = str(self.request.hostname)
        with recorder.run(key, n, self.request.id, worker=hostname, keyspace=name, epoch=sticky.epoch):
            time.sleep(seconds)
            if retry_in is not None and not self.request.retries:
                raise self.retry(countdown=retry_in)
        return n

    @app.task(name=f"{name}.kill", shared=False, key="key", keyspace=name, bind=True)
    def kill(self: Task, key: str, n: int, seconds: float = 0.0) -> None:
        """Kill the whole worker."""
        with recorder.run(key, n, self.request.id, worker=str(self.request.hostname), keyspace=name):
            time.sleep(seconds)
            os.kill(os.getppid(), 9)
            time.sleep(60)  # until the signal arrives


def _define_job(sticky: Sticky, recorder: Recorder, name: str) -> None:
    @sticky.job("sync", keyspace=name)
    async def sync(job: Job) -> None:
        """Record the run and its notifications; `payload` has the seconds that each notification and the stop take."""
        payload = job.payload or {}
        worker, epoch = job.worker, job.epoch
        with recorder.run(job.key, 0, job.id, worker=worker, keyspace=name, epoch=epoch, attempt=job.attempt):
            try:
                async for note in job.inbox:
                    if note == "end":
                        return
                    recorder.published(job.key, note, worker)
                    await asyncio.sleep(payload.get("slow", 0))
            finally:
                await asyncio.sleep(payload.get("stop", 0))

    wanted = recorder.path.with_name("wanted")

    @sticky.schedule(f"planned-{name}", every=0.3, job="sync", keyspace=name)
    def planned() -> Any:
        """Return the keys in the file `wanted`; without the file, an empty plan, which changes nothing."""
        return wanted.read_text().split() if wanted.exists() else Plan()
