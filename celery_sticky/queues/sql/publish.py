"""Puts messages into queues: one row each, in the order given."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence

from celery_sticky.queues.guarantees import FULL
from celery_sticky.queues.sql.names import queue_number
from celery_sticky.sql import Database, Runner, Writer
from celery_sticky.sql.bell import queue_topic
from celery_sticky.sql.text import chunks, values

INSERT = "INSERT INTO {message} (queue, priority, body) VALUES "


def publish(database: Database, queue: str, bodies: Sequence[bytes], priority: int = 0) -> None:
    """Add messages to the back of a queue, given by its name, in one transaction.

    Raises:
        BrokerUnavailable: they may be in the queue or not.
    """
    some, *others = chunks(bodies)
    if not others:
        insert(database, queue, some, priority)
        return
    with database.transaction() as inside:
        for one in (some, *others):
            insert(inside, queue, one, priority)


def insert(runner: Runner | Writer, queue: str, bodies: Sequence[bytes], priority: int) -> None:
    """Add messages with one statement. A priority is rounded down to one that exists."""
    steps = FULL.priorities
    step = steps[bisect(steps, max(priority, 0)) - 1]
    number = queue_number(queue)
    rows, said = values([(number, step, body) for body in bodies])
    runner.run(INSERT + rows, said, ring=[queue_topic(number)])
