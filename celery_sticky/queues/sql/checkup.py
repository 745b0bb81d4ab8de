"""What `doctor` and a starting worker ask of a database: see `celery_sticky.drivers.Checkup`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from typing import Any

from celery_sticky.errors import BrokerUnavailable
from celery_sticky.findings import Finding, Level, note, wrong
from celery_sticky.keys import SlotId
from celery_sticky.queues.sql.names import slot_number
from celery_sticky.sql import Database
from celery_sticky.sql.schema import NEWEST

FACTS: Mapping[str, Mapping[str, str]] = {
    "postgresql": {
        "server": "'PostgreSQL ' || current_setting('server_version')",
        "read_only": "pg_is_in_recovery()",
        "fsync": "current_setting('fsync')",
        "synchronous_commit": "current_setting('synchronous_commit')",
    },
    "mysql": {
        "server": "CONCAT('MySQL ', VERSION())",
        "read_only": "@@read_only",
        "innodb_flush_log_at_trx_commit": "@@innodb_flush_log_at_trx_commit",
    },
    "sqlite": {
        "server": "'SQLite ' || sqlite_version()",
        "synchronous": "(SELECT synchronous FROM pragma_synchronous)",
    },
}
"""Dialect -> name of a fact -> the expression that tells it."""
LOSSY = {
    "fsync": ("off",),
    "synchronous_commit": ("off",),
    "innodb_flush_log_at_trx_commit": (0, 2),
    "synchronous": (0, 1),
}
"""Facts -> values with which a crash of the machine loses transactions that were committed."""
MOST_SLOTS = 4096
"""Slots of each keyspace that are looked for: a queue is known only by the hash of its name."""


def facts(connection: Any, *, socket_timeout: float) -> dict[str, Any]:
    """Return facts about a database.

    Raises:
        BrokerUnavailable: it does not answer.
    """
    with closing(_database(connection, socket_timeout)) as database:
        wanted = FACTS[database.dialect.name]
        [row] = database.rows(f"SELECT {', '.join(wanted.values())}")
        return {**dict(zip(wanted, row, strict=True)), "schema": NEWEST, "tables": database.tables.name("*")}


def findings(what: str, facts: Mapping[str, Any], *, trust: float) -> Iterable[Finding]:
    """Yield the findings about a database's facts."""
    if facts.get("read_only"):
        yield wrong(f"{what}: this server is read-only, perhaps a standby; connect to the primary")
    if facts.get("fsync") == "off":
        yield wrong(f"{what}: fsync is off: a crash may damage the database; set it to on")
    for name, lossy in LOSSY.items():
        if name != "fsync" and facts.get(name) in lossy:
            yield note(f"{what}: {name} is {facts[name]}: a crash of the machine may lose the last messages")


def access_findings(what: str, connection: Any, *, prefix: str, socket_timeout: float) -> Iterable[Finding]:
    """Return nothing: a user who can create the tables can use them."""
    return ()


def queue_findings(connection: Any, *, prefix: str, socket_timeout: float) -> Iterable[Finding]:
    """Return nothing: there is one layout."""
    return ()


def slots(connection: Any, *, prefix: str, socket_timeout: float) -> Collection[SlotId]:
    """Return the numbered slots with messages, in keyspaces of which the database has an ownership document."""
    with closing(_database(connection, socket_timeout)) as database:
        scopes = [bytes(row[0]).decode() for row in database.rows("SELECT scope FROM {view}")]
        filled = {row[0] for table in ("message", "deferred") for row in database.rows(
            f"SELECT DISTINCT queue FROM {{{table}}}"
        )}  # fmt: skip
    keyspaces = [scope.removeprefix(f"{prefix}.") for scope in scopes if scope.startswith(f"{prefix}.")]
    return {
        (keyspace, slot)
        for keyspace in keyspaces
        for slot in range(MOST_SLOTS)
        if slot_number(keyspace, slot, prefix) in filled
    }


def warning(connection: Any, *, socket_timeout: float) -> str | None:
    """Return what is wrong with the database, for a worker's log."""
    about = connection.as_uri()
    found = findings(about, facts(connection, socket_timeout=socket_timeout), trust=0.0)
    return ". ".join(one.text for one in found if one.level is Level.WRONG) or None


def _database(connection: Any, timeout: float) -> Database:
    return Database.of(connection, timeout=timeout, unavailable=BrokerUnavailable)
