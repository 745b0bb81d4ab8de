"""SQLite 3.35 or later: one file, one writer at a time. Readers and the writer do not wait for each other (WAL)."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from celery_sticky.errors import InvalidSettings
from celery_sticky.sql.address import Address
from celery_sticky.sql.dialects.base import checked_options, union_table
from celery_sticky.sql.link import Link, Parameters
from celery_sticky.sql.text import Piece, values

SYNCHRONOUS = ("FULL", "NORMAL", "EXTRA", "OFF")
"""How SQLite waits for the disk. With NORMAL, a power failure may lose the last transactions; FULL is the default."""
LOCK_PAUSE = 0.01
"""Seconds between two attempts to set the journal mode, for which SQLite itself does not wait."""


class SQLite:
    """See `Dialect`."""

    name = "sqlite"
    begin = "BEGIN IMMEDIATE"
    share = update = skip = ""
    join = "JOIN"
    or_nothing = " ON CONFLICT DO NOTHING"
    row_values = True
    overlaps = False
    literal = "X'{}'"
    types: Mapping[str, str] = {
        "name": "blob",
        "bytes": "blob",
        "key": "blob",
        "slot": "blob",
        "double": "double",
        "serial": "integer PRIMARY KEY AUTOINCREMENT",
        "message_key": "UNIQUE (queue, priority, id)",
        "serial_key": "CHECK (id > 0)",
        "end": "",
    }
    clock, server = "sticky_clock()", "sticky_file()"
    synchronous = "NULL"
    errors: tuple[type[Exception], ...] = (sqlite3.Error, OSError)

    def connect(self, address: Address, timeout: float) -> Link:
        """Open the file, and create it if it does not exist; the folder must exist."""
        options = dict(checked_options(address, ("synchronous",)))
        synchronous = options.get("synchronous", "FULL").upper()
        if synchronous not in SYNCHRONOUS:
            raise InvalidSettings(f"{address.shown}: synchronous is one of {', '.join(SYNCHRONOUS)}")
        raw = sqlite3.connect(address.database, timeout=timeout, isolation_level=None, check_same_thread=False)
        try:
            link = _File(raw, address.database)
            _write_ahead(link, time.monotonic() + timeout)
            link.rows(f"PRAGMA synchronous = {synchronous}")
        except BaseException:
            raw.close()
            raise
        return link

    def code(self, error: BaseException) -> str:
        """Return the name of the error's code (Python 3.11 or later)."""
        return getattr(error, "sqlite_errorname", "")

    def upsert(self, keys: Sequence[str], columns: Sequence[str]) -> str:
        """See `Dialect.upsert`."""
        changes = ", ".join(f"{column} = excluded.{column}" for column in columns)
        return f" ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {changes}"

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Piece:
        """See `Dialect.table`."""
        return union_table(name, columns, rows)

    def delete(self, table: str, keys: Sequence[str], rows: Sequence[Sequence[Any]]) -> Piece:
        """See `Dialect.delete`."""
        names = ", ".join(key.split()[0] for key in keys)
        given, said = values(rows)
        return f"DELETE FROM {table} WHERE ({names}) IN (VALUES {given})", said

    def has_table(self, link: Link, table: str) -> bool:
        """See `Dialect.has_table`."""
        return bool(link.rows("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = %s", [table]))

    @contextmanager
    def alone(self, link: Link, name: str, timeout: float) -> Iterator[None]:
        """Hold the file's write lock."""
        link.run(self.begin)
        yield
        link.run("COMMIT")

    def plain(self, link: Link) -> bool:
        """Return True: transactions do not overlap."""
        return True

    def version(self, link: Link) -> int | None:
        """Return the number that another connection's commit changes."""
        return int(link.rows("PRAGMA data_version")[0][0])


class _File(Link):
    """A connection that ends when the path names another file: the old one may be open for ever and read by nobody."""

    def __init__(self, raw: sqlite3.Connection, path: str) -> None:
        super().__init__(raw, placeholder="?")
        self._path, self._opened = path, _identity(path)
        raw.create_function("sticky_clock", 0, time.time)
        raw.create_function("sticky_file", 0, partial(str, self._opened))

    def _run(self, statement: str, said: Parameters) -> Any:
        if _identity(self._path) != self._opened:
            raise sqlite3.OperationalError("the file was replaced; opening the new one")
        return super()._run(statement, said)


def _identity(path: str) -> str:
    found = os.stat(path)
    return f"{found.st_dev}.{found.st_ino}"


def _write_ahead(link: Link, deadline: float) -> None:
    while link.rows("PRAGMA journal_mode")[0][0] != "wal":
        try:
            link.rows("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(LOCK_PAUSE)
