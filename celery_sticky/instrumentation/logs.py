"""Logs each change of owners, one line for each batch of slots, and each start, stop and failure of a job."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from celery_sticky.instrumentation.facts import (
    EvictedHere,
    JobFailed,
    JobStarted,
    JobStopped,
    SlotsGained,
    SlotsLost,
    SlotsTakenOver,
    WorkerEvicted,
)
from celery_sticky.instrumentation.registry import Instruments

logger = logging.getLogger("celery_sticky.member")
job_logger = logging.getLogger("celery_sticky.jobs")

MOST_NAMES = 5
"""Workers to name in one line."""


def log_owner_changes(instruments: Instruments) -> None:
    """Have the changes of owners logged."""
    instruments.add(SlotsGained, _gained)
    instruments.add(SlotsTakenOver, _taken_over)
    instruments.add(SlotsLost, _lost)
    instruments.add(WorkerEvicted, _evicted)
    instruments.add(EvictedHere, _evicted_here)


def log_jobs(instruments: Instruments) -> None:
    """Have each start, stop and failure of a job logged."""
    instruments.add(JobStarted, _started)
    instruments.add(JobStopped, _stopped)
    instruments.add(JobFailed, _failed)


def _started(fact: JobStarted) -> None:
    text = "keyspace %s: job %r of key %r has started within %.2f s (start %d, epoch %d)"
    job_logger.info(text, fact.keyspace, fact.name, fact.key, fact.seconds, fact.attempt, fact.epoch)


def _stopped(fact: JobStopped) -> None:
    text = "keyspace %s: job %r of key %r has ended within %.2f s, after it ran for %.1f s: %s"
    job_logger.info(text, fact.keyspace, fact.name, fact.key, fact.seconds, fact.ran, fact.why)


def _failed(fact: JobFailed) -> None:
    text = "keyspace %s: job %r of key %r has failed after %.1f s (start %d): %s"
    job_logger.info(text, fact.keyspace, fact.name, fact.key, fact.seconds, fact.attempt, fact.error)


def _gained(fact: SlotsGained) -> None:
    named, unnamed = _names(fact.owners), len(fact.owners.get("", ()))
    sources = ", ".join([f"from {named}"] * bool(named) + [f"{unnamed} had no owner"] * bool(unnamed))
    logger.info("keyspace %s: gained %s (%s)", fact.keyspace, _count(len(fact.slots)), sources)


def _taken_over(fact: SlotsTakenOver) -> None:
    owner = "its former process" if fact.owner == fact.worker else fact.owner
    text = "keyspace %s: took over %s from %s, which was declared dead"
    logger.info(text, fact.keyspace, _count(len(fact.slots)), owner)


def _lost(fact: SlotsLost) -> None:
    did = "gave away" if fact.given else "lost"
    named = _names(fact.owners)
    logger.info("keyspace %s: %s %s%s", fact.keyspace, did, _count(len(fact.slots)), f" (to {named})" if named else "")


def _evicted(fact: WorkerEvicted) -> None:
    text = "keyspace %s: evicted %s, which has sent no heartbeat for %.1f s; it owned %s"
    logger.warning(text, fact.keyspace, fact.evicted, fact.silence, _count(fact.slots))


def _evicted_here(fact: EvictedHere) -> None:
    logger.warning(
        "keyspace %s: this worker was evicted: the last heartbeat that the store counted was sent %.1f s ago. It had "
        "%s open, which other workers take over; it joins again. If this repeats, look for pauses of this process or "
        "its machine and for a slow store, or raise sticky_lease_ttl",
        fact.keyspace,
        fact.silence,
        _count(fact.slots),
    )


def _count(slots: int) -> str:
    return "1 slot" if slots == 1 else f"{slots} slots"


def _names(owners: Mapping[str, frozenset[int]]) -> str:
    """Return the names with their numbers of slots: those with most come first, and a few stand for many."""
    most = sorted((name for name in owners if name), key=lambda name: (-len(owners[name]), name))
    some = [f"{name}: {len(owners[name])}" for name in most[:MOST_NAMES]]
    if others := most[MOST_NAMES:]:
        some.append(f"{len(others)} other workers: {sum(len(owners[name]) for name in others)}")
    return ", ".join(some)
