"""The trust of a worker in memory shared with its children: one deadline and the open slots of each keyspace.

Forked children inherit the memory; others attach it by its descriptor. Only the worker's member threads write it. The
clock is `CLOCK_BOOTTIME`, which also counts while the machine is suspended.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
import weakref
from collections.abc import Mapping
from typing import Self

from celery_sticky.platform.memory_file import memory_file

_HEAD = struct.Struct("=dQ")

NEVER = float("-inf")


def boottime() -> float:
    """Return seconds on a clock that never stops or steps and is the same in every process of this machine."""
    return time.clock_gettime(_CLOCK)


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Lease:
    """Deadlines and open slots by keyspace. Create it before the pool forks. It lives as long as its process."""

    def __init__(self, keyspaces: Mapping[str, int]) -> None:
        size = self._lay_out(keyspaces)
        self.descriptor = memory_file("sticky-lease", size)
        """The file behind the memory, to pass to `attach` in another program."""
        weakref.finalize(self, os.close, self.descriptor)  # in tests a process may run many workers
        self._memory = mmap.mmap(self.descriptor, size)
        for keyspace in self._slots:
            self.grant(keyspace, NEVER, 0)

    @classmethod
    def attach(cls, descriptor: int, keyspaces: Mapping[str, int]) -> Self:
        """Return a read-only lease from the `descriptor` that another process has passed to this one.

        Raises:
            ValueError: the memory is too small for these keyspaces, so it belongs to other ones.
        """
        lease = cls.__new__(cls)
        size = lease._lay_out(keyspaces)
        lease.descriptor = descriptor
        lease._memory = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
        return lease

    def _lay_out(self, keyspaces: Mapping[str, int]) -> int:
        self._slots = dict(keyspaces)
        self._at: dict[str, int] = {}
        self._closed = False
        size = 0
        for keyspace, slots in self._slots.items():
            self._at[keyspace] = size
            size += _HEAD.size + (slots + 7) // 8 * 8  # aligned, so that no reader sees half a number
        return max(size, 1)

    def grant(self, keyspace: str, until: float, membership: int) -> None:
        """Trust the membership with the number `term` until `until`, and no earlier one."""
        _HEAD.pack_into(self._memory, self._at[keyspace], NEVER if self._closed else until, membership)

    def close(self) -> None:
        """Trust nothing from now on: this process is ending."""
        self._closed = True
        for keyspace in self._slots:
            self.grant(keyspace, NEVER, self.membership(keyspace))

    def until(self, keyspace: str) -> float:
        """Return when trust ends."""
        until: float = _HEAD.unpack_from(self._memory, self._at[keyspace])[0]
        return until

    def membership(self, keyspace: str) -> int:
        """Return the number of the trusted membership."""
        membership: int = _HEAD.unpack_from(self._memory, self._at[keyspace])[1]
        return membership

    def trusted(self, keyspace: str, membership: int | None = None, *, seconds: float = 0.0) -> bool:
        """Return whether trust lasts for so many seconds, in this membership if given."""
        if keyspace not in self._at:
            return False
        until, current = _HEAD.unpack_from(self._memory, self._at[keyspace])
        return boottime() + seconds < until and (membership is None or membership == current)

    def mark(self, keyspace: str, slot: int, *, open_here: bool) -> None:
        """Record whether a slot is open here."""
        self._memory[self._at[keyspace] + _HEAD.size + slot] = open_here

    def owns(self, keyspace: str, slot: int) -> bool:
        """Return whether the slot is open here and the lease is trusted."""
        if not self.trusted(keyspace) or not 0 <= slot < self._slots[keyspace]:
            return False
        return self._memory[self._at[keyspace] + _HEAD.size + slot] == 1
