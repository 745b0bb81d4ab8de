"""Plain connections of psycopg, psycopg2, PyMySQL, mysqlclient and sqlite3."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any

from celery_sticky.sql.callers.base import Said, first, libraries, styled

KINDS = {
    "psycopg": "postgresql",
    "psycopg2": "postgresql",
    "pymysql": "mysql",
    "MySQLdb": "mysql",
    "sqlite3": "sqlite",
}
"""Library -> kind of its databases."""
IN_TRANSACTION = 1
"""`SERVER_STATUS_IN_TRANS` of the MySQL protocol."""


class Plain:
    """See `Caller`."""

    def __init__(self, raw: Any, library: str) -> None:
        self.kind = KINDS[library]
        self._raw, self._library = raw, library

    def value(self, query: str) -> Any:
        """See `Caller.value`."""
        with closing(self._cursor()) as cursor:
            cursor.execute(query)
            return first(cursor.fetchone())

    def run(self, statement: str, said: Said) -> None:
        """See `Caller.run`."""
        with closing(self._cursor()) as cursor:
            cursor.execute(styled(statement, "qmark" if self._library == "sqlite3" else "format"), tuple(said))

    def autocommits(self) -> bool:
        """See `Caller.autocommits`. The library mysqlclient does not say whether a transaction was begun explicitly."""
        raw = self._raw
        if self._library == "sqlite3":
            automatic = raw.isolation_level is None if getattr(raw, "autocommit", -1) == -1 else raw.autocommit
            return bool(automatic and not raw.in_transaction)
        if self.kind == "postgresql":
            return bool(raw.autocommit and raw.info.transaction_status == 0)
        return bool(raw.get_autocommit() and not getattr(raw, "server_status", 0) & IN_TRANSACTION)

    def after_commit(self, call: Callable[[], None]) -> None:
        """Do nothing: the libraries tell of no commits."""

    def _cursor(self) -> Any:
        if self._library == "psycopg":  # rows of a connection may be anything there
            return self._raw.cursor(row_factory=sys.modules["psycopg.rows"].tuple_row)
        return self._raw.cursor()


def find(connection: Any) -> Plain | None:
    """Return the caller of a plain connection, None if it is not one of those libraries."""
    library = next(iter(libraries(connection) & KINDS.keys()), None)
    return Plain(connection, library) if library is not None and hasattr(connection, "cursor") else None
