"""The bad jobs of the run. Each kind hurts its neighbours in its own way, in every run that it gets."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import StrEnum
from itertools import product

from celery_sticky.app import Sticky
from celery_sticky.jobs.handler import Handler, Job, JobHandler, ThreadJob

MARK = "bad-"
START_TIMEOUT, STOP_TIMEOUT, WATCHDOG = 3.0, 2.0, 3.0
"""Seconds: the settings `sticky_job_start_timeout`, `sticky_job_stop_timeout`, `sticky_job_watchdog` of the run."""
BACKOFF = 3.0
"""Seconds from the first failure of a bad job to its next start: each start costs a process."""
FOR_EVER = 3600.0
SLOW = START_TIMEOUT / 2
LEAKED = 20
"""Number of threads that a run leaves behind."""
MOMENT = 0.3
"""Seconds after which a bad job that has started does its deed."""
MOST = 2
"""Maximum number of bad jobs of one kind."""

Recorded = Callable[[Job | ThreadJob], AbstractContextManager[None]]
"""Records a run of a job while the block is open."""


class Bad(StrEnum):
    """The kinds of bad jobs."""

    HANG_START = "hang-start"
    HANG_STOP = "hang-stop"
    HANG_NOTIFY = "hang-notify"
    RAISE = "raise"
    EXIT = "exit"
    BLOCK = "block"
    """It blocks the event loop."""
    SWALLOW = "swallow"
    """It swallows every cancellation."""
    LEAK = "leak"
    """It leaves threads behind, and raises."""
    SLOW_START = "slow-start"

    @property
    def job(self) -> str:
        """The name of the jobs of this kind."""
        return f"verify.{MARK}{self}"

    @property
    def offends(self) -> bool:
        """Whether it costs the process in which it runs."""
        return self not in (Bad.RAISE, Bad.LEAK, Bad.SLOW_START)

    @property
    def fails(self) -> bool:
        """Whether it fails without costing its process."""
        return self in (Bad.RAISE, Bad.LEAK)

    @property
    def offends_when_stopped(self) -> bool:
        """Whether it does so only when it is to stop."""
        return self in (Bad.HANG_STOP, Bad.HANG_NOTIFY, Bad.SWALLOW)

    def key(self, number: int) -> str:
        """Return the key of the `number`th job of this kind."""
        return f"{MARK}{self}-{number}"


class OutOfOrder(Exception):
    """Raised by jobs that fail on purpose."""


def is_bad(key: str) -> bool:
    """Return whether a key is that of a bad job."""
    return key.startswith(MARK)


def kind_of(key: str) -> Bad:
    """Return the kind of the bad job that has this key."""
    return Bad(key.removeprefix(MARK).rpartition("-")[0])


def bad_keys() -> list[str]:
    """Return all keys that bad jobs may have."""
    return [kind.key(number) for kind, number in product(Bad, range(MOST))]


def declare_bad(sticky: Sticky, keyspace: str, recorded: Recorded, *, isolated: bool = False) -> None:
    """Declare a job of each kind."""
    handlers = _functions(recorded) | _classes(recorded)
    for kind, handler in handlers.items():
        sticky.job(kind.job, keyspace=keyspace, retry_backoff=BACKOFF, isolated=isolated)(handler)


def _functions(recorded: Recorded) -> dict[Bad, Handler]:
    async def fails(job: Job) -> None:
        with recorded(job):
            await _begin(job)
            raise OutOfOrder

    async def exits(job: Job) -> None:
        with recorded(job):
            await _begin(job)
            os._exit(3)

    async def blocks(job: Job) -> None:
        with recorded(job):
            await _begin(job)
            time.sleep(FOR_EVER)  # the deed

    async def swallows(job: Job) -> None:
        with recorded(job):
            job.started()
            while True:
                try:
                    await asyncio.sleep(FOR_EVER)
                except asyncio.CancelledError:
                    continue

    async def leaks(job: Job) -> None:
        with recorded(job):
            await _begin(job)
            for _ in range(LEAKED):
                threading.Thread(target=time.sleep, args=(FOR_EVER,), daemon=True).start()
            raise OutOfOrder

    return {Bad.RAISE: fails, Bad.EXIT: exits, Bad.BLOCK: blocks, Bad.SWALLOW: swallows, Bad.LEAK: leaks}


async def _begin(job: Job) -> None:
    job.started()
    await asyncio.sleep(MOMENT)


def _classes(recorded: Recorded) -> dict[Bad, Handler]:
    class Recording(JobHandler):
        """A job in threads that does nothing."""

        def start(self, job: Job) -> None:
            self._run = recorded(job)
            self._run.__enter__()

        def stop(self, job: Job) -> None:
            self._run.__exit__(None, None, None)

    class HangingStart(Recording):
        def start(self, job: Job) -> None:
            super().start(job)
            time.sleep(FOR_EVER)  # the deed

    class HangingStop(Recording):
        def stop(self, job: Job) -> None:
            time.sleep(FOR_EVER)  # the deed

    class HangingNotify(Recording):
        def notify(self, job: Job, payload: object) -> None:
            time.sleep(FOR_EVER)  # the deed

    class SlowStart(Recording):
        def start(self, job: Job) -> None:
            super().start(job)
            time.sleep(SLOW)  # the deed

    return {
        Bad.HANG_START: HangingStart,
        Bad.HANG_STOP: HangingStop,
        Bad.HANG_NOTIFY: HangingNotify,
        Bad.SLOW_START: SlowStart,
    }
