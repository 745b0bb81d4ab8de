"""How the record of a job changes. Pure: each rule takes a record and returns the next one, or None if it is removed.

A record that was fresh and is not any more, or is removed, has an outcome: see `outcome`.
"""

from __future__ import annotations

from dataclasses import replace

from celery_sticky.slots import Slot
from celery_sticky.stores.jobs import (
    REPEATED,
    UNWANTED,
    Admission,
    JobGroup,
    JobRecord,
    JobState,
    NewJob,
    Report,
    RunResult,
)
from celery_sticky.stores.notes import Fate
from celery_sticky.stores.ticks import Tick


def refused(there: JobRecord | None, fresh: int, max_queued: int) -> Admission | None:
    """Return why a job is not admitted, or None.

    `there` is the record at its address, and `fresh` the number of jobs whose dispatcher waits.
    """
    if there is not None and there.state is not JobState.STOPPING:
        return Admission.EXISTS
    return Admission.FULL if fresh >= max_queued else None


def queued(job: NewJob, now: float, replaced: JobRecord | None) -> JobRecord:
    """Return the record of a job that is admitted; `replaced` is that of one that is still stopping."""
    return JobRecord(
        name=job.name,
        key=job.key,
        slot=job.slot,
        id=job.id,
        payload=job.payload,
        state=JobState.QUEUED,
        fresh=True,
        attempt=0,
        epoch=replaced.epoch if replaced is not None else 0,
        worker=replaced.worker if replaced is not None else "",
        error="",
        created=now,
        version=0,
        durable=job.durable,
    )


def changeable(record: JobRecord | None) -> bool:
    """Return whether clients may still change a job."""
    return record is not None and record.state is not JobState.STOPPING


def ending(record: JobRecord) -> bool:
    """Return whether those who shut down wait for the end of this job, or of the one that it replaces."""
    return record.state is JobState.STOPPING or record.replaces


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


def tells_stop_error(report: Report) -> bool:
    """Return whether a report has an error that a stop has raised, which is kept for those who wait."""
    return report.result is RunResult.UNCLEAN and bool(report.error)


def noted(record: JobRecord | None, waiting: int, limit: int) -> Fate:
    """Return whether a note can be left for a job (`SENT`) for which so many are waiting."""
    if not changeable(record):
        return Fate.NO_JOB
    return Fate.FULL if waiting >= limit else Fate.SENT


def revision(last: int, now: float) -> int:
    """Return the revision after `last`. It is taken from the clock, so that it stays unique if records are lost."""
    return max(last + 1, int(now * 1e6))


def ticked(last: int, now: int, every: int) -> tuple[int, Tick]:
    """Return the start of the claimed period, and what its claimant is told. All is in milliseconds.

    A `last` in the future is a mistake of a clock: it is corrected, and nobody has claimed a period.
    """
    begins = now - now % every
    return (begins if last > now else max(last, begins)), Tick(last < begins, (begins + every - now) / 1000)


def group(
    slot: Slot, state: JobState, worker: str, epoch: int, failures: int, apart: bool, name: str, key: str
) -> JobGroup:
    """Return the group of jobs that a job is counted in, with it alone."""
    number = slot if isinstance(slot, int) else None
    return JobGroup(
        count=1,
        slot=number,
        state=state,
        worker=worker,
        epoch=0 if number is None else epoch,
        failures=min(failures, REPEATED),
        apart=apart,
        name=name,
        key=key,
    )


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
