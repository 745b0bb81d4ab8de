"""The jobs of the run. The good ones stay running and take their notes; their process records signs of life."""

from __future__ import annotations

import os
import threading
import time
from contextlib import AbstractContextManager

from celery_sticky.app import Sticky
from celery_sticky.cli.verify.bad_jobs import declare_bad
from celery_sticky.cli.verify.site import Site
from celery_sticky.jobs.handler import Job, ThreadJob
from celery_sticky.testing.history import Event, Kind
from celery_sticky.testing.processes import born, cpu_wait
from celery_sticky.testing.recorder import Recorder

JOB = "verify.stay"
PULSE = 0.1
"""Seconds between two signs of life. A process dies at most this long after its last one."""


STEADY = "j0"
"""The key whose job is never stopped. Another one, dispatched while a task of its placed key runs elsewhere, waits."""


def job_keys(jobs: int) -> list[str]:
    """Return the keys of the given number of good jobs."""
    return [f"j{number}" for number in range(jobs)]


def declare(sticky: Sticky, site: Site) -> None:
    """Declare the jobs."""
    recorder, notes = Recorder(site.job_history), Recorder(site.note_history)
    pulse = Pulse(recorder)

    def recorded(job: Job | ThreadJob) -> AbstractContextManager[None]:
        pulse.begin()
        slot = sticky.slot_for(job.key) if site.placed is None else None  # else the epoch is per key
        return recorder.run(job.key, 0, job.id, worker=job.worker, slot=slot, epoch=job.epoch, attempt=job.attempt)

    @sticky.job(JOB, keyspace=site.keyspace)
    async def stay(job: Job) -> None:
        """Run until the job is stopped, and record each note."""
        with recorded(job):
            job.started()
            async for n in job.inbox:
                notes.write(taken(job.key, n, job.id))

    declare_bad(sticky, site.keyspace, recorded, isolated=site.isolated)


def taken(key: str, n: int, job_id: str) -> Event:
    """Return the event that a job has got its `n`th note."""
    return Event(kind=Kind.START, key=key, n=n, task_id=job_id, at=time.monotonic_ns(), pid=os.getpid())


class Pulse:
    """Signs of life of a process from its first job on, independent of its event loop; and one of its start.

    Each says how long the process has waited for a CPU: a job host that starts on a busy machine mostly waits.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._begun = False

    def begin(self) -> None:
        """Start recording signs of life. May be called again."""
        if not self._begun:
            self._begun = True
            self._sign(born(), 0)
            threading.Thread(target=self._heartbeat, daemon=True).start()

    def _heartbeat(self) -> None:
        while True:
            self._sign(time.monotonic_ns(), cpu_wait())
            time.sleep(PULSE)  # until the next sign

    def _sign(self, at: int, waited: int) -> None:
        sign = Event(kind=Kind.ALIVE, key="", n=0, task_id="", at=at, pid=os.getpid(), waited=waited)
        self._recorder.write(sign)
