"""Messages with an ETA wait in the database, and go to the back of their queue when they are due.

The tables are those of slot queues; the queues are not, because a worker puts back the deferred messages of its slots.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from celery_sticky.message import STAMP_HEADER
from celery_sticky.sql import Database, Writer
from celery_sticky.sql.bell import due_topic, queue_topic
from celery_sticky.sql.text import chunks, marks

LEAST = 0.1
"""Seconds: a message that is due sooner goes to its queue at once."""
WAKE = 200
"""Most messages that one transaction puts back."""
INSERT = "INSERT INTO {deferred} (queue, due, tag, priority, body) VALUES (%s, %s, %s, %s, %s)"
KEY = ("queue", "due double", "tag")


def due_of(headers: Mapping[str, Any]) -> float | None:
    """Return when an ordinary task is due, in seconds since the Unix epoch; None: at once, or its worker decides."""
    eta = headers.get("eta")
    if not isinstance(eta, str) or STAMP_HEADER in headers:
        return None
    try:
        due = datetime.fromisoformat(eta)
    except ValueError:
        return None
    if due.tzinfo is None:  # in the time zone of the app, which the worker knows
        return None
    return due.timestamp() if due.timestamp() > time.time() + LEAST else None


def defer(database: Writer, queue: int, due: float, priority: int, body: bytes) -> None:
    """Keep a message until it is due."""
    database.run(INSERT, [queue, due, secrets.randbits(62), priority, body], ring=[due_topic(queue)])


def due_in(database: Database, queues: Collection[int]) -> float:
    """Return the seconds until the next message of these queues is due, by the database's clock; infinite: never."""
    found = [math.inf]
    for some in chunks(sorted(queues)):
        table, said = database.dialect.table("w", ("queue",), [(queue,) for queue in some])
        first = "(SELECT t.due FROM {deferred} t WHERE t.queue = w.queue ORDER BY t.due LIMIT 1)"
        rows = database.rows(f"SELECT {first}, {database.dialect.clock} FROM {table}", said)
        found += [due - now for due, now in rows if due is not None]
    return min(found)


def put_back(database: Database, queues: Collection[int]) -> int:
    """Put messages that are due into their queues; return their number."""
    dialect = database.dialect
    where = f"queue IN {marks(len(queues))} AND due <= {dialect.clock}"
    with database.transaction() as inside:
        due = [
            (row[0], row[1], row[2])
            for row in inside.rows(
                f"SELECT t.queue, t.due, t.tag FROM {{deferred}} t WHERE {where} ORDER BY t.due, t.tag LIMIT {WAKE}"
                f"{dialect.skip}",
                sorted(queues),
            )
        ]
        for some in chunks(due):
            table, said = dialect.table("d", KEY, some)
            inside.run(
                f"INSERT INTO {{message}} (queue, priority, body) SELECT t.queue, t.priority, t.body FROM {table} "
                "JOIN {deferred} t ON t.queue = d.queue AND t.due = d.due AND t.tag = d.tag ORDER BY t.due, t.tag",
                said,
                ring={queue_topic(queue) for queue, _, _ in some},
            )
            inside.run(*dialect.delete("{deferred}", KEY, some))
    return len(due)
