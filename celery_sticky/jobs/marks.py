"""Marks: which runs a job host executes at this moment, in memory that its worker reads after the host's death.

One mark is for the event loop and one for each thread that calls handlers. A mark is the ref of a run, or 0.
"""

from __future__ import annotations

import mmap
import os

from celery_sticky.platform.memory_file import memory_file

LOOP = 0
"""The mark of the event loop; the others are those of threads."""
_SIZE = 8


class Marks:
    """The marks of one host, written in the host."""

    def __init__(self, memory: memoryview) -> None:
        self.written = memory
        """One number for each mark, to be written by its index: an attribute, because it is set at each step."""

    @classmethod
    def attach(cls, descriptor: int) -> Marks:
        """Return the marks that the worker created."""
        size = os.fstat(descriptor).st_size
        return cls(memoryview(mmap.mmap(descriptor, size)).cast("q"))

    @classmethod
    def unread(cls, threads: int) -> Marks:
        """Return marks that nobody reads, for a loop and this many threads."""
        return cls(memoryview(bytearray(_SIZE * (threads + 1))).cast("q"))


class ReadMarks:
    """The marks of one host, read in its worker."""

    def __init__(self, threads: int) -> None:
        """Create the marks of an event loop and of so many threads."""
        self.descriptor = memory_file("sticky-marks", _SIZE * (threads + 1))

    def executed(self) -> frozenset[int]:
        """Return the runs that the host executes now, or executed when it died."""
        size = os.fstat(self.descriptor).st_size
        written = memoryview(os.pread(self.descriptor, size, 0)).cast("q")
        return frozenset(written) - {0}

    def close(self) -> None:
        """Free the memory."""
        os.close(self.descriptor)
