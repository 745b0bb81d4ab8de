"""What a worker may trust, in memory that its forked children share: one deadline and the open slots of each keyspace.

Written by the member thread alone. The clock is `CLOCK_BOOTTIME`, which also counts while the machine is suspended.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Mapping

_HEAD = struct.Struct("=dQ")

NEVER = float("-inf")


def boottime() -> float:
    """Return seconds on a clock that never stops or steps, the same in every process of this machine."""
    return time.clock_gettime(_CLOCK)


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Lease:
    """Deadlines and open slots by keyspace. Make it before the pool forks."""

    def __init__(self, keyspaces: Mapping[str, int]) -> None:
        self._slots = dict(keyspaces)
        self._at: dict[str, int] = {}
        size = 0
        for keyspace, slots in self._slots.items():
            self._at[keyspace] = size
            size += _HEAD.size + (slots + 7) // 8 * 8  # aligned, so that no reader sees half a number
        self._memory = mmap.mmap(-1, max(size, 1))
        self._closed = False
        for keyspace in self._slots:
            self.grant(keyspace, NEVER, 0)

    def grant(self, keyspace: str, until: float, term: int) -> None:
        """Trust this membership (`term` counts them) until then; an earlier one is trusted no more."""
        _HEAD.pack_into(self._memory, self._at[keyspace], NEVER if self._closed else until, term)

    def close(self) -> None:
        """Trust nothing from now on: this process ends."""
        self._closed = True
        for keyspace in self._slots:
            self.grant(keyspace, NEVER, self.term(keyspace))

    def until(self, keyspace: str) -> float:
        """Return when trust ends."""
        until: float = _HEAD.unpack_from(self._memory, self._at[keyspace])[0]
        return until

    def term(self, keyspace: str) -> int:
        """Return which membership is trusted."""
        term: int = _HEAD.unpack_from(self._memory, self._at[keyspace])[1]
        return term

    def trusted(self, keyspace: str, term: int | None = None) -> bool:
        """Whether trust lasts, in this membership if one is named."""
        if keyspace not in self._at:
            return False
        until, current = _HEAD.unpack_from(self._memory, self._at[keyspace])
        return boottime() < until and (term is None or term == current)

    def mark(self, keyspace: str, slot: int, *, open_here: bool) -> None:
        """Note that a slot is open here, or no more."""
        self._memory[self._at[keyspace] + _HEAD.size + slot] = open_here

    def owns(self, keyspace: str, slot: int) -> bool:
        """Whether the slot is open here and the lease is trusted."""
        if not self.trusted(keyspace) or not 0 <= slot < self._slots[keyspace]:
            return False
        return self._memory[self._at[keyspace] + _HEAD.size + slot] == 1
