"""Databases for the measurements: each measurement gets an empty one, which is dropped after it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from benchmarks.report import Table
from benchmarks.server import Server
from benchmarks.sql.options import Options
from celery_sticky.errors import BrokerUnavailable
from celery_sticky.sql import Address, Database
from celery_sticky.sql.address import LEAD
from celery_sticky.sql.dialects import dialect_of
from celery_sticky.sql.link import Link
from celery_sticky.testing.guard import Guard
from celery_sticky.testing.servers.postgresql import PostgresServer

TIMEOUT = 600.0
"""Seconds that one statement may take: some load a million rows."""
_numbers = count(1)


class Engine(Protocol):
    """A kind of database with its settings."""

    name: str
    about: str
    """Version and durability, for the notes of a table."""

    def fresh(self) -> Any:
        """Return a context manager that yields the URL of an empty database, without `sticky+`."""

    def cpu(self) -> float | None:
        """Return the seconds of processor time that the server has spent; None if that cannot be read."""


class PostgreSQL:
    """A PostgreSQL server, with a user who may create databases."""

    name = "PostgreSQL"

    def __init__(self, url: str) -> None:
        self.url = url
        with connected(url) as link:
            named = ("fsync", "synchronous_commit", "autovacuum")
            said = ", ".join(f"{name} {link.rows(f'SHOW {name}')[0][0]}" for name in named)
            self.about = f"PostgreSQL {link.rows('SHOW server_version')[0][0]}: {said}"
            self._leader = _parent(int(link.rows("SELECT pg_backend_pid()")[0][0]), "postgres")

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """See `Engine.fresh`."""
        with _own_database(self.url, " WITH (FORCE)") as url:
            yield url

    def cpu(self) -> float | None:
        """See `Engine.cpu`. Backends that have ended count too."""
        return None if self._leader is None else tree_cpu(self._leader)


class MariaDB:
    """A MariaDB server, with a user who may create databases."""

    name = "MariaDB"

    def __init__(self, url: str) -> None:
        self.url = url
        with connected(url) as link:
            row = link.rows("SELECT @@version, @@innodb_flush_log_at_trx_commit, @@log_bin, @@pid_file")[0]
        version, flush, binlog, pid_file = row
        number, binary = str(version).partition("-")[0], "on" if binlog else "off"
        self.about = f"MariaDB {number}: innodb_flush_log_at_trx_commit {flush}, binary log {binary}"
        self._pid = _readable_pid(str(pid_file))

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """See `Engine.fresh`."""
        with _own_database(self.url, "") as url:
            yield url

    def cpu(self) -> float | None:
        """See `Engine.cpu`."""
        return None if self._pid is None else tree_cpu(self._pid)


class SQLite:
    """A file, in the mode of SQLite that waits for the disk or not. Its work is done in the clients' processes."""

    def __init__(self, synchronous: str) -> None:
        self._synchronous = synchronous
        self.name = f"SQLite {synchronous}"
        self.about = f"SQLite: WAL, synchronous={synchronous}"

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """See `Engine.fresh`."""
        with tempfile.TemporaryDirectory(prefix="bench-sqlite-") as folder:
            yield f"sqlite:///{folder}/bench.db?synchronous={self._synchronous}"

    def cpu(self) -> float | None:
        """See `Engine.cpu`."""
        return None


class Engines:
    """The databases of one run."""

    def __init__(self, postgresql: PostgreSQL, mariadb: MariaDB | None) -> None:
        self.postgresql, self.mariadb = postgresql, mariadb
        self.sqlite, self.sqlite_normal = SQLite("FULL"), SQLite("NORMAL")

    @property
    def all(self) -> list[Engine]:
        """All that are there."""
        every = (self.postgresql, self.sqlite, self.sqlite_normal, self.mariadb)
        return [engine for engine in every if engine is not None]

    @property
    def servers(self) -> list[Engine]:
        """One of each kind."""
        return [engine for engine in self.all if engine is not self.sqlite_normal]


@contextmanager
def opened(options: Options) -> Iterator[Engines]:
    """Find or start the servers."""
    with ExitStack() as stack:
        url = options.postgresql or _private_postgresql(stack)
        mariadb = MariaDB(options.mariadb) if answers(options.mariadb) else None
        if mariadb is None:
            print(f"no MariaDB answers at {options.mariadb}: it is left out", file=sys.stderr)
        yield Engines(PostgreSQL(url), mariadb)


def redis_settings(server: Server, options: Options) -> str:
    """Set how durable Redis is; return that for the notes of a table."""
    server.client.config_set("appendfsync", "always")
    server.client.config_set("appendonly", "yes" if options.redis_fsync else "no")
    return "Redis: appendfsync always" if options.redis_fsync else "Redis: in memory only"


def _private_postgresql(stack: ExitStack) -> str:
    """Start a server with its own defaults, which ends also if this process is killed; return its URL."""
    guard = stack.enter_context(closing(Guard()))
    server = PostgresServer(guard)
    stack.callback(server.teardown)
    return server.start().url.removeprefix(LEAD)


def answers(url: str) -> bool:
    """Return whether a database lets us in."""
    address = Address.parse(url)
    dialect = dialect_of(address)
    try:
        dialect.connect(address, 2.0).close()
    except dialect.errors:
        return False
    return True


@contextmanager
def connected(url: str) -> Iterator[Link]:
    """Lend a connection of the client library."""
    address = Address.parse(url)
    with closing(dialect_of(address).connect(address, TIMEOUT)) as link:
        yield link


def database(url: str) -> Database:
    """Return a database with our tables, as a broker's client opens it."""
    return Database(Address.parse(url), timeout=TIMEOUT, unavailable=BrokerUnavailable)


def note_settings(table: Table, *about: str) -> None:
    """Add the versions and settings to a table's notes."""
    table.notes.append("; ".join(about) + ".")


def tree_cpu(pid: int) -> float:
    """Return the seconds of processor time of a process and of its children, also of those that have ended."""
    children = [int(one) for task in Path(f"/proc/{pid}/task").glob("*/children") for one in task.read_text().split()]
    ticks = sum(_stat(pid)[11:15])
    for child in children:
        try:
            ticks += sum(_stat(child)[11:13])
        except FileNotFoundError:  # it has just ended
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[int]:
    """Return the numbers after the process's name and state; the state counts as 0."""
    return [0, *map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1:])]


def _parent(pid: int, program: str) -> int | None:
    """Return the parent of a process of this machine, if it runs this program."""
    try:
        if not Path(f"/proc/{pid}/comm").read_text().startswith(program):
            return None
        return _stat(pid)[1]
    except OSError:
        return None


def _readable_pid(file: str) -> int | None:
    try:
        return int(Path(file).read_text())
    except (OSError, ValueError):
        return None


@contextmanager
def _own_database(url: str, end: str) -> Iterator[str]:
    name = f"sticky_bench_{os.getpid()}_{next(_numbers)}"
    with connected(url) as link:
        link.run(f"CREATE DATABASE {name}")
        try:
            yield urlsplit(url)._replace(path=f"/{name}").geturl()
        finally:
            link.run(f"DROP DATABASE IF EXISTS {name}{end}")
