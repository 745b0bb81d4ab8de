"""Runs that must be claimed in the ledger before they start. Pure.

An entry with a `run` starts only once the broker has granted it. At most `most` granted entries wait for their start at
a time: if the process dies, these runs are lost although nothing of them ran. The next message of a key is claimed
while the end of the one before it is on its way, so that one trip serves both.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_sticky.delivery.gate import Entry


class Grant(StrEnum):
    """Where the claim of an entry stands."""

    NONE = "none"
    ASKED = "asked"
    HELD = "held"


class RunClaims:
    """The entries whose turn has come, or comes next, and whose run is not claimed."""

    def __init__(self) -> None:
        self._waiting: dict[Entry, None] = {}
        self._ahead: dict[Entry, None] = {}
        """Entries with `once` whose run is claimed, or about to be, and that have not begun as far as is known."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @staticmethod
    def needs(entry: Entry) -> bool:
        """Return whether the entry may not start yet."""
        return entry.run is not None and entry.grant is not Grant.HELD

    def add(self, entry: Entry) -> None:
        """Have the run of an entry claimed, unless that is on its way or not needed."""
        if entry.run is not None and entry.grant is Grant.NONE:
            self._waiting[entry] = None

    def take(self, most: int) -> Iterator[Entry]:
        """Yield the entries to claim now, each once."""
        self._ahead = {entry: None for entry in self._ahead if _counts(entry)}
        for entry in list(self._waiting):
            if not entry.may_be_claimed:
                del self._waiting[entry]
                continue
            assert entry.run is not None
            if entry.run.once:
                if len(self._ahead) >= most:
                    continue
                self._ahead[entry] = None
            del self._waiting[entry]
            entry.grant = Grant.ASKED
            yield entry

    def again(self, entry: Entry) -> None:
        """Have the run of an entry claimed again: it is not certain that its message is ours."""
        self.disown(entry)
        entry.grant = Grant.NONE

    @staticmethod
    def disown(entry: Entry) -> None:
        """Note that this delivery may hold the claim although its run has not started."""
        if entry.grant is not Grant.NONE and entry.tag not in entry.claimants:
            entry.claimants = (*entry.claimants, entry.tag)


def _counts(entry: Entry) -> bool:
    return entry.here and not entry.began and entry.grant is not Grant.NONE and not entry.resting
