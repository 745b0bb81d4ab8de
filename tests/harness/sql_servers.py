"""Databases for tests: a database of its own for each session, on the server that stands ready or on an embedded one.

`STICKY_TEST_POSTGRESQL` and `STICKY_TEST_MARIADB` name a server by its URL, with a user who may create databases.
Unset: the server on the standard port of this machine, if it answers. PostgreSQL is embedded where none answers, or if
the variable is `embedded`. Without a MariaDB its tests are skipped; with `CI` set they fail.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from celery_sticky.sql import Address
from celery_sticky.sql.dialects import dialect_of

STANDARD = {
    "postgresql": ("postgresql://postgres@127.0.0.1:5432/postgres", "postgresql://root@127.0.0.1:5432/postgres"),
    "mysql": ("mysql://root@127.0.0.1:3306/mysql", "mysql://root@localhost/mysql?unix_socket=/run/mysqld/mysqld.sock"),
}
STATEMENT_TIMEOUT = 120.0
"""Seconds for one statement: to drop a database, the server writes everything that it holds to a slow disk."""
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
    raw = dialect_of(address).connect(address, STATEMENT_TIMEOUT).raw
    return closing(raw)


def _at_server(url: str, statement: str) -> None:
    with connect(url) as raw, closing(raw.cursor()) as cursor:
        cursor.execute(statement)


def _renamed(url: str, name: str) -> str:
    return urlsplit(url)._replace(path=f"/{name}").geturl()
