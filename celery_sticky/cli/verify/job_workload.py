"""The job workload: dispatch all jobs and keep them dispatched; now and then stop one and dispatch it again."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from types import TracebackType

from celery_sticky.app import Sticky
from celery_sticky.cli.verify.app import make_app
from celery_sticky.cli.verify.beside import Beside
from celery_sticky.cli.verify.jobs import JOB, STEADY, job_keys
from celery_sticky.cli.verify.site import Site
from celery_sticky.errors import NoSuchJob, NotPinned, StickyError
from celery_sticky.jobs.info import JobInfo
from celery_sticky.testing.history import Event, Kind
from celery_sticky.testing.recorder import Recorder

SELDOM = (0.5, 2.0)
"""Seconds between two renewals of a job: minimum and maximum."""


class JobWorkload(Beside):
    """Dispatches jobs, renews them while the block is open, and records when each was dispatched and stopped."""

    def __init__(self, site: Site, *, seed: int, renew: bool) -> None:
        self._keys = job_keys(site.jobs)
        self._app = make_app(site)
        self._recorder = Recorder(site.job_history)
        self._draw = random.Random(f"wishes-{seed}")
        self._ids: dict[str, str] = {}
        self._error: StickyError | None = None
        self._renewed = [key for key in self._keys if key != STEADY]
        super().__init__(idle=not (self._renewed and renew))

    def want_all(self) -> None:
        """Dispatch every job without waiting for its start."""
        for key in self._keys:
            self._want(key)

    def await_running(
        self,
        right: Callable[[Collection[JobInfo]], set[str]],
        all_ran_at: Callable[[Collection[str]], int],
        timeout: float,
    ) -> int | None:
        """Wait until every job runs in the right worker; return a time, since the call, at which all ran.

        `right` returns the keys of the jobs that do according to the store, `all_ran_at` the last time at which the
        jobs of all these ids ran. None: not within `timeout` seconds.
        """
        began, until = time.monotonic_ns(), time.monotonic() + timeout
        ids = self._ids
        while ids:
            if right(Sticky.of(self._app).jobs.list(JOB)) == set(ids) and (at := all_ran_at(ids.values())) >= began:
                return at
            if time.monotonic() > until:
                return None
            time.sleep(0.05)  # until the next look at the jobs
        return began

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop renewing jobs."""
        super().__exit__(kind, error, trace)
        if self._error is not None:
            raise StickyError(f"a job could not be dispatched again: {self._error}")

    def _pause(self) -> float:
        return self._draw.uniform(*SELDOM)

    def _turn(self) -> None:
        try:
            self._renew(self._draw.choice(self._renewed))
        except StickyError as error:
            self._error = error
            self._ended.set()

    def _renew(self, key: str) -> None:
        if key not in self._ids:
            self._want(key)
            return
        jobs, now = Sticky.of(self._app).jobs, time.monotonic_ns()
        try:
            jobs.stop(JOB, key)
        except NoSuchJob:
            return  # the job got lost: it stays recorded as dispatched, so the checker finds it missing
        self._write(Kind.WITHDRAWN, key, now)
        del self._ids[key]
        self._want(key)

    def _want(self, key: str) -> None:
        with suppress(NotPinned):  # then the job is not dispatched until its next turn
            self._ids[key] = Sticky.of(self._app).jobs.admit(JOB, key)
            self._write(Kind.PUBLISHED, key, time.monotonic_ns())

    def _write(self, kind: Kind, key: str, at: int) -> None:
        self._recorder.write(Event(kind=kind, key=key, n=0, task_id=self._ids[key], at=at, pid=os.getpid()))

    def close(self) -> None:
        """Close the connections."""
        if self._keys:
            Sticky.of(self._app).jobs.close()
        self._app.close()
