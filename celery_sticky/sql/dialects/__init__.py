"""The three dialects. `base` says what each of them must know."""

from __future__ import annotations

from celery_sticky.sql.address import Address
from celery_sticky.sql.dialects.base import Dialect


def dialect_of(address: Address) -> Dialect:
    """Return the dialect of an address; its client library is imported now.

    Raises:
        MissingDependency: the client library is not installed.
    """
    match address.kind:
        case "postgresql":
            from celery_sticky.sql.dialects.postgresql import PostgreSQL

            return PostgreSQL()
        case "mysql":
            from celery_sticky.sql.dialects.mysql import MySQL

            return MySQL()
        case _:
            from celery_sticky.sql.dialects.sqlite import SQLite

            return SQLite()
