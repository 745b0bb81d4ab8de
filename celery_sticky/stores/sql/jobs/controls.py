"""The verbs by which clients stop, change and notify single jobs. Each locks the slots of its jobs first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from celery_sticky.slots import Slot
from celery_sticky.sql import Database
from celery_sticky.sql.text import chunks, portions
from celery_sticky.stores import job_rules
from celery_sticky.stores.jobs import STOPPED, JobAddress, JobRecord, digest
from celery_sticky.stores.notes import Fate
from celery_sticky.stores.sql.jobs.changes import Changes, changes_in
from celery_sticky.stores.sql.jobs.notes import Inboxes
from celery_sticky.stores.sql.jobs.rows import Stored

Answer = TypeVar("Answer")
AT_ONCE = 100
"""Most jobs that one transaction changes: their owners wait for it."""


class Controls:
    """The verbs for one keyspace."""

    def __init__(self, database: Database, scope: bytes) -> None:
        self._database, self._scope = database, scope

    def stop_each(self, jobs: Sequence[JobAddress]) -> list[str | None]:
        """See `JobStore.stop_each`."""
        answers: list[str | None] = []
        for some in chunks(jobs, AT_ONCE):
            with changes_in(self._database, self._scope, [slot for slot, _, _ in some]) as changes:
                changes.read_addresses(some)
                answers += [_stop_at(changes, address) for address in some]
        return answers

    def update(self, slot: Slot, name: str, key: str, payload: bytes | None, *, restart: bool) -> str | None:
        """See `JobStore.update`."""
        others = {} if payload is None else {"payload": payload, "digest": digest(name, key, payload).encode()}
        return self._change((slot, name, key), lambda record: job_rules.updated(record, restart=restart), **others)

    def pause(self, slot: Slot, name: str, key: str) -> str | None:
        """See `JobStore.pause`."""
        return self._change((slot, name, key), job_rules.paused)

    def resume(self, slot: Slot, name: str, key: str) -> str | None:
        """See `JobStore.resume`."""
        return self._change((slot, name, key), job_rules.resumed)

    def notify_each(self, notes: Sequence[tuple[JobAddress, bytes]], limit: int) -> list[Fate]:
        """See `JobStore.notify_each`."""
        answers: list[Fate] = []
        for portion in portions(notes, lambda note: len(note[1])):
            for some in chunks(portion, AT_ONCE):
                with changes_in(self._database, self._scope, [address[0] for address, _ in some]) as changes:
                    changes.read_addresses([address for address, _ in some])
                    inboxes = Inboxes(changes, limit)
                    answers += [inboxes.notify(address, payload) for address, payload in some]
                    inboxes.write()
        return answers

    def _change(self, address: JobAddress, change: Callable[[JobRecord], JobRecord], **others: bytes) -> str | None:
        with changes_in(self._database, self._scope, [address[0]]) as changes:
            changes.read_addresses([address])
            job = changes.at(address)
            if job is None or not job_rules.changeable(job.record):
                return None
            after = change(job.record)
            if after != job.record or others:
                changes.put(after, **others)
                changes.slots.signal(address[0])
            return job.record.id


def stop(changes: Changes, job: Stored) -> None:
    """Stop a job, and signal its slot."""
    after = job_rules.stopped(job.record)
    if after is None:
        changes.remove(job.record, STOPPED)
    else:
        changes.put(after)
    changes.slots.signal(job.record.slot)


def _stop_at(changes: Changes, address: JobAddress) -> str | None:
    job = changes.at(address)
    if job is None:
        return None
    stop(changes, job)
    return job.record.id
