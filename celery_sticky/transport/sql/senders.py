"""The connections over which a process publishes and declares: few, however many connections Celery's pool has.

All transports of one process that have the same database share them. A connection that has a pump closes those that
are not used: a worker may never send anything.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

from celery_sticky.platform.native import lock_domain
from celery_sticky.sql import Database

MOST = 2
"""Connections of one process to one database. A third sender waits until one of them is free."""
UNUSED_SECONDS = 5.0
"""Seconds after which `rest` closes a connection that nobody has used."""


class Senders:
    """The connections to one database, lent to one thread at a time."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        """`database` is the first of the connections; the others are made like it."""
        self._open_one, self._clock = database.another, clock
        self._free = threading.Semaphore(MOST)
        self._lock = threading.Lock()
        self._idle: list[tuple[float, Database]] = [(clock(), database)]
        """Connections that nobody uses, and since when."""

    @contextmanager
    def lend(self) -> Iterator[Database]:
        """Lend a connection."""
        with self._free:
            with self._lock:
                database = self._idle.pop()[1] if self._idle else self._open_one()
            try:
                yield database
            finally:
                with self._lock:
                    self._idle.append((self._clock(), database))

    def rest(self, unused: float = UNUSED_SECONDS) -> None:
        """Close the connections that were not used for so many seconds."""
        now = self._clock()
        with self._lock:
            old = [database for since, database in self._idle if now - since >= unused]
            self._idle = [(since, database) for since, database in self._idle if now - since < unused]
        for database in old:
            database.close()


_senders: dict[Hashable, Senders] = {}
_users: dict[Hashable, weakref.WeakSet[object]] = {}


def senders_of(user: object, key: Hashable, database: Callable[[], Database]) -> Senders:
    """Return what all transports of this process with the same `key` share. Each `user` leaves it when it is closed."""
    key = _here(key)
    _users.setdefault(key, weakref.WeakSet()).add(user)
    return _senders.get(key) or _senders.setdefault(key, Senders(database()))


def leave(user: object, key: Hashable) -> None:
    """Note that a transport sends no more; the last one closes the connections that are idle."""
    key = _here(key)
    users = _users.get(key)
    if users is None:
        return
    users.discard(user)
    if not users and (senders := _senders.get(key)) is not None:
        senders.rest(0.0)


def _here(key: Hashable) -> Hashable:
    """Return the key for this process: a child of a fork has connections of its own."""
    return (os.getpid(), lock_domain(), key)
