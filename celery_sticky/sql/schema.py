"""The schema's version, and the migrations that lead to it. Two processes may migrate one database at once."""

from __future__ import annotations

import uuid

from celery_sticky.errors import SchemaTooNew
from celery_sticky.sql.dialects.base import Dialect
from celery_sticky.sql.link import Link
from celery_sticky.sql.migrations import MIGRATIONS
from celery_sticky.sql.tables import Tables

NEWEST = len(MIGRATIONS)
"""The version that this release reads and writes."""
STORE = b"store"
"""The name in `meta` of the random id that the database got with its schema."""


def ensure_schema(link: Link, dialect: Dialect, tables: Tables, timeout: float) -> None:
    """Bring an empty or older database to this release's schema.

    Raises:
        SchemaTooNew: a newer release has migrated it.
    """
    if _version(link, dialect, tables) == NEWEST:
        return
    with dialect.alone(link, tables.name("migration"), timeout):
        found = _version(link, dialect, tables)  # another process may have migrated meanwhile
        for number, statements in enumerate(MIGRATIONS[found:], found + 1):
            for statement in statements:
                link.run(tables.fill(_typed(statement, dialect)))
            _remember(link, dialect, tables, number)


def _version(link: Link, dialect: Dialect, tables: Tables) -> int:
    """Return the version of the schema, 0 if there is none."""
    if not dialect.has_table(link, tables.name("meta")):
        return 0
    found = link.rows(tables.fill("SELECT value FROM {meta} WHERE name = %s"), [b"version"])
    version = int(bytes(found[0][0])) if found else 0
    if version > NEWEST:
        raise SchemaTooNew(
            f"the tables {tables.name('*')} have version {version}; this release reads versions up to {NEWEST}: "
            "upgrade celery-sticky here"
        )
    return version


def _remember(link: Link, dialect: Dialect, tables: Tables, number: int) -> None:
    insert = tables.fill("INSERT INTO {meta} (name, value) VALUES (%s, %s)")
    if number == 1:  # a database that was created again has another id
        link.run(insert + dialect.upsert(["name"], ["value"]), [STORE, uuid.uuid4().hex.encode()])
    link.run(insert + dialect.upsert(["name"], ["value"]), [b"version", str(number).encode()])


def _typed(statement: str, dialect: Dialect) -> str:
    """Return the statement with the dialect's types in the place of names such as `:bytes:`."""
    for name, text in dialect.types.items():
        statement = statement.replace(f":{name}:", text)
    return statement
