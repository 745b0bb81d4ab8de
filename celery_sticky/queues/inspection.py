"""What operators see of slot queues: their depths, and buried messages."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from celery_sticky.slots import KeyPlace, Slot, parse_slot

_SENT_AT = re.compile(rb'"sticky": ?\{[^{}]*"at": ?([0-9]+(?:\.[0-9]+)?)')


@dataclass(frozen=True, slots=True)
class Depth:
    """The number of messages in a slot queue; None: the broker cannot say."""

    waiting: int
    deferred: int | None
    in_flight: int | None
    oldest: float | None
    """When the next message was sent, by its stamp (seconds since the epoch).

    None if there is no next message, it has no stamp, or the messages of this queue are too big to read it.
    """
    broken: str = ""
    """Which record of the slot is unusable, and why; the counts are then 0."""

    @property
    def known(self) -> int:
        """The number of messages that are known of."""
        return self.waiting + (self.deferred or 0) + (self.in_flight or 0)

    @property
    def is_empty(self) -> bool:
        """Whether there are certainly no messages."""
        return self.waiting == self.deferred == self.in_flight == 0


@dataclass(frozen=True, slots=True)
class Dead:
    """A buried message."""

    id: str
    """`<slot>-<tag>`, unique in its keyspace."""
    info: str
    """The JSON object that was passed when it was buried."""
    body: bytes | None = None
    """The envelope; None in a list."""


def sent_at(body: bytes | None) -> float | None:
    """Return when a message was sent (seconds since the epoch) from its stamp; the rest is not parsed."""
    found = _SENT_AT.search(body) if body is not None else None
    return float(found[1]) if found is not None else None


def dead_slot(dead_id: str) -> Slot | None:
    """Return the slot in a buried message's id, or None if the id is malformed."""
    slot, _, tag = dead_id.rpartition("-")
    if not (tag.isascii() and tag.isdigit()):
        return None
    found = parse_slot(slot)
    return None if isinstance(found, KeyPlace) else found


def run_of(info: str) -> str:
    """Return the run of a buried message that the ledger knows, or an empty string."""
    try:
        run = json.loads(info).get("run")
    except (ValueError, AttributeError):
        return ""
    return run if isinstance(run, str) else ""
