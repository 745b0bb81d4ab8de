"""How queues and keyspaces are named in tables: queues by a hash of their name, so that a sender looks nothing up."""

from __future__ import annotations

from functools import lru_cache

from celery_sticky.keys import hash_key, queue_name
from celery_sticky.slots import Slot


@lru_cache(maxsize=65_536)
def queue_number(name: str) -> int:
    """Return the number of a queue: 64 bits of a hash of its name, as a signed integer."""
    number = hash_key(name.encode())
    return number - (1 << 64) if number >> 63 else number


def slot_number(keyspace: str, slot: Slot, prefix: str) -> int:
    """Return the number of a slot queue."""
    return queue_number(queue_name(keyspace, slot, prefix))


def keyspace_name(keyspace: str, prefix: str) -> bytes:
    """Return the name under which a keyspace's buried messages stand."""
    return f"{prefix}.{keyspace}".encode()
