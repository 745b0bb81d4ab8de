"""Connections of a caller, by name: what `sticky.outbox` is given, and how its transaction ends."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg
import psycopg2
import pymysql
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from celery_sticky.sql import Address

KINDS = {
    "sqlite3": "sqlite",
    "psycopg": "postgresql",
    "psycopg2": "postgresql",
    "pymysql": "mariadb",
    "session": "sqlite postgresql mariadb",
    "scoped": "sqlite",
    "connection": "sqlite postgresql mariadb",
    "django": "sqlite postgresql",
}
WAYS = [(kind, name) for name, kinds in KINDS.items() for kind in kinds.split()]
"""Kind of database, and name of the library or of what SQLAlchemy has."""


class Plain:
    """A connection of a library."""

    def __init__(self, raw: Any) -> None:
        self.given = self.raw = raw
        self.commit, self.rollback, self.close = raw.commit, raw.rollback, raw.close

    def execute(self, statement: str) -> None:
        """Run a statement in the transaction."""
        with closing(self.raw.cursor()) as cursor:
            cursor.execute(statement)


class OfAlchemy:
    """A session or a connection of SQLAlchemy."""

    def __init__(self, url: str, make: Callable[[Any], Any]) -> None:
        self.engine = create_engine(alchemy_url(url), poolclass=NullPool)
        self.given = make(self.engine)
        self.commit, self.rollback, self.close = self.given.commit, self.given.rollback, self.given.close

    def execute(self, statement: str) -> None:
        """Run a statement in the transaction."""
        self.given.execute(text(statement))


class OfDjango:
    """Django's default connection, in an `atomic` block."""

    def __init__(self, url: str) -> None:
        import django
        from django.conf import settings
        from django.db import connection, connections, transaction

        if not settings.configured:
            settings.configure()
            django.setup()
        vars(connections)["settings"] = connections.configure_settings({"default": django_settings(url)})
        if hasattr(connections._connections, "default"):  # another test's
            del connections["default"]
        self.given, self._transaction, self._block = connection, transaction, transaction.atomic()
        self._block.__enter__()

    def execute(self, statement: str) -> None:
        """Run a statement in the transaction."""
        with self.given.cursor() as cursor:
            cursor.execute(statement)

    def commit(self) -> None:
        """End the block, and begin another."""
        self._block.__exit__(None, None, None)
        self._block.__enter__()

    def rollback(self) -> None:
        """End the block by an error, and begin another."""
        self._transaction.set_rollback(True)
        self.commit()

    def close(self) -> None:
        """End the block, and the connection."""
        self._transaction.set_rollback(True)
        self._block.__exit__(None, None, None)
        self.given.close()


def caller(name: str, url: str) -> Any:
    """Return a connection of the caller."""
    if name == "django":
        return OfDjango(url)
    if name in ("session", "connection", "scoped"):
        scoped: Callable[[Any], Any] = lambda engine: scoped_session(sessionmaker(engine))  # noqa: E731
        return OfAlchemy(
            url, {"session": Session, "connection": lambda engine: engine.connect(), "scoped": scoped}[name]
        )
    return Plain(plain(name, url))


def plain(name: str, url: str, **options: Any) -> Any:
    """Return a connection of a library."""
    at = Address.parse(url)
    if name == "sqlite3":
        return sqlite3.connect(at.database, **options)
    given = {"host": at.host, "port": at.port, "user": at.user, "password": at.password, **at.options, **options}
    given = {key: value for key, value in given.items() if value is not None}
    if name == "pymysql":
        return pymysql.connect(database=at.database, **given)
    return (psycopg if name == "psycopg" else psycopg2).connect(dbname=at.database, **given)


def alchemy_url(url: str, **drivers: str) -> str:
    """Return the URL for SQLAlchemy; `drivers` replaces the usual ones."""
    drivers = {"postgresql": "psycopg", "mysql": "pymysql", "sqlite": "pysqlite", **drivers}
    kind, _, rest = url.partition(":")
    return f"{kind}+{drivers[kind]}:{rest}"


def django_settings(url: str) -> dict[str, Any]:
    """Return an entry of Django's `DATABASES`."""
    at = Address.parse(url)
    engine = {"sqlite": "sqlite3"}.get(at.kind, at.kind)
    found = {"NAME": at.database, "HOST": at.host, "PORT": at.port, "USER": at.user, "PASSWORD": at.password}
    return {"ENGINE": f"django.db.backends.{engine}", **{name: value or "" for name, value in found.items()}}
