"""The schema's version, and the migrations that lead to it. Two processes may migrate one database at once."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping

from celery_sticky.errors import SchemaTooNew, SchemaTooOld
from celery_sticky.sql.dialects.base import Dialect
from celery_sticky.sql.link import Link
from celery_sticky.sql.migrations import MIGRATIONS
from celery_sticky.sql.tables import Tables, named

NEWEST = len(MIGRATIONS)
"""The version that this release reads and writes."""
STORE = b"store"
"""The name in `meta` of the random id that the database got with its schema."""


def table_names() -> list[str]:
    """Return the names of all tables that any release has created, without their prefix."""
    return sorted({name for step in MIGRATIONS for statement in step for name in named(statement)})


def ensure_schema(link: Link, dialect: Dialect, tables: Tables, timeout: float, *, migrate: bool) -> None:
    """Check that a database has this release's schema; bring an empty or older one to it if `migrate` is true.

    Raises:
        SchemaTooNew: a newer release has migrated it.
        SchemaTooOld: it has to be migrated, and `migrate` is false.
    """
    found = version_of(link, dialect, tables)
    if found == NEWEST:
        return
    if not migrate:
        raise SchemaTooOld(
            f"the tables {tables.name('*')} have version {found}; this release needs version {NEWEST}: run `celery -A "
            "yourapp sticky sql migrate` as a user who may create tables, or the statements of `celery sticky sql ddl`"
        )
    with dialect.alone(link, tables.name("migration"), timeout):
        # Another process may have migrated meanwhile.
        for statement in statements(dialect, tables, since=version_of(link, dialect, tables)):
            link.run(statement)


def version_of(link: Link, dialect: Dialect, tables: Tables) -> int:
    """Return the version of the schema, 0 if there is none.

    Raises:
        SchemaTooNew: a newer release has migrated it.
    """
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


def statements(dialect: Dialect, tables: Tables, since: int) -> Iterator[str]:
    """Yield the statements that lead from a version to the newest one, without parameters.

    Each can be repeated. The version is written down after each step, so that one that was interrupted goes on.
    """
    for number, step in enumerate(MIGRATIONS[since:], since + 1):
        for statement in step.get(dialect.name, ()) if isinstance(step, Mapping) else step:
            yield tables.fill(_typed(statement, dialect))
        if number == 1:  # a database that was created again has another id
            yield _remember(dialect, tables, STORE, uuid.uuid4().hex.encode())
        yield _remember(dialect, tables, b"version", str(number).encode())


def _remember(dialect: Dialect, tables: Tables, name: bytes, value: bytes) -> str:
    said = ", ".join(dialect.literal.format(one.hex()) for one in (name, value))
    return tables.fill(f"INSERT INTO {{meta}} (name, value) VALUES ({said})") + dialect.upsert(["name"], ["value"])


def _typed(statement: str, dialect: Dialect) -> str:
    """Return the statement with the dialect's types in the place of names such as `:bytes:`."""
    for name, text in dialect.types.items():
        statement = statement.replace(f":{name}:", text)
    return statement
