"""The outcome of a run: its recorded history and results, for the checker."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from celery_sticky.cli.verify.moves import Moves
from celery_sticky.cli.verify.options import RunOptions
from celery_sticky.cli.verify.plan import FaultPlan
from celery_sticky.cli.verify.timeline import Timeline
from celery_sticky.jobs.info import JobInfo
from celery_sticky.testing.history import Event
from celery_sticky.testing.slot_log import SlotEvent

BEATS = 3
"""Heartbeats in a lease."""
STARTING_JOBS = 1.0
"""Seconds from the end of a takeover until its jobs run."""
ROLLBACK = "store-rollback"
"""The fault after which the store may not know jobs, their failures and notes of before."""


@dataclass(frozen=True, slots=True)
class VerifyRun:
    """The recorded history and results of a run, for the checker."""

    run_options: RunOptions
    plan: FaultPlan
    timeline: Timeline
    events: list[Event]
    job_events: list[Event]
    slot_events: list[SlotEvent]
    deaths: dict[int, int]
    buried: dict[str, str]
    stuck: Collection[str]
    """Ids of tasks that did not finish in time and still have a message at the broker."""
    slots: int
    eviction_timeout: float
    jobs_seen: int
    """Time at the end at which all jobs ran, or were given up. Jobs may end after it."""
    moves: Moves | None = None
    """The changes of placement; None if the run does not use a placed keyspace."""
    untold: Sequence[Event] = ()
    """Pins that workers wrongly believe to hold at the end."""
    unburied: Sequence[str] = ()
    """Malformed messages that are not buried at the end."""
    bad_jobs: Sequence[JobInfo] = ()
    """The bad jobs before they were stopped."""
    bad_left: Sequence[str] = ()
    """Keys of bad jobs that did not stop in the end."""
    note_events: Sequence[Event] = ()

    @property
    def job_limit(self) -> float:
        """Longest time in seconds that a job may not be running, whatever happens to its worker."""
        return limit_of(self.eviction_timeout, self.run_options.ttl)


def limit_of(eviction_timeout: float, ttl: float) -> float:
    """Return the longest allowed gap of a job: a takeover, one heartbeat to notice it, and the start of the job."""
    return eviction_timeout + ttl / BEATS + STARTING_JOBS
