"""All jobs of a keyspace, read a page at a time in the order of their ids, which never change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from celery_sticky.slots import Slot
from celery_sticky.sql import Database
from celery_sticky.sql.link import Row
from celery_sticky.sql.text import marks, portions
from celery_sticky.stores import job_rules
from celery_sticky.stores.jobs import JobAddress, JobCounts, JobGroup, JobRecord, JobState
from celery_sticky.stores.sql.jobs.rows import WHOLE, columns, slot_name, slot_of, stored

PAGE = 1000
"""Rows of a page, without payloads."""
AT_ADDRESS = "j.scope = %s AND j.slot = %s AND j.name = %s AND j.job_key = %s"


class Survey:
    """The verbs for one keyspace."""

    def __init__(self, database: Database, scope: bytes) -> None:
        self._database, self._scope = database, scope

    def find(self, slot: Slot, name: str, key: str) -> JobRecord | None:
        """See `JobStore.find`."""
        found = self._whole(AT_ADDRESS, [slot_name(slot), name.encode(), key.encode()])
        return found[0] if found else None

    def records(self, name: str | None, key: str | None, slot: Slot | None) -> Sequence[JobRecord]:
        """See `JobStore.records`."""
        wanted: list[tuple[bytes, int]] = []
        for job_id, at, its_name, its_key, size in self._pages("slot, name, job_key, LENGTH(payload)"):
            address: JobAddress = slot_of(at), bytes(its_name).decode(), bytes(its_key).decode()
            if slot in (None, address[0]) and name in (None, address[1]) and key in (None, address[2]):
                wanted.append((bytes(job_id), size))
        found: list[JobRecord] = []
        for some in portions(wanted, lambda one: one[1]):
            found += self._whole(f"j.scope = %s AND j.id IN {marks(len(some))}", [job_id for job_id, _ in some])
        return found

    def counts(self) -> JobCounts:
        """See `JobStore.counts`."""
        groups: dict[Row, JobGroup] = {}
        facts = "slot, state, worker, epoch, failures, apart, name, job_key"
        for _, *row in self._pages(facts):
            group = _group(*row)
            said = (group.slot, group.state, group.worker, group.epoch, group.failures, group.apart)
            groups[said] = replace(group, count=groups[said].count + 1) if said in groups else group
        [(dead,)] = self._database.rows("SELECT COUNT(*) FROM {job_dead} WHERE scope = %s", [self._scope])
        return JobCounts(list(groups.values()), int(dead))

    def keys(self, name: str) -> Mapping[str, str]:
        """See `JobStore.keys`."""
        return {
            bytes(key).decode(): bytes(text).decode()
            for _, its_name, key, state, text in self._pages("name, job_key, state, digest")
            if bytes(its_name).decode() == name and bytes(state).decode() != JobState.STOPPING
        }

    def ending(self) -> int:
        """See `JobStore.ending`."""
        statement = "SELECT COUNT(*) FROM {job} WHERE scope = %s AND waits >= 2"
        return int(self._database.rows(statement, [self._scope])[0][0])

    def _pages(self, names: str) -> Iterator[Row]:
        """Yield id and these columns of every job."""
        last: bytes | None = b""
        while last is not None:
            statement = f"SELECT id, {names} FROM {{job}} WHERE scope = %s AND id > %s ORDER BY id LIMIT %s"
            rows = self._database.rows(statement, [self._scope, last, PAGE])
            yield from rows
            last = bytes(rows[-1][0]) if len(rows) == PAGE else None

    def _whole(self, where: str, said: Sequence[object]) -> list[JobRecord]:
        statement = f"SELECT {columns(WHOLE, 'j')} FROM {{job}} j WHERE {where}"
        return [stored(row).record for row in self._database.rows(statement, [self._scope, *said])]


def _group(
    slot: bytes, state: bytes, worker: bytes, epoch: int, failures: int, apart: int, name: bytes, key: bytes
) -> JobGroup:
    """Return a group of one job."""
    return job_rules.group(
        slot_of(slot),
        JobState(bytes(state).decode()),
        bytes(worker).decode(),
        epoch,
        failures,
        bool(apart),
        bytes(name).decode(),
        bytes(key).decode(),
    )
