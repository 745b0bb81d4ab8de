"""Sessions and connections of SQLAlchemy, also its asynchronous ones."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from celery_sticky.sql.callers import dbapi
from celery_sticky.sql.callers.base import Said, Statements, Take, loaded, styled

CALLS = "celery_sticky_after_commit"
"""The name of our entry in the `info` of a session."""


class OfAlchemy:
    """See `Caller`."""

    def __init__(self, source: Any) -> None:
        """`source`: a session or a connection."""
        self._source, self._is_session = source, hasattr(source, "get_bind")
        bind = source.get_bind() if self._is_session else source
        self.kind = {"mariadb": "mysql"}.get(bind.dialect.name, str(bind.dialect.name))

    @property
    def connection(self) -> Any:
        """The connection of the transaction, which begins now if none has begun."""
        return self._source.connection() if self._is_session else self._source

    def value(self, query: str) -> Any:
        """See `Caller.value`."""
        return self.connection.exec_driver_sql(query).scalar()

    def run(self, statement: str, said: Said) -> None:
        """See `Caller.run`."""
        _run_all([(statement, said)], self.connection)

    def autocommits(self) -> bool:
        """See `Caller.autocommits`."""
        connection = self.connection
        if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
            return True
        plain = dbapi.find(connection.connection.driver_connection)
        return plain is not None and plain.autocommits()

    def after_commit(self, call: Callable[[], None]) -> None:
        """See `Caller.after_commit`. A connection without a session does not tell of commits."""
        if self._is_session:
            _calls(self._source).append(call)


class OfAsyncAlchemy:
    """See `AsyncCaller`."""

    def __init__(self, source: Any) -> None:
        """`source`: an asynchronous session or connection."""
        self._source = source
        self._inner = source.sync_session if hasattr(source, "sync_session") else source.sync_connection
        self._sync = OfAlchemy(self._inner)
        self.kind = self._sync.kind

    async def value(self, query: str) -> Any:
        """See `Caller.value`."""
        return await self._source.run_sync(lambda _: self._sync.value(query))

    async def run_all(self, statements: Statements) -> None:
        """See `AsyncCaller.run_all`."""
        await self._source.run_sync(lambda _: _run_all(statements, self._sync.connection))

    async def autocommits(self) -> bool:
        """See `Caller.autocommits`."""
        return bool(await self._source.run_sync(lambda _: self._sync.autocommits()))

    async def watch(self, take: Take) -> Callable[[], None]:
        """See `AsyncCaller.watch`."""
        return await self._source.run_sync(lambda _: self._watched(take))  # type: ignore[no-any-return]

    def after_commit(self, call: Callable[[], None]) -> None:
        """See `Caller.after_commit`."""
        self._sync.after_commit(call)

    def _watched(self, take: Take) -> Callable[[], None]:
        events, heard = sys.modules["sqlalchemy.event"], list[tuple[Any, str, Any]]()

        def listen(target: Any, name: str, call: Callable[..., object]) -> None:
            events.listen(target, name, call)
            heard.append((target, name, call))

        def follow(connection: Any) -> None:
            if any(target is connection for target, _, _ in heard):
                return
            for name in ("savepoint", "commit"):
                listen(connection, name, lambda at, *_: _run_all(take(), at))
            for name in ("rollback", "rollback_savepoint"):
                listen(connection, name, lambda *_: take())

        follow(self._sync.connection)
        if self._inner is not self._sync.connection:  # a session takes another connection for its next transaction
            listen(self._inner, "after_begin", lambda _session, _transaction, connection: follow(connection))
        return partial(_forget, heard)


def find(connection: Any) -> OfAlchemy | OfAsyncAlchemy | None:
    """Return the caller of a session or connection of SQLAlchemy, None if it is neither."""
    for module, name in (("sqlalchemy.orm", "scoped_session"), ("sqlalchemy.ext.asyncio", "async_scoped_session")):
        if isinstance(connection, loaded(module, name)):
            connection = connection()
    if isinstance(connection, (*loaded("sqlalchemy.orm", "Session"), *loaded("sqlalchemy.engine", "Connection"))):
        return OfAlchemy(connection)
    asynchronous = [loaded("sqlalchemy.ext.asyncio", name) for name in ("AsyncSession", "AsyncConnection")]
    return OfAsyncAlchemy(connection) if isinstance(connection, sum(asynchronous, ())) else None


def _calls(session: Any) -> list[Callable[[], None]]:
    """Return the functions to call after the session's next commit. Its listeners stay, as they cannot leave in one."""
    calls: list[Callable[[], None]] | None = session.info.get(CALLS)
    if calls is not None:
        return calls
    waiting: list[Callable[[], None]] = []
    session.info[CALLS] = waiting

    def committed(_: Any) -> None:
        if not session.in_nested_transaction():
            due = waiting[:]
            waiting.clear()
            for call in due:
                call()

    sys.modules["sqlalchemy.event"].listen(session, "after_commit", committed)
    sys.modules["sqlalchemy.event"].listen(session, "after_rollback", lambda _: waiting.clear())
    return waiting


def _run_all(statements: Statements, connection: Any) -> None:
    for statement, said in statements:
        connection.exec_driver_sql(styled(statement, connection.dialect.paramstyle), tuple(said))


def _forget(heard: list[tuple[Any, str, Any]]) -> None:
    for target, name, call in heard:
        sys.modules["sqlalchemy.event"].remove(target, name, call)
