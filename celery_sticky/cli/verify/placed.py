"""The placed keyspace that a run may use: its variants differ in the treatment of unpinned keys."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from celery_sticky.keyspace import Keyspace, jump

NAME = "placed"
"""Name of the placed keyspace."""
SHARE = 4
"""Workers may pin one in this many keys."""


class Placed(StrEnum):
    """Destination of keys that no worker has pinned."""

    JUMP = "jump"
    """They go to the worker that `jump` returns."""
    SLOT = "slot"
    """They go to the owner of their slot."""
    REFUSE = "refuse"
    """Sends to them are refused."""


def make_keyspace(placed: Placed) -> Keyspace:
    """Return the keyspace of a run. It keeps every buried message, because the checker reads why tasks did not run."""
    if placed is Placed.JUMP:
        return Keyspace(NAME, assign=jump, pins=True)
    return Keyspace(NAME, pins=True, unpinned=placed.value, dead_limit=0, dead_ttl=0.0)


def to_pin(placed: Placed, keys: Iterable[str]) -> list[str]:
    """Return the keys that workers may pin: all of them if sends to unpinned keys are refused."""
    chosen = list(keys)
    return chosen if placed is Placed.REFUSE else chosen[::SHARE]
