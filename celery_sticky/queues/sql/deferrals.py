"""Deferred messages that are due go to the back of their queue, a bounded number in one trip."""

from __future__ import annotations

from collections.abc import Collection

from celery_sticky.queues.sql.apart import check_number
from celery_sticky.queues.sql.open_slot import OpenSlot
from celery_sticky.sql import Runner
from celery_sticky.sql.dialects.base import Dialect
from celery_sticky.sql.text import chunks, marks

WAKE = 5_000
"""Most messages of one slot that one trip wakes. If more are due at once, those that are published before the next
trip come before the rest."""
WAKE_BYTES = 16 * 1024 * 1024
"""Most bytes of them, but for a single message. They stay at the server."""

DUE = "SELECT due, tag, LENGTH(body) FROM {deferred} WHERE queue = %s AND due <= %s ORDER BY due, tag LIMIT %s"
BACK = """INSERT INTO {message} (queue, priority, body) SELECT queue, priority, body FROM {deferred}
    WHERE queue = %s AND (due < %s OR due = %s AND tag <= %s) ORDER BY due, tag"""


def wake(inside: Runner, dialect: Dialect, slot: OpenSlot, now: float) -> None:
    """Move the messages of a slot that are due at `now`."""
    woken, size = list[tuple[float, int]](), 0
    for due, tag, length in inside.rows(DUE, [slot.queue, now, WAKE]):
        size += length
        if woken and size > WAKE_BYTES:
            break
        woken.append((due, tag))
    if not woken:
        return
    last, tag = woken[-1]
    inside.run(BACK, [slot.queue, last, last, tag])
    for some in chunks([(slot.queue, *key) for key in woken]):
        inside.run(*dialect.delete("{deferred}", ("queue", "due double", "tag"), some))


def next_due(inside: Runner, queues: Collection[int]) -> dict[int, float]:
    """Return when the next deferred message of each queue is due; queues without any are missing.

    Raises:
        SlotBroken: a row is unusable.
    """
    if not queues:
        return {}
    statement = f"SELECT queue, MIN(due) FROM {{deferred}} WHERE queue IN {marks(len(queues))} GROUP BY queue"
    found: dict[int, float] = {}
    for queue, due in inside.rows(statement, sorted(queues)):
        check_number("deferred", queue, "due", due)
        found[queue] = due
    return found
