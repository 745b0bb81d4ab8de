"""The jobs of a keyspace in Redis, under `<prefix>:<keyspace>:jobs`. `record.lua` lists the keys."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from celery_sticky.errors import Fenced, StoreUnavailable
from celery_sticky.keys import KEYED, Slot
from celery_sticky.redis_clients import translate_errors
from celery_sticky.stores.jobs import (
    SEEN_NOTES,
    SEEN_RECORDS,
    Admission,
    DispatchOutcome,
    Fate,
    JobPlaces,
    JobRecord,
    JobState,
    NewJob,
    Note,
    Report,
    Reserved,
    SlotJobs,
)
from celery_sticky.stores.redis.client import Client, Server, script

VERBS = (
    "admit",
    "stop",
    "notify",
    "records",
    "keys",
    "close",
    "claim_tick",
    "open",
    "look",
    "places",
    "reserve",
    "settle",
)
TYPES = {"queued": "set", "revisions": "hash", "places": "hash", "fences": "hash", "ticks": "hash", "closed": "string"}
"""The keys that all slots share. For keys of a single slot, the keeper reports which slot it is."""


class RedisJobs(Client[Slot]):
    """See `celery_sticky.stores.jobs.JobStore`."""

    def __init__(self, server: Server, keyspace: str) -> None:
        self._root = f"{server.prefix}:{keyspace}:jobs"
        self._longest_step = server.socket_timeout / 2
        scripts = {verb: script(__package__, "record", verb) for verb in VERBS}
        types = {f"{self._root}:{name}": kind for name, kind in TYPES.items()}
        super().__init__(server, self._root, scripts, types)

    def admit(self, job: NewJob, *, max_queued: int, outcome_ttl: float) -> tuple[Admission, DispatchOutcome | None]:
        """See `JobStore.admit`."""
        dispatch = [max_queued, _milliseconds(outcome_ttl), _identity(job)]
        fields = [job.slot, job.id, job.name, job.key, job.payload]
        admission, error = self._ask("admit", self._channel, *dispatch, *fields)
        return Admission(admission.decode()), None if error is None else DispatchOutcome(error.decode())

    def outcome(self, job_id: str, timeout: float) -> DispatchOutcome | None:
        """See `JobStore.outcome`. It waits in steps, because the client takes a longer silence for a lost server."""
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            outcome = self._await_outcome(job_id, min(left, self._longest_step))
            if outcome is not None or left <= self._longest_step:
                return outcome

    def stop(self, slot: Slot, name: str, key: str) -> bool:
        """See `JobStore.stop`."""
        return bool(self._ask("stop", self._channel, slot, name, key) == 1)

    def notify(self, slot: Slot, name: str, key: str, payload: bytes, *, limit: int) -> Fate:
        """See `JobStore.notify`."""
        return Fate(self._ask("notify", self._channel, slot, name, key, payload, limit).decode())

    def records(self, name: str | None = None, key: str | None = None, slot: Slot | None = None) -> Sequence[JobRecord]:
        """See `JobStore.records`."""
        found = map(_record, self._ask("records", "" if slot is None else slot))
        return [record for record in found if name in (None, record.name) and key in (None, record.key)]

    def keys(self, name: str) -> Collection[str]:
        """See `JobStore.keys`."""
        return {key.decode() for key in self._ask("keys", name)}

    def close_keyspace(self, *, closed: bool) -> None:
        """See `JobStore.close_keyspace`."""
        self._ask("close", self._channel, int(closed))

    def claim_tick(self, name: str, number: int) -> bool:
        """See `JobStore.claim_tick`."""
        return bool(self._ask("claim_tick", name, number) == 1)

    def open(self, slot: Slot, epoch: int) -> None:
        """See `JobStore.open`."""
        _check(self._ask("open", slot, epoch))

    def look(self, known: Mapping[Slot, int]) -> Mapping[Slot, SlotJobs]:
        """See `JobStore.look`."""
        flat = iter(self._ask("look", SEEN_NOTES, SEEN_RECORDS, *known, *known.values()))
        return {
            _slot(slot): _slot_jobs(revision, [_record(record) for record in records], notes)
            for slot, revision, records, notes in zip(flat, flat, flat, flat, strict=True)
        }

    def places(self, known: int) -> JobPlaces | None:
        """See `JobStore.places`."""
        if (reply := self._ask("places", known)) is None:
            return None
        revision, *flat = reply
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return JobPlaces(int(revision), {place.decode(): int(revised) for place, revised in pairs})

    def reserve(self, slot: Slot, epoch: int, worker: str, ids: Collection[str], *, known: int = 0) -> Reserved:
        """See `JobStore.reserve`."""
        fence, revision, *flat = self._ask("reserve", slot, epoch, known, worker, *ids)
        _check(fence)
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return Reserved({job_id.decode(): attempt for job_id, attempt in pairs}, int(revision))

    def settle(
        self,
        slot: Slot,
        epoch: int,
        reports: Sequence[Report],
        notes: Collection[str],
        *,
        outcome_ttl: float,
        known: int = 0,
    ) -> int:
        """See `JobStore.settle`."""
        said = chain.from_iterable((report.id, report.result.value, report.error) for report in reports)
        dropped = chain.from_iterable(note.split(" ", 1) for note in notes)
        ttl = _milliseconds(outcome_ttl)
        fence, revision = self._ask("settle", slot, epoch, known, ttl, len(notes), *dropped, *said)
        _check(fence)
        return int(revision)

    def where(self, slot: Slot) -> str:
        """See `JobStore.where`."""
        return f"{self._root}:{slot}"

    def _parse(self, payload: bytes) -> Slot | None:
        """See `Client`."""
        with suppress(UnicodeDecodeError):
            return _slot(payload) if payload.isdigit() or payload.startswith(KEYED.encode()) else None
        return None

    def _await_outcome(self, job_id: str, timeout: float) -> DispatchOutcome | None:
        with self._server.asking(self._types), translate_errors(StoreUnavailable, self._server.at):
            key, block = f"{self._root}:outcome:{job_id}", _milliseconds(timeout) if timeout > 0 else None
            told: Any = self._server.client.xread({key: 0}, count=1, block=block)
        if not told:
            return None
        [[_, [(_, fields)]]] = told
        return DispatchOutcome(fields[b"error"].decode())

    def _ask(self, verb: str, *args: Any) -> Any:
        return self._run(verb, [self._root], args)


def _check(fence: bytes | None) -> None:
    if fence is not None:
        raise Fenced(int(fence), "")


def _identity(job: NewJob) -> str:
    """Return a hash that distinguishes dispatches that have the same id."""
    return hashlib.sha256(json.dumps([job.name, job.key]).encode() + job.payload).hexdigest()


def _milliseconds(seconds: float) -> int:
    # At least 1: a wait of 0 would be endless.
    return max(1, int(seconds * 1000))


def _slot(text: bytes) -> Slot:
    return int(text) if text.isdigit() else text.decode()


def _record(fields: list[bytes]) -> JobRecord:
    name, key, slot, job_id, payload, state, fresh, attempt, epoch, worker, error, created, version = fields
    return JobRecord(
        name=name.decode(),
        key=key.decode(),
        slot=_slot(slot),
        id=job_id.decode(),
        payload=payload,
        state=JobState(state.decode()),
        fresh=fresh == b"1",
        attempt=int(attempt),
        epoch=int(epoch),
        worker=worker.decode(),
        error=error.decode(),
        created=float(created),
        version=int(version),
    )


def _slot_jobs(revision: bytes, records: Sequence[JobRecord], waiting: Sequence[Any]) -> SlotJobs:
    by_id = {record.id: record for record in records}
    notes, more = [], False
    for job_id, count, entries in waiting:
        record = by_id[job_id.decode()]
        notes += [(int(entry.partition(b"-")[0]), record, payload) for entry, (_, payload) in entries]
        more |= len(entries) < count
    notes.sort(key=lambda note: note[0])
    return SlotJobs(
        int(revision),
        tuple(records),
        tuple(Note(f"{entry}-0 {record.id}", record.name, record.key, payload) for entry, record, payload in notes),
        more,
    )
