"""Puts messages into queues: one row each, in the order given."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence

from celery_sticky.queues.guarantees import FULL
from celery_sticky.queues.sql.names import queue_number
from celery_sticky.sql import Database
from celery_sticky.sql.bell import queue_topic
from celery_sticky.sql.text import chunks, values

INSERT = "INSERT INTO {message} (queue, priority, body) VALUES "


def publish(database: Database, queue: str, bodies: Sequence[bytes], priority: int = 0) -> None:
    """Add messages to the back of a queue, given by its name, in one transaction.

    A priority is rounded down to one that exists.

    Raises:
        BrokerUnavailable: they may be in the queue or not.
    """
    steps = FULL.priorities
    step = steps[bisect(steps, max(priority, 0)) - 1]
    number = queue_number(queue)
    inserts = [values([(number, step, body) for body in some]) for some in chunks(bodies)]
    ring = [queue_topic(number)]
    if len(inserts) == 1:
        database.run(INSERT + inserts[0][0], inserts[0][1], ring=ring)
        return
    with database.transaction() as inside:
        for rows, said in inserts:
            inside.run(INSERT + rows, said, ring=ring)
