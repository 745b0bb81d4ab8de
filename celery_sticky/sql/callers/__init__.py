"""Connections that belong to the caller, inside of the caller's transaction: `outbox` inserts messages on them.

Their libraries are never imported here: the caller, who has such a connection, has imported its library.
"""

from __future__ import annotations

from typing import Any

from celery_sticky.errors import OutboxRefused
from celery_sticky.sql.callers import alchemy, asynchronous, dbapi, django
from celery_sticky.sql.callers.base import AsyncCaller, Caller

__all__ = ["AsyncCaller", "Caller", "caller_of"]


def caller_of(connection: Any) -> Caller | AsyncCaller:
    """Return the means to run statements on a connection of the caller.

    Raises:
        OutboxRefused: it is not a connection, or one of a library or database that is not supported.
    """
    found: Caller | AsyncCaller | None = (
        alchemy.find(connection) or django.find(connection) or asynchronous.find(connection) or dbapi.find(connection)
    )
    if found is not None:
        return found
    kind = type(connection)
    raise OutboxRefused(
        f"{kind.__module__}.{kind.__qualname__} is not a connection that tasks can be sent on: pass a session or "
        "connection of SQLAlchemy, a connection of Django (django.db.connection), or one of psycopg, psycopg2, "
        "PyMySQL, mysqlclient, sqlite3 or asyncpg"
    )
