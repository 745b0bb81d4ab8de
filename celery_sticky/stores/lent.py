"""Clients of a store that are lent out: to one caller at a time, and never to a forked child of who has opened them."""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar


class Closing(Protocol):
    """What can be closed."""

    def close(self) -> None:
        """Let go of every connection."""


Lent = TypeVar("Lent", bound=Closing)


class Clients(Generic[Lent]):
    """Those of a process, by keyspace. Any thread may use it, also after a fork."""

    def __init__(self, open_one: Callable[[str], Lent]) -> None:
        self._open_one = open_one
        self._idle: dict[tuple[int, str], deque[Lent]] = defaultdict(deque)

    @contextmanager
    def lend(self, keyspace: str) -> Iterator[Lent]:
        """Lend a client for the length of a block; one that the block leaves with an error is closed."""
        idle = self._idle[os.getpid(), keyspace]
        try:
            client = idle.pop()
        except IndexError:
            client = self._open_one(keyspace)
        try:
            yield client
        except BaseException:
            client.close()
            raise
        idle.append(client)

    def close(self) -> None:
        """Close those that are not lent. Others may still be."""
        while self._idle:
            for client in self._idle.popitem()[1]:
                client.close()
