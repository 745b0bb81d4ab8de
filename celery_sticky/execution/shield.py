"""Keeps Celery from losing track of keyed tasks when its broker connection is lost.

`Consumer.on_close` then flushes the pool. Jobs that were sent to a child but not confirmed are dropped from the pool's
books, because the broker will deliver them again; the child still runs them (celery/concurrency/asynpool.py, `flush`,
Celery 5.5 to 5.7). A keyed message belongs to the courier's connection and is not delivered again. So keyed jobs that
were sent are shielded during the flush, and those that were not get another turn.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from celery_sticky.execution.run import TaskRun, unaccepted
from celery_sticky.platform.reaper import kill_group


def shield_flush(pool: Any, runs: dict[int, TaskRun]) -> None:
    """Wrap the pool's `flush`, if it has one that drops jobs."""
    flush = getattr(pool, "flush", None)
    processes: Any = getattr(pool, "_pool", None)
    if flush is None or getattr(flush, "sticky", False) or not hasattr(processes, "outbound_buffer"):
        return

    def shielded() -> None:
        pending = {id(job) for job in processes.outbound_buffer}
        sent = [(run, job) for run in unaccepted(runs) if (job := _job(run)) is not None and id(job) not in pending]
        books = [job for run in tuple(runs.values()) if run.accepted and (job := _job(run)) is not None]
        if not processes._active_writers:
            books += [job for _, job in sent]  # completely written; before 5.7 all books are cleared then
        for _, job in sent:
            job._accepted = True
        try:
            flush()
        finally:
            for _, job in sent:
                job._accepted = False
            for job in books:
                if not job.ready():
                    processes._cache.setdefault(job._job, job)
        for run in unaccepted(runs):
            job = _job(run)
            if job is None or job._job not in processes._cache:
                run.unstart()

    shielded.sticky = True  # type: ignore[attr-defined]
    pool.flush = shielded


def take_back(pool: Any, runs: dict[int, TaskRun], lost: Callable[[TaskRun], bool]) -> list[Any]:
    """Give runs that are `lost` another turn elsewhere if the pool has not begun to write them; return their requests.

    Any thread may call this, whatever Celery's loop is doing: the loop never writes a job that was removed from the
    pool's buffer. For each request the caller must release the pool's semaphore, in the loop, and report the request as
    ready to Celery.
    """
    buffer: Any = getattr(getattr(pool, "_pool", None), "outbound_buffer", None)
    taken: list[Any] = []
    for run in unaccepted(runs) if buffer else ():
        job = _job(run)
        if job is None or not lost(run):
            continue
        with suppress(ValueError):
            buffer.remove(job)
            job.discard()
            run.unstart()
            taken.append(run.request)
    return taken


def drop_unaccepted(pool: Any) -> None:
    """Drop the pool's jobs that no child has confirmed, for a cold shutdown, which runs in a signal handler.

    The loop that writes jobs to the children does not continue meanwhile, perhaps it was interrupted while writing one,
    and the pool would wait forever. A child that was being sent a job, or has just received it, is killed.
    """
    processes: Any = getattr(pool, "_pool", None)
    for job in tuple(getattr(processes, "_cache", {}).values()):
        if not job._accepted:
            if (process := getattr(job, "_write_to", None)) is not None:
                kill_group(process.pid)
            job.discard()
    if (buffer := getattr(processes, "outbound_buffer", None)) is not None:
        buffer.clear()


def _job(run: TaskRun) -> Any:
    result = getattr(run.request, "_apply_result", None)
    return result() if result is not None else None


def forget_job(pool: Any, request: Any) -> None:
    """Remove the job of a request that the pool could not take from its books: the pool would wait for it forever."""
    processes: Any = getattr(pool, "_pool", None)
    for job in tuple(getattr(processes, "_cache", {}).values()):
        if getattr(job._accept_callback, "__self__", None) is request and not job._accepted:
            job.discard()
