"""Schedules and tickers: functions that one worker of a keyspace calls at intervals.

Each is itself a built-in job whose key is made from its name: the owner of that key's slot runs it, and it moves like
any other job. It is wanted wherever its code is loaded, so it is not stored.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from celery_sticky.errors import (
    AssignmentFailed,
    InvalidPayload,
    JobExists,
    KeyspaceClosed,
    KeyspaceFull,
    NoSuchJob,
    NotPinned,
    StoreUnavailable,
)
from celery_sticky.jobs.client import Jobs
from celery_sticky.jobs.handler import Job
from celery_sticky.keys import Key, key_text
from celery_sticky.membership.lease import boottime
from celery_sticky.platform.outage import Outage

logger = logging.getLogger("celery_sticky.jobs")

Function = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes a schedule wants; jobs it does not name stay as they are."""

    start: Mapping[Key, Any] | Collection[Key] = ()
    """Keys that should have a job, optionally with the payload of each. Existing jobs stay as they are."""
    stop: Collection[Key] = ()
    stop_all: bool = False
    """Stop every job of the schedule's job name that `start` does not name."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A function that returns which keys should have a job."""

    name: str
    keyspace: str
    job: str
    every: float
    function: Function = field(repr=False)

    async def run(self, job: Job, jobs: Callable[[], Jobs]) -> None:
        """Call the function every `every` seconds, and apply its result."""
        job.started()
        outage = Outage(logger, f"schedule {self.name!r}", lambda _: "It neither starts nor stops jobs")
        while True:
            began = time.monotonic()
            try:
                plan = await _call(self.function)
                await _to_the_end(self.apply, plan, jobs())
                outage.over(boottime())
            except StoreUnavailable as error:
                outage.failed(error, boottime())
            except Exception:
                logger.exception("schedule %r has failed; trying again in %g s", self.name, self.every)
            await asyncio.sleep(max(0.0, began + self.every - time.monotonic()))

    def apply(self, wanted: Plan | Mapping[Key, Any] | Iterable[Key], jobs: Jobs) -> None:
        """Dispatch missing jobs and stop unwanted ones."""
        plan = wanted if isinstance(wanted, Plan) else Plan(_keys(wanted), stop_all=True)
        start = {key_text(key): payload for key, payload in _pairs(plan.start)}
        there = jobs.keys(self.job, keyspace=self.keyspace)
        stop = {key_text(key) for key in plan.stop} | (there if plan.stop_all else set())
        for key in sorted((stop & there) - start.keys()):
            try:
                jobs.stop(self.job, key, keyspace=self.keyspace)
            except NoSuchJob:
                continue  # it has ended in the meantime
        self._start({key: payload for key, payload in start.items() if key not in there}, jobs)

    def _start(self, missing: Mapping[str, Any], jobs: Jobs) -> None:
        for key, payload in missing.items():
            try:
                jobs.admit(self.job, key, payload, keyspace=self.keyspace)
            except JobExists:
                continue  # somebody else has dispatched it in the meantime
            except (InvalidPayload, AssignmentFailed) as error:
                logger.error("schedule %r: %s", self.name, error)
            except NotPinned as error:
                logger.info("schedule %r: no job now: %s", self.name, error)
            except (KeyspaceFull, KeyspaceClosed) as error:
                logger.warning("schedule %r: %s", self.name, error)
                return


@dataclass(frozen=True, slots=True)
class Ticker:
    """A function that one worker calls in each period."""

    name: str
    keyspace: str
    every: float
    function: Function = field(repr=False)

    async def run(self, job: Job, jobs: Callable[[], Jobs]) -> None:
        """Call the function once per period of the clock, unless another worker already did so in this period."""
        job.started()
        outage = Outage(logger, f"ticker {self.name!r}", lambda _: "Its ticks are lost until then")
        while True:
            number = int(time.time() // self.every)
            # Ticks are numbered by their start in milliseconds, so that a changed interval does not make them look old.
            begins = int(number * self.every * 1000)
            try:
                if await self._claims(jobs, begins, outage):
                    await _call(self.function)
            except Exception:
                logger.exception("ticker %r has failed", self.name)
            await asyncio.sleep(max(0.001, (number + 1) * self.every - time.time()))

    async def _claims(self, jobs: Callable[[], Jobs], begins: int, outage: Outage) -> bool:
        """Return whether this tick is ours; False while the store is down, because it cannot be decided."""
        try:
            claimed = await _to_the_end(partial(jobs().claim_tick, self.name, begins, keyspace=self.keyspace))
        except StoreUnavailable as error:
            outage.failed(error, boottime())
            return False
        outage.over(boottime())
        return bool(claimed)


async def _call(function: Function) -> Any:
    if inspect.iscoroutinefunction(function):
        returned: Awaitable[Any] = function()
        return await returned
    return await _to_the_end(function)


async def _to_the_end(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a thread. If cancelled, wait for it all the same: the next owner must not call it too."""
    # It has its own thread, not one of `asyncio.to_thread`, which all jobs share: neither waits for the other.
    thread = ThreadPoolExecutor(1, "schedule")
    call = asyncio.get_running_loop().run_in_executor(thread, copy_context().run, function, *args)
    thread.shutdown(wait=False)  # ends after the call
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        await asyncio.wait([call])
        raise


def _keys(wanted: Mapping[Key, Any] | Iterable[Key]) -> Mapping[Key, Any] | Collection[Key]:
    if isinstance(wanted, Mapping):
        return wanted
    if isinstance(wanted, str | bytes) or not isinstance(wanted, Iterable):
        raise TypeError(f"a schedule must return keys, a mapping of key to payload, or a Plan, not {wanted!r}")
    return list(wanted)


def _pairs(start: Mapping[Key, Any] | Collection[Key]) -> Iterable[tuple[Key, Any]]:
    return start.items() if isinstance(start, Mapping) else ((key, None) for key in start)
