"""The worker's memory of messages that the broker may deliver to it again.

A message is recognised by its identity (`Delivery.identity`), not by its tag: the same message gets another tag if the
broker has lost its newest data, or if another worker owned the slot meanwhile.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from celery_sticky.delivery.gate import Entry
from celery_sticky.delivery.run_claims import RunClaims
from celery_sticky.queues.base import Tag

if TYPE_CHECKING:
    from celery_sticky.delivery.state import End

T = TypeVar("T")

REMEMBERED = 10_000
"""Most messages that are remembered; the oldest note is forgotten first."""


class Starts(NamedTuple):
    """The counted starts of a message that has not started again since, and who may hold the claim of its run."""

    attempts: int | None
    start_counted: bool
    """Whether the next start is among them."""
    epoch: int
    """The slot's epoch at that time: while it lasts, no other worker can have started the message."""
    claimants: tuple[Tag, ...]
    """The deliveries of the message that may hold the claim although its run has not started."""


class MessageMemory:
    """The ends of messages that the broker does not know of, and the counted starts of others."""

    def __init__(self) -> None:
        self._ends: OrderedDict[bytes, End] = OrderedDict()
        self._starts: OrderedDict[bytes, Starts] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._ends or self._starts)

    def note_end(self, identity: bytes, end: End) -> None:
        """Remember how the task of this message ended."""
        _note(self._ends, identity, end)

    def note_starts(self, identity: bytes, entry: Entry, epoch: int) -> None:
        """Remember the counted starts and the claim of an entry that is about to be forgotten."""
        RunClaims.disown(entry)
        _note(self._starts, identity, Starts(entry.attempts, entry.start_counted, epoch, entry.claimants))

    def recall(self, identity: bytes) -> tuple[End | None, Starts | None]:
        """Return what is remembered of this message, and forget it."""
        return self._ends.pop(identity, None), self._starts.pop(identity, None)


def _note(notes: OrderedDict[bytes, T], identity: bytes, note: T) -> None:
    notes[identity] = note
    if len(notes) > REMEMBERED:
        notes.popitem(last=False)
