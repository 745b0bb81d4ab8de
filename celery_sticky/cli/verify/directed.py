"""Keyspaces that direct keys, as a run may have one: what becomes of a key that no worker has pinned."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from celery_sticky.assignment import Keyspace, jump

NAME = "directed"
"""Of the keyspace."""
SHARE = 4
"""Of so many keys workers may pin one."""


class Directed(StrEnum):
    """Where the keys go that nobody has pinned."""

    JUMP = "jump"
    """To the worker that `jump` names."""
    SLOT = "slot"
    """To the owner of their slot."""
    REFUSE = "refuse"
    """Nowhere: they cannot be sent to."""


def make_keyspace(directed: Directed) -> Keyspace:
    """Return the keyspace of a run."""
    if directed is Directed.JUMP:
        return Keyspace(NAME, assign=jump, pins=True)
    return Keyspace(NAME, pins=True, unpinned=directed.value)


def to_pin(directed: Directed, keys: Iterable[str]) -> list[str]:
    """Return which of the keys workers may pin: all of them where the others could not be sent to."""
    chosen = list(keys)
    return chosen if directed is Directed.REFUSE else chosen[::SHARE]
