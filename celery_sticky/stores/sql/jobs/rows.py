"""The rows of the table `job`, and the records that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery_sticky.slots import Slot, WorkerQueue, parse_slot
from celery_sticky.sql.link import Row
from celery_sticky.stores import job_rules
from celery_sticky.stores.jobs import JobRecord, JobState, digest

FRESH, ENDING = 1, 2
"""The bits of `waits`: a dispatcher waits for its start, and those who shut down wait for its end (`ending`)."""
COLUMNS = (
    *("id", "slot", "name", "job_key", "state", "waits", "attempt", "epoch", "worker", "error", "created", "version"),
    *("generation", "durable", "failures", "strikes", "apart", "retry_at", "identity", "outcome_ttl"),
    *("saved_attempt", "saved_number"),
)
"""The columns that are read to change a record."""
WHOLE = (*COLUMNS, "payload", "saved")
"""The columns of a `JobRecord`."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A row."""

    record: JobRecord
    """Without payload and checkpoint, unless the row was read whole."""
    identity: str
    outcome_ttl: float
    """Seconds for which its dispatcher wants the outcome to be kept."""
    saved_at: tuple[int, int] = (0, 0)
    """Attempt and number of the last checkpoint."""


def columns(names: tuple[str, ...], table: str) -> str:
    """Return the columns of a table, as a SELECT names them."""
    return ", ".join(f"{table}.{name}" for name in names)


def slot_name(slot: Slot) -> bytes:
    """Return the text of a slot, as the tables have it."""
    return str(slot).encode()


def slot_of(name: bytes) -> Slot:
    """Return the slot with this text."""
    slot = parse_slot(bytes(name).decode())
    if slot is None or isinstance(slot, WorkerQueue):
        raise ValueError(f"{bytes(name)!r} is no slot of jobs")
    return slot


def stored(row: Row) -> Stored:
    """Return what a row with the columns `COLUMNS` or `WHOLE` stands for."""
    at = dict(zip(WHOLE, row, strict=False))
    saved = at.get("saved")
    record = JobRecord(
        name=bytes(at["name"]).decode(),
        key=bytes(at["job_key"]).decode(),
        slot=slot_of(at["slot"]),
        id=bytes(at["id"]).decode(),
        payload=bytes(at.get("payload", b"")),
        state=JobState(bytes(at["state"]).decode()),
        fresh=bool(at["waits"] & FRESH),
        attempt=at["attempt"],
        epoch=at["epoch"],
        worker=bytes(at["worker"]).decode(),
        error=bytes(at["error"]).decode(),
        created=at["created"],
        version=at["version"],
        generation=at["generation"],
        saved=None if saved is None else bytes(saved),
        durable=bool(at["durable"]),
        failures=at["failures"],
        strikes=at["strikes"],
        apart=bool(at["apart"]),
        retry_at=at["retry_at"],
    )
    identity, saved_at = bytes(at["identity"]).decode(), (at["saved_attempt"], at["saved_number"])
    return Stored(record, identity, at["outcome_ttl"], saved_at)


def changing(record: JobRecord) -> Mapping[str, Any]:
    """Return the values of the columns that rules change."""
    return {
        "state": record.state.value.encode(),
        "waits": FRESH * record.fresh + ENDING * job_rules.ending(record),
        "attempt": record.attempt,
        "epoch": record.epoch,
        "worker": record.worker.encode(),
        "error": record.error.encode(),
        "version": record.version,
        "generation": record.generation,
        "failures": record.failures,
        "strikes": record.strikes,
        "apart": int(record.apart),
        "retry_at": record.retry_at,
    }


def inserted(scope: bytes, one: Stored) -> Mapping[str, Any]:
    """Return the values of all columns of a new row."""
    record = one.record
    return {
        "scope": scope,
        "id": record.id.encode(),
        "slot": slot_name(record.slot),
        "name": record.name.encode(),
        "job_key": record.key.encode(),
        **changing(record),
        "created": record.created,
        "durable": int(record.durable),
        "identity": one.identity.encode(),
        "outcome_ttl": one.outcome_ttl,
        "digest": one.identity.encode(),
        "payload": record.payload,
        "saved": record.saved,
        "saved_attempt": 0,
        "saved_number": 0,
    }


def added(record: JobRecord, outcome_ttl: float) -> Stored:
    """Return the row of a job that is admitted now."""
    return Stored(record, digest(record.name, record.key, record.payload), outcome_ttl)
