"""The jobs of the run: they only stay running, and their process records signs of life."""

from __future__ import annotations

import asyncio
import os
import threading
import time

from celery_sticky.app import Sticky
from celery_sticky.cli.verify.site import Site
from celery_sticky.jobs.handler import Job
from celery_sticky.testing.history import Event, Kind
from celery_sticky.testing.recorder import Recorder

JOB = "verify.stay"
PULSE = 0.1
"""Seconds between two signs of life. A process dies at most this long after its last one."""


def job_keys(jobs: int) -> list[str]:
    """Return the keys of the given number of jobs."""
    return [f"j{number}" for number in range(jobs)]


def declare(sticky: Sticky, site: Site) -> None:
    """Declare the job."""
    recorder = Recorder(site.job_history)
    pulse = Pulse(recorder)

    @sticky.job(JOB, keyspace=site.keyspace)
    async def stay(job: Job) -> None:
        """Run until the job is stopped."""
        pulse.begin()
        slot = sticky.slot_for(job.key) if site.placed is None else None  # else the epoch is per key
        with recorder.run(job.key, 0, job.id, worker=job.worker, slot=slot, epoch=job.epoch, attempt=job.attempt):
            job.started()
            await asyncio.Event().wait()


class Pulse:
    """Signs of life of a process from its first job on, independent of its event loop."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._begun = False

    def begin(self) -> None:
        """Start recording signs of life. May be called again."""
        if not self._begun:
            self._begun = True
            threading.Thread(target=self._heartbeat, daemon=True).start()

    def _heartbeat(self) -> None:
        while True:
            sign = Event(kind=Kind.ALIVE, key="", n=0, task_id="", at=time.monotonic_ns(), pid=os.getpid())
            self._recorder.write(sign)
            time.sleep(PULSE)  # until the next sign
