"""Keyspaces that direct keys, as a run may have one: what becomes of a key that no worker has pinned."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from celery_sticky.keyspace import Keyspace, jump

NAME = "placed"
"""Of the keyspace."""
SHARE = 4
"""Of so many keys workers may pin one."""


class Placed(StrEnum):
    """Where the keys go that nobody has pinned."""

    JUMP = "jump"
    """To the worker that `jump` names."""
    SLOT = "slot"
    """To the owner of their slot."""
    REFUSE = "refuse"
    """Nowhere: they cannot be sent to."""


def make_keyspace(placed: Placed) -> Keyspace:
    """Return the keyspace of a run."""
    if placed is Placed.JUMP:
        return Keyspace(NAME, assign=jump, pins=True)
    return Keyspace(NAME, pins=True, unpinned=placed.value)


def to_pin(placed: Placed, keys: Iterable[str]) -> list[str]:
    """Return which of the keys workers may pin: all of them where the others could not be sent to."""
    chosen = list(keys)
    return chosen if placed is Placed.REFUSE else chosen[::SHARE]
