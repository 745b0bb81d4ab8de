"""Connections of asyncpg, and the asynchronous ones of psycopg.

Neither tells of savepoints and commits: what is sent in a block is written at its end.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from celery_sticky.sql.callers.base import Statements, Take, libraries, loaded, styled


class _Quiet:
    """A connection that tells of nothing."""

    kind = "postgresql"

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    async def watch(self, take: Take) -> Callable[[], None]:
        """See `AsyncCaller.watch`."""
        return lambda: None

    def after_commit(self, call: Callable[[], None]) -> None:
        """Do nothing: the library does not tell of commits."""


class OfAsyncpg(_Quiet):
    """See `AsyncCaller`."""

    async def value(self, query: str) -> Any:
        """See `Caller.value`."""
        return await self._raw.fetchval(query)

    async def run_all(self, statements: Statements) -> None:
        """See `AsyncCaller.run_all`."""
        for statement, said in statements:
            await self._raw.execute(styled(statement, "numeric_dollar"), *said)

    async def autocommits(self) -> bool:
        """See `Caller.autocommits`."""
        return not self._raw.is_in_transaction()


class OfPsycopg(_Quiet):
    """See `AsyncCaller`."""

    async def value(self, query: str) -> Any:
        """See `Caller.value`."""
        async with self._cursor() as cursor:
            await cursor.execute(query)
            return (await cursor.fetchone())[0]

    async def run_all(self, statements: Statements) -> None:
        """See `AsyncCaller.run_all`."""
        async with self._cursor() as cursor:
            for statement, said in statements:
                await cursor.execute(statement, said)

    async def autocommits(self) -> bool:
        """See `Caller.autocommits`."""
        return bool(self._raw.autocommit and self._raw.info.transaction_status == 0)

    def _cursor(self) -> Any:
        return self._raw.cursor(row_factory=sys.modules["psycopg.rows"].tuple_row)


def find(connection: Any) -> OfAsyncpg | OfPsycopg | None:
    """Return the caller of an asynchronous connection, None if it is not one of those libraries."""
    if isinstance(connection, loaded("psycopg", "AsyncConnection")):
        return OfPsycopg(connection)
    return OfAsyncpg(connection) if "asyncpg" in libraries(connection) and hasattr(connection, "fetchval") else None
