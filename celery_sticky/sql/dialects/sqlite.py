"""SQLite 3.35 or later: one file, one writer at a time. Readers and the writer do not wait for each other (WAL)."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any

from celery_sticky.errors import InvalidSettings
from celery_sticky.sql.address import Address
from celery_sticky.sql.dialects.base import checked_options, union_table
from celery_sticky.sql.dialects.sqlite_file import File, identity
from celery_sticky.sql.link import Link
from celery_sticky.sql.text import Piece, marks

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
    portable_clock = "((julianday('now') - 2440587.5) * 86400.0)"
    here = "SELECT file FROM pragma_database_list WHERE name = 'main'"
    synchronous = "NULL"
    ordered = "NULL"
    errors: tuple[type[Exception], ...] = (sqlite3.Error, OSError)

    def connect(self, address: Address, timeout: float) -> Link:
        """Open the file, and create it if it does not exist; the folder must exist."""
        options = dict(checked_options(address, ("synchronous",)))
        synchronous = options.get("synchronous", "FULL").upper()
        if synchronous not in SYNCHRONOUS:
            raise InvalidSettings(f"{address.shown}: synchronous is one of {', '.join(SYNCHRONOUS)}")
        return File(partial(_open, address.database, timeout, synchronous), address.database)

    def code(self, error: BaseException) -> str:
        """Return the name of the error's code (Python 3.11 or later)."""
        return getattr(error, "sqlite_errorname", "")

    def upsert(self, keys: Sequence[str], columns: Sequence[str]) -> str:
        """See `Dialect.upsert`."""
        changes = ", ".join(f"{column} = excluded.{column}" for column in columns)
        return f" ON CONFLICT ({', '.join(keys)}) DO {f'UPDATE SET {changes}' if changes else 'NOTHING'}"

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Piece:
        """See `Dialect.table`."""
        return union_table(name, columns, rows)

    def delete(self, table: str, keys: Sequence[str], rows: Sequence[Sequence[Any]]) -> Piece:
        """See `Dialect.delete`."""
        # A list of row values would scan the table if the last key is the row's id.
        *leads, last = (key.split()[0] for key in keys)
        parts, said = list[str](), list[Any]()
        for lead, group in groupby(sorted(map(tuple, rows)), key=lambda row: row[:-1]):
            numbers = [row[-1] for row in group]
            parts.append(" AND ".join([*(f"{name} = %s" for name in leads), f"{last} IN {marks(len(numbers))}"]))
            said += [*lead, *numbers]
        return f"DELETE FROM {table} WHERE " + " OR ".join(f"({part})" for part in parts), said

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
        """Return the number that another connection's commit changes. No two openings of a file share numbers."""
        assert isinstance(link, File)
        number = int(link.rows("PRAGMA data_version")[0][0])
        return (link.opening << 48) + number

    def listener(self, address: Address, timeout: float, channel: str) -> None:
        """Return None: there is no bell."""


def _open(path: str, timeout: float, synchronous: str) -> sqlite3.Connection:
    raw = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
    try:
        _write_ahead(raw, time.monotonic() + timeout)
        raw.execute(f"PRAGMA synchronous = {synchronous}").close()
        raw.create_function("sticky_clock", 0, time.time)
        raw.create_function("sticky_file", 0, partial(str, identity(path)))
    except BaseException:
        raw.close()
        raise
    return raw


def _write_ahead(raw: sqlite3.Connection, deadline: float) -> None:
    while raw.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            raw.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(LOCK_PAUSE)
