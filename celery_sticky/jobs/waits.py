"""Waits until no runs of jobs are left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from celery_sticky.errors import ShutdownTimeout, StopFailed
from celery_sticky.slots import Slot
from celery_sticky.stores.jobs import JobRecord, JobState, JobStore

STEP = 0.05
"""Seconds between checks whether jobs are gone."""


def await_end(store: JobStore, place: Slot, name: str, key: str, job_id: str, timeout: float) -> None:
    """Wait until no run of a stopped job is left, also if another job has replaced it."""
    left: list[JobRecord] = []

    def gone() -> bool:
        record = store.find(place, name, key)
        left[:] = [record] if record is not None and (record.id == job_id or record.replaces) else []
        return not left

    if not wait(gone, timeout):
        raise ShutdownTimeout(left_message(1, left, timeout))
    if error := store.stop_error(job_id):
        raise StopFailed(f"job {name!r} of key {key!r} has stopped, but its stop raised an error: {error}")


def wait(done: Callable[[], bool], timeout: float) -> bool:
    """Wait until it is done; return False after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not done():
        if time.monotonic() >= deadline:
            return False
        time.sleep(STEP)
    return True


def left_message(count: int, records: Sequence[JobRecord], timeout: float) -> str:
    """Return the error about jobs of which runs are left."""
    ending = [r for r in records if r.state in (JobState.STOPPING, JobState.PAUSING) or r.replaces]
    some = ", ".join(f"{record.name} of {record.key!r} at {record.worker or 'nobody'}" for record in ending[:5])
    return f"{count} jobs are left after {timeout:g} s: {some}"
