"""What is kept for a while for those who wait or ask again: outcomes of starts, and errors of stops."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from celery_sticky.sql import Database, Runner
from celery_sticky.sql.dialects.base import Dialect
from celery_sticky.sql.text import CHUNK, chunks, marks, portions, values
from celery_sticky.stores.jobs import DispatchOutcome

START, STOP = 0, 1
"""The kinds of answers: the outcome of a start, and the error that a stop raised."""
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.25
"""Seconds between two looks of a caller who waits for an outcome."""
PRUNE_EVERY = 60.0
"""Seconds between two removals of expired answers by one client."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to be kept."""

    kind: int
    id: str
    """The dispatch of the job."""
    identity: str
    error: str
    ttl: float
    """Seconds for which it is kept."""


def write_answers(inside: Runner, dialect: Dialect, scope: bytes, answers: Collection[Answer], now: float) -> None:
    """Keep answers; a later one of the same kind and id replaces an earlier one. `now` is the database's clock."""
    rows = [
        (scope, one.kind, one.id.encode(), one.identity.encode(), one.error.encode(), now + one.ttl)
        for one in sorted({(one.kind, one.id): one for one in answers}.values(), key=lambda one: (one.kind, one.id))
    ]
    end = dialect.upsert(["scope", "kind", "id"], ["identity", "error", "expires"])
    for some in portions(rows, lambda row: len(row[4])):
        text, said = values(some)
        inside.run(f"INSERT INTO {{job_answer}} (scope, kind, id, identity, error, expires) VALUES {text}{end}", said)


class Answers:
    """The answers of one keyspace."""

    def __init__(self, database: Database, scope: bytes) -> None:
        self._database, self._scope = database, scope
        self._prune_at = 0.0

    def outcome(self, job_id: str, timeout: float) -> DispatchOutcome | None:
        """See `JobStore.outcome`."""
        deadline, pause = time.monotonic() + timeout, FIRST_PAUSE
        while True:
            error = self._read(START, job_id)
            left = deadline - time.monotonic()
            if error is not None or left <= 0:
                return None if error is None else DispatchOutcome(error)
            time.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)

    def stop_error(self, job_id: str) -> str:
        """See `JobStore.stop_error`."""
        return self._read(STOP, job_id) or ""

    def prune(self) -> None:
        """Remove some of those that have expired, now and then; dispatches call this."""
        if time.monotonic() < self._prune_at:
            return
        expired = (
            "SELECT expires, kind, id FROM {job_answer} WHERE scope = %s "
            f"AND expires <= (SELECT {self._database.dialect.clock}) ORDER BY expires LIMIT %s"
        )
        rows = self._database.rows(expired, [self._scope, CHUNK])
        keys = [(self._scope, kind, bytes(job_id), expires) for expires, kind, job_id in rows]
        if keys:
            columns = ("scope name", "kind", "id key", "expires double")
            self._database.run(*self._database.dialect.delete("{job_answer}", columns, sorted(keys)))
        self._prune_at = time.monotonic() + (PRUNE_EVERY if len(keys) < CHUNK else 0.0)

    def _read(self, kind: int, job_id: str) -> str | None:
        statement = (
            "SELECT error FROM {job_answer} WHERE scope = %s AND kind = %s AND id = %s "
            f"AND expires > {self._database.dialect.clock}"
        )
        rows = self._database.rows(statement, [self._scope, kind, job_id.encode()])
        return bytes(rows[0][0]).decode() if rows else None


def outcomes(
    inside: Runner, dialect: Dialect, scope: bytes, ids: Collection[str]
) -> dict[str, tuple[str, DispatchOutcome | None]]:
    """Return identity and outcome of the starts of these dispatches; None: it has expired."""
    found: dict[str, tuple[str, DispatchOutcome | None]] = {}
    for some in chunks(sorted(job_id.encode() for job_id in ids)):
        statement = (
            f"SELECT id, identity, error, expires > {dialect.clock} FROM {{job_answer}} "
            f"WHERE scope = %s AND kind = %s AND id IN {marks(len(some))}"
        )
        for job_id, identity, error, kept in inside.rows(statement, [scope, START, *some]):
            told = DispatchOutcome(bytes(error).decode()) if kept else None
            found[bytes(job_id).decode()] = bytes(identity).decode(), told
    return found


def forget_outcomes(inside: Runner, dialect: Dialect, scope: bytes, ids: Collection[str]) -> None:
    """Delete the outcomes of these dispatches."""
    for some in chunks(sorted((scope, START, job_id.encode()) for job_id in ids)):
        inside.run(*dialect.delete("{job_answer}", ("scope name", "kind", "id key"), some))
