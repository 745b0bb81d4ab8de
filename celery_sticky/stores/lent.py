"""A pool of store clients: each is lent to one caller at a time, and never to a fork of the process that opened it."""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar


class Closing(Protocol):
    """An object that can be closed."""

    def close(self) -> None:
        """Close every connection."""


Lent = TypeVar("Lent", bound=Closing)


class Clients(Generic[Lent]):
    """The clients of a process, by keyspace. Any thread may use it, also after a fork."""

    def __init__(self, open_one: Callable[[str], Lent]) -> None:
        self._open_one = open_one
        self._idle: dict[tuple[int, str], deque[Lent]] = defaultdict(deque)

    @contextmanager
    def lend(self, keyspace: str) -> Iterator[Lent]:
        """Lend a client for the duration of a block; close it if the block raises."""
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
        """Close the clients that are not lent; lent ones stay open."""
        while self._idle:
            for client in self._idle.popitem()[1]:
                client.close()
