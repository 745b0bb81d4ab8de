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
    StickyError,
    StoreUnavailable,
)
from celery_sticky.jobs.client import Jobs
from celery_sticky.jobs.handler import Job
from celery_sticky.jobs.payload import as_json, pairs
from celery_sticky.keys import Key, key_text
from celery_sticky.membership.lease import boottime
from celery_sticky.platform.outage import Outage
from celery_sticky.stores.jobs import digest
from celery_sticky.stores.ticks import Tick

logger = logging.getLogger("celery_sticky.jobs")

MANY = 2
"""Number of jobs that an empty result does not stop unless the schedule allows it."""

AT_ONCE = 500
"""Number of jobs that are dispatched together: after a refusal for want of room, the others are not sent."""

Function = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes a schedule wants; jobs it does not name stay as they are."""

    start: Mapping[Key, Any] | Collection[Key] = ()
    """Keys that should have a job, optionally with the payload of each.

    An existing job with another payload gets this one, and is restarted. Without payloads, existing jobs stay as they
    are.
    """
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
    allow_empty: bool = False
    """Whether a result without keys may stop `MANY` jobs or more."""

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
        """Dispatch missing jobs, stop unwanted ones, and update payloads.

        An empty result that would stop many jobs changes nothing.
        """
        plan = wanted if isinstance(wanted, Plan) else Plan(_keys(wanted), stop_all=True)
        start = {key_text(key): payload for key, payload in pairs(plan.start)}
        there = jobs.digests(self.job, keyspace=self.keyspace)
        if plan.stop_all and not start and len(there) >= MANY and not self.allow_empty:
            logger.error(
                "schedule %r has returned no keys, which would stop all %d jobs %r in keyspace %r. Nothing is changed. "
                "If they should stop, declare the schedule with allow_empty=True, or return Plan(stop=…)",
                self.name,
                len(there),
                self.job,
                self.keyspace,
            )
            return
        stop = {key_text(key) for key in plan.stop} | (there.keys() if plan.stop_all else set())
        stopped = jobs.stop_many(self.job, sorted((stop & there.keys()) - start.keys()), keyspace=self.keyspace)
        self._tell(stopped.failed)
        self._start({key: payload for key, payload in start.items() if key not in there}, jobs)
        if isinstance(plan.start, Mapping):
            self._update({key: payload for key, payload in start.items() if key in there}, there, jobs)

    def _start(self, missing: Mapping[str, Any], jobs: Jobs) -> None:
        wanted = [(key, payload) for key, payload in missing.items() if self._is_json(payload)]
        failed: dict[str, StickyError] = {}
        for first in range(0, len(wanted), AT_ONCE):
            result = jobs.admit_many(self.job, dict(wanted[first : first + AT_ONCE]), keyspace=self.keyspace)
            failed |= result.failed
            if any(isinstance(error, KeyspaceFull | KeyspaceClosed) for error in result.failed.values()):
                break  # the others would be refused too
        self._tell(failed)

    def _is_json(self, payload: Any) -> bool:
        """Return whether a payload can be sent; log why not. One that cannot would keep the others from being sent."""
        try:
            as_json(self.job, payload)
        except InvalidPayload as error:
            logger.error("schedule %r: %s", self.name, error)
            return False
        return True

    def _tell(self, failed: Mapping[str, StickyError]) -> None:
        """Log the refusals. Raise the first one that concerns the store, when the others are told."""
        no_room, refused = list[StickyError](), list[StickyError]()
        for error in failed.values():
            match error:
                case JobExists() | NoSuchJob():
                    continue  # somebody else has dispatched it in the meantime, or it has ended
                case AssignmentFailed():
                    logger.error("schedule %r: %s", self.name, error)
                case NotPinned():
                    logger.info("schedule %r: no job now: %s", self.name, error)
                case KeyspaceFull() | KeyspaceClosed():
                    no_room.append(error)
                case _:
                    refused.append(error)
        for error in no_room[:1]:
            logger.warning("schedule %r: %s", self.name, error)
        if refused:
            raise refused[0]

    def _update(self, wanted: Mapping[str, Any], there: Mapping[str, str], jobs: Jobs) -> None:
        for key, payload in wanted.items():
            try:
                if digest(self.job, key, as_json(self.job, payload)) != there[key]:
                    jobs.update(self.job, key, payload, keyspace=self.keyspace)
            except NoSuchJob:
                continue  # it has ended in the meantime
            except InvalidPayload as error:
                logger.error("schedule %r: %s", self.name, error)


@dataclass(frozen=True, slots=True)
class Ticker:
    """A function that one worker calls in each period."""

    name: str
    keyspace: str
    every: float
    function: Function = field(repr=False)

    async def run(self, job: Job, jobs: Callable[[], Jobs]) -> None:
        """Call the function once per period of the store's clock, unless another worker already did so."""
        job.started()
        outage = Outage(logger, f"ticker {self.name!r}", lambda _: "Its ticks are lost until then")
        while True:
            due = time.monotonic() + self.every - time.time() % self.every  # for want of the store's clock
            try:
                if (tick := await self._claim(jobs, outage)) is not None:
                    due = time.monotonic() + tick.next_in
                    if tick.claimed:
                        await _call(self.function)
            except Exception:
                logger.exception("ticker %r has failed", self.name)
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _claim(self, jobs: Callable[[], Jobs], outage: Outage) -> Tick | None:
        """Claim the current period; None while the store is down, because it cannot be decided."""
        try:
            tick: Tick = await _to_the_end(partial(jobs().claim_tick, self.name, self.every, keyspace=self.keyspace))
        except StoreUnavailable as error:
            outage.failed(error, boottime())
            return None
        outage.over(boottime())
        return tick


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
