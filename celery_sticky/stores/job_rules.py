"""How the record of a job changes. Pure: each rule takes a record and returns the next one, or None if it is removed.

A record that was fresh and is not any more, or is removed, has an outcome: see `outcome`.
"""

from __future__ import annotations

from dataclasses import replace

from celery_sticky.stores.jobs import UNWANTED, JobRecord, JobState, Report, RunResult


def stopped(record: JobRecord) -> JobRecord | None:
    """Return the record of a job that is not wanted any more; None: nothing of it can run."""
    waits = record.state in (JobState.QUEUED, JobState.PAUSED) and not record.epoch
    return None if waits or record.state is JobState.FAILED else replace(record, state=JobState.STOPPING)


def updated(record: JobRecord, *, restart: bool) -> JobRecord:
    """Return the record of a job that gets another payload, or is to start again."""
    if restart and record.state is JobState.FAILED:
        record = replace(record, state=JobState.QUEUED, error="", failures=0, epoch=0, worker="")
    return replace(record, generation=record.generation + restart)


def paused(record: JobRecord) -> JobRecord:
    """Return the record of a job that is to be paused."""
    if record.state is JobState.QUEUED and not record.epoch:
        return replace(record, state=JobState.PAUSED)
    return record if record.state is JobState.PAUSED else replace(record, state=JobState.PAUSING)


def resumed(record: JobRecord) -> JobRecord:
    """Return the record of a job that is to start again after a pause."""
    if record.state is JobState.PAUSING:
        return replace(record, state=JobState.QUEUED, generation=record.generation + 1)
    return replace(record, state=JobState.QUEUED) if record.state is JobState.PAUSED else record


def reserved(record: JobRecord, worker: str, epoch: int) -> JobRecord | None:
    """Return the record of a job that this owner starts; None: it must not run."""
    if record.state in UNWANTED:
        return None
    return replace(record, state=JobState.STARTING, attempt=record.attempt + 1, epoch=epoch, worker=worker)


def settled(record: JobRecord, report: Report, now: float) -> JobRecord | None:
    """Return the record after a report; `now` is the store's clock."""
    match report.result:
        case RunResult.WITHDRAWN:
            return _withdrawn(record)
        case RunResult.STARTED:
            return replace(record, state=_unless_unwanted(record, JobState.RUNNING), fresh=False)
        case RunResult.SETTLED:
            return replace(record, error="", failures=0, apart=False)
        case RunResult.PAUSED:
            pausing = record.state is JobState.PAUSING
            return replace(record, state=JobState.PAUSED, epoch=0, worker="") if pausing else record
        case RunResult.FAILED | RunResult.GIVEN_UP if _stays(record):
            return _failed(record, report, now)
        case _:
            return None


def outcome(report: Report) -> str:
    """Return the error of a start that this report settles; empty: it succeeded."""
    return "" if report.result is RunResult.STARTED else report.error


def _withdrawn(record: JobRecord) -> JobRecord:
    if not (record.fresh and record.attempt):
        return record
    state = _unless_unwanted(record, JobState.QUEUED)
    return replace(record, state=state, attempt=record.attempt - 1, epoch=0, worker="")


def _stays(record: JobRecord) -> bool:
    """Return whether a record stays if its job fails."""
    return record.state is not JobState.STOPPING and (record.durable or not record.fresh)


def _failed(record: JobRecord, report: Report, now: float) -> JobRecord:
    given_up = report.result is RunResult.GIVEN_UP
    return replace(
        record,
        state=_unless_unwanted(record, JobState.FAILED if given_up else JobState.FAILING),
        fresh=False,
        error=report.error,
        failures=report.failures,
        strikes=report.strikes,
        apart=report.apart,
        retry_at=now + report.pause,
    )


def _unless_unwanted(record: JobRecord, state: JobState) -> JobState:
    return record.state if record.state in UNWANTED else state
