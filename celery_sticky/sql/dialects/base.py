"""What differs between databases: connecting, locks, the names of types, and a few words of SQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from celery_sticky.errors import InvalidSettings
from celery_sticky.sql.address import Address
from celery_sticky.sql.link import Link
from celery_sticky.sql.text import Piece


class Dialect(Protocol):
    """One kind of database. Everything runs in autocommit, or in a transaction that begins with `begin`."""

    name: str
    begin: str
    """Begins a transaction under READ COMMITTED. SQLite: one that may write, and waits for its turn now."""
    share: str
    """Ends a SELECT: its rows of `t` can be read, but not changed, by others until the transaction ends."""
    update: str
    """Ends a SELECT: its rows of `t` are this transaction's alone."""
    skip: str
    """Ends a SELECT: as `update`, but rows of `t` that another transaction has locked are left out."""
    join: str
    """Joins a table to one of keys that is read first. A scan would also lock rows of others."""
    or_nothing: str
    """Ends an INSERT into a table with a column `queue`: rows that are there already stay as they are."""
    row_values: bool
    """An index serves comparisons such as `(priority, id) > (0, 17)`."""
    overlaps: bool
    """Transactions overlap: a message may be committed later than one with a higher id."""
    types: Mapping[str, str]
    """The names of the types in a migration: `bytes`, `name` (bytes that can be a key), `serial`, `double`, …

    `key` and `slot`, like `name`, are bytes in an index: up to 1,024 and 1,025 of them instead of 255."""
    literal: str
    """Bytes in a statement, around `{}`, which stands for their hexadecimal digits."""
    clock: str
    """An expression: the database's clock now, in seconds since the Unix epoch, whatever the time zone."""
    portable_clock: str
    """As `clock`, perhaps less exact, for a connection that is not ours."""
    here: str
    """A query for one value on any connection: the name of the database that answers, a newline, and its identity.

    The identity says which table is meant by `{message}`. SQLite: there is only the name, the path of the file.
    """
    server: str
    """An expression: text that changes when another server answers, which may lack the last transactions."""
    synchronous: str
    """An expression: evaluated in a transaction, it makes the commit wait for the disk, if a transaction can say so."""
    ordered: str
    """An expression: evaluated in a transaction, its next statements read what they order by a key in the key's order.

    A planner that expects few rows may else read and sort all of them, before a LIMIT."""
    errors: tuple[type[Exception], ...]
    """What the client library raises."""

    def connect(self, address: Address, timeout: float) -> Link:
        """Connect. Each answer, also to the connection attempt, takes at most about `timeout` seconds."""

    def code(self, error: BaseException) -> str:
        """Return the error's code, or an empty string."""

    def upsert(self, keys: Sequence[str], columns: Sequence[str]) -> str:
        """Return the end of an INSERT that overwrites `columns` of rows that are there already.

        Without columns they stay as they are.
        """

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Piece:
        """Return an expression for FROM: a table of these rows, of which there is at least one.

        A column is given as its name and type: `id`, an integer, or `due double`, `body bytes`.
        """

    def delete(self, table: str, keys: Sequence[str], rows: Sequence[Sequence[Any]]) -> Piece:
        """Return a statement that deletes the rows with these keys, and locks no others."""

    def has_table(self, link: Link, table: str) -> bool:
        """Return whether a table exists."""

    def alone(self, link: Link, name: str, timeout: float) -> AbstractContextManager[None]:
        """Hold a lock of this name, which one migration at a time can hold, in a transaction if DDL can be in one."""

    def plain(self, link: Link) -> bool:
        """Return whether a statement outside of a transaction runs under READ COMMITTED."""

    def version(self, link: Link) -> int | None:
        """Return a number that changes when another connection writes; None if the database has none."""

    def listener(self, address: Address, timeout: float, channel: str) -> Listener | None:
        """Connect to hear the rings of a channel; None: nobody can ring at this kind of database."""


class Listener(Protocol):
    """A connection that hears rings."""

    def fileno(self) -> int:
        """Return the descriptor that is readable when there may be something to hear."""

    def ring(self, payload: str) -> None:
        """Ring on this connection itself. It is heard when this returns, if anything can be heard."""

    def heard(self) -> list[str]:
        """Return the payloads that have come since the last call; do not wait."""

    def close(self) -> None:
        """Close the connection."""


def union_table(name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Piece:
    """Return a table of rows in SQL that every database reads."""
    first = "SELECT " + ", ".join(f"%s AS {column.split()[0]}" for column in columns)
    others = [f"SELECT {', '.join(['%s'] * len(columns))}"] * (len(rows) - 1)
    return f"({' UNION ALL '.join([first, *others])}) AS {name}", [value for row in rows for value in row]


def joined(dialect: Dialect, table: str, keys: Sequence[str], rows: Sequence[Sequence[Any]]) -> Piece:
    """Return an expression for FROM: the rows `t` of a table with these keys, and no others are locked."""
    given, said = dialect.table("d", keys, rows)
    names = [key.split()[0] for key in keys]
    return f"{given} {dialect.join} {table} t ON " + " AND ".join(f"t.{name} = d.{name}" for name in names), said


def checked_options(address: Address, known: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the options of a URL.

    Raises:
        InvalidSettings: one of them is not known.
    """
    for name, value in address.options.items():
        if name not in known:
            raise InvalidSettings(f"{address.shown}: unknown option {name!r}; known are {', '.join(known)}")
        yield name, value
