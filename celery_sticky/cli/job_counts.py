"""The jobs of a keyspace, counted by the state in which they are shown, and what needs somebody's attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from celery_sticky.jobs.shown import NO_WORKER, WAITING, Owners, shown
from celery_sticky.stores.jobs import JobCounts, JobGroup, JobState

STATES = ("running", "starting", WAITING, "failing", "failed", "stopping", "pausing", "paused")
IDLE = (JobState.FAILED, JobState.PAUSED)
"""States of jobs that need no worker."""
LOOK = "`celery sticky jobs list` shows their errors"


def tally(counts: JobCounts, owners: Owners) -> dict[str, Any]:
    """Return the number of jobs in each state, of those that overlap with these, and an example of each kind."""
    found, examples = Counter[str](), dict[str, str]()
    for group in counts.groups:
        for kind in _kinds(group, owners):
            found[kind] += group.count
            examples.setdefault(kind, f"{group.name} of key {group.key!r}")
    return {
        **{state: found[state] for state in STATES},
        "quarantined": found["quarantined"],
        "without_worker": found["without_worker"],
        "dead_notifications": counts.dead_notes,
        "examples": examples,
    }


def _kinds(group: JobGroup, owners: Owners) -> Iterable[str]:
    place = owners.of(group)
    yield shown(group, place)[0]
    if group.apart:
        yield "quarantined"
    if place.obstacle == NO_WORKER and group.state not in IDLE:
        yield "without_worker"


def job_problems(jobs: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield what is wrong with the jobs of a keyspace, each with its remedy."""
    if jobs["without_worker"]:
        yield f"{_some(jobs, 'without_worker')} do not run: {NO_WORKER}", "start a worker that takes part in it"
    if jobs["failed"]:
        remedy = f"{LOOK}; fix them, then `celery sticky jobs restart NAME KEY` (or `jobs stop`)"
        yield f"{_some(jobs, 'failed')} have failed and are not started again", remedy
    if jobs["failing"]:
        yield f"{_some(jobs, 'failing')} keep failing", LOOK
    if jobs["dead_notifications"]:
        remedy = "see `celery sticky jobs dead list`, then `jobs dead retry` or `jobs dead drop`"
        yield f"{jobs['dead_notifications']} notifications are dead", remedy


def quarantine(jobs: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return what is to be said of jobs that run apart, with the remedy; None: there are none."""
    if not jobs["quarantined"]:
        return None
    what = f"{_some(jobs, 'quarantined')} run each in a process of their own, because they ended or blocked another one"
    return what, f"{LOOK}; a worker runs at most sticky_job_quarantine of them at a time"


def line(jobs: Mapping[str, Any] | None) -> str:
    """Return the counts for people."""
    if jobs is None:
        return "jobs: -"
    counts = [f"{jobs[state]} {state}" for state in STATES if jobs[state]]
    more = [f"{jobs[kind]} {kind.replace('_', ' ')}" for kind in ("quarantined", "dead_notifications") if jobs[kind]]
    return f"jobs: {', '.join(counts) or 'none'}{''.join(f' · {one}' for one in more)}"


def _some(jobs: Mapping[str, Any], kind: str) -> str:
    return f"{jobs[kind]} jobs (for example {jobs['examples'][kind]})"
