"""An open SQLite file, which is closed while this process forks.

SQLite notes in memory which locks the process has on a file. A child inherits the notes, not the locks: forked in the
middle of a transaction, it would find the file locked for ever, and forked at any other time, it would read and write
without the lock that keeps other processes from removing the log. So before a fork all files are closed, between two
transactions, and each is opened again by its next statement.
"""

from __future__ import annotations

import os
import sqlite3
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from celery_sticky.platform.native import original
from celery_sticky.sql.link import Link, Parameters, Row

FORK_TIMEOUT = 5.0
"""Seconds that a fork waits for one transaction to end. A transaction of the thread that forks cannot end meanwhile."""

_files: weakref.WeakValueDictionary[int, File] = weakref.WeakValueDictionary()
_openings = count(1)
_held: list[Any] = []


class File(Link):
    """A connection that ends when the path names another file: the old one may be open for ever and read by nobody."""

    def __init__(self, open_it: Callable[[], sqlite3.Connection], path: str) -> None:
        super().__init__(None, cursor=lambda: self.raw.cursor(), placeholder="?")
        self._open_it, self._path, self._opened = open_it, path, ""
        self._lock, self._inside = _lock(), False
        self.opening = 0
        """The number of this opening, which no other of this process has."""
        with _opening:
            self._open()
            _files[id(self)] = self

    def rows(self, statement: str, said: Parameters = ()) -> list[Row]:
        """See `Link.rows`."""
        with self._undisturbed():
            return super().rows(statement, said)

    def run(self, statement: str, said: Parameters = ()) -> int:
        """See `Link.run`."""
        with self._undisturbed():
            return super().run(statement, said)

    def close(self) -> None:
        """See `Link.close`."""
        if not self._inside:
            self._lock.acquire()
        try:
            self._shut()
        finally:
            _files.pop(id(self), None)
            self._inside = False
            self._lock.release()

    def rest(self) -> None:
        """Close the file until the next statement."""
        if self._lock.acquire(timeout=FORK_TIMEOUT):
            _held.append(self._lock)
            self._shut()

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Keep forks away during a statement, or from the beginning of a transaction to its end."""
        if not self._inside:
            self._lock.acquire()
        try:
            if self.raw is None:
                self._open()
            if identity(self._path) != self._opened:
                raise sqlite3.OperationalError("the file was replaced; opening the new one")
            yield
        finally:
            self._inside = self.raw is not None and self.raw.in_transaction
            if not self._inside:
                self._lock.release()

    def _open(self) -> None:
        self.raw = self._open_it()
        self._opened, self.opening = identity(self._path), next(_openings)

    def _shut(self) -> None:
        raw, self.raw = self.raw, None
        if raw is not None:
            raw.close()


def _lock() -> Any:
    """Return a lock for threads: the courier and the member are threads also where the pool has greenlets."""
    return original("_thread", "allocate_lock")()


def identity(path: str) -> str:
    """Return text that changes when the path names another file."""
    found = os.stat(path)
    return f"{found.st_dev}.{found.st_ino}"


_opening = _lock()


def _before_fork() -> None:
    _opening.acquire()
    for reference in _files.valuerefs():
        if (file := reference()) is not None:
            file.rest()


def _in_child() -> None:
    _files.clear()  # they are the parent's
    _after_fork()


def _after_fork() -> None:
    while _held:
        _held.pop().release()
    _opening.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
