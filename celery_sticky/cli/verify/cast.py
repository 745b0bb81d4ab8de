"""The workers that run at a point in a plan, from which faults choose their targets. This module is pure."""

from __future__ import annotations

import random
from collections.abc import Sequence

MORE = 2
"""Maximum number of workers beyond the initial ones."""


class Cast:
    """Keeps track of the running workers while a plan is made."""

    def __init__(self, workers: Sequence[str], draw: random.Random, eviction_timeout: float, least: int) -> None:
        self._there, self.draw, self._eviction_timeout = list(workers), draw, eviction_timeout
        self._most, self._named, self._numbers = len(workers) + MORE, len(workers), 0
        self.least = least
        """Minimum number of workers after a `leave`, so that the other faults stay possible."""

    @property
    def everybody(self) -> tuple[str, ...]:
        """The running workers."""
        return tuple(self._there)

    @property
    def full(self) -> bool:
        """Whether no further worker may join."""
        return len(self._there) >= self._most

    def one(self) -> str:
        """Choose a running worker."""
        return self.draw.choice(self._there)

    def some(self, number: int) -> tuple[str, ...]:
        """Choose this many running workers."""
        return tuple(self.draw.sample(self._there, number))

    def replaced(self, name: str) -> str:
        """Return the name under which a worker restarts: its own or a new one."""
        again = name if self.draw.random() < 0.5 else self._new()
        self._there[self._there.index(name)] = again
        return again

    def all_replaced(self) -> tuple[str, ...]:
        """Return the new names of all workers."""
        self._there[:] = [self._new() for _ in self._there]
        return tuple(self._there)

    def joined(self) -> str:
        """Return the name of a worker that joins."""
        name = self._new()
        self._there.append(name)
        return name

    def left(self) -> str:
        """Choose a worker that leaves."""
        name = self.one()
        self._there.remove(name)
        return name

    def number(self) -> int:
        """Return the next number, from 1."""
        self._numbers += 1
        return self._numbers

    def seconds(self, least: float, most: float) -> float:
        """Draw a length in seconds."""
        return round(self.draw.uniform(least, most), 1)

    def past_the_lease(self) -> float:
        """Draw a length that is longer than a lease."""
        return round(self._eviction_timeout + self.draw.uniform(0.3, 1.5), 1)

    def _new(self) -> str:
        self._named += 1
        return f"w{self._named}"


def names_of(workers: int) -> tuple[str, ...]:
    """Return the names of the initial workers."""
    return tuple(f"w{number}" for number in range(1, workers + 1))
