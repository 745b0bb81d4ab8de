"""The bell: a process that commits something that others wait for rings it, and the ears of the others hear it.

A ring is a NOTIFY of PostgreSQL. It never stands in the transaction that writes: there it would make all commits of the
server wait for each other. It is a transaction of its own after the commit, which does not wait for the disk. A ring
names topics and carries no data: who hears it looks into the database. Rings may be lost, so nobody relies on them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from celery_sticky.keys import hash_key

BROADCAST = "b"
"""The topic of messages to all who listen to an exchange."""
DUE = "e"
"""The kind of the topics of queues that have a new message with an ETA."""
DOCUMENT, HEARTBEAT, PINS, JOBS = "d", "h", "p", "j"
"""Kinds of topics of a keyspace: its ownership document, announced heartbeats, moved pins, signalled jobs."""
PAYLOAD = 4000
"""Most bytes of one ring; PostgreSQL takes less than 8,000."""

Topic = str
"""A short word of ASCII characters without spaces."""


class Ring(NamedTuple):
    """One ring."""

    ringer: str
    """Who has rung: see `Database.ringer`."""
    topics: Collection[Topic]


def queue_topic(queue: int) -> Topic:
    """Return the topic of a queue, given by its number: it has a new message."""
    return f"q{queue}"


def due_topic(queue: int) -> Topic:
    """Return the topic of a queue, given by its number: it has a new message with an ETA."""
    return f"{DUE}{queue}"


def keyspace_topic(kind: str, scope: bytes) -> Topic:
    """Return the topic of one kind for a keyspace."""
    return f"{kind}{hash_key(scope)}"


def payloads(ring: Ring) -> Iterator[str]:
    """Yield the payloads of a ring: more than one if it has very many topics."""
    words, size = [ring.ringer], len(ring.ringer)
    for topic in ring.topics:
        if size + len(topic) >= PAYLOAD:
            yield " ".join(words)
            words, size = [ring.ringer], len(ring.ringer)
        words.append(topic)
        size += len(topic) + 1
    yield " ".join(words)


def read(payload: str) -> Ring:
    """Read a payload."""
    ringer, *topics = payload.split(" ")
    return Ring(ringer, topics)
