"""Queues as Kombu declares them: their names, bindings, sizes, and the end of those that outlive their consumer."""

from __future__ import annotations

from collections.abc import Collection

from celery_sticky.queues.sql.names import queue_number
from celery_sticky.sql import Database, Transaction
from celery_sticky.sql.text import chunks, marks, values

LASTS = 60.0
"""Seconds that a temporary queue outlives its last consumer, if its declaration does not say so."""
EXPIRED = 50
"""Most queues deleted by one sweep."""
CLAIMED = (
    "SELECT 1 FROM {claim} c "
    "WHERE c.queue = {message}.queue AND c.priority = {message}.priority AND c.id = {message}.id"
)
ROW = "INSERT INTO {queue} (queue, name, lasts, expires) VALUES "


def declare(database: Database, name: str, lasts: float | None) -> None:
    """Write a queue's name down; `lasts` is in seconds, None for ever."""
    dialect = database.dialect
    said = [queue_number(name), name.encode()]
    if lasts is None:
        database.run(f"{ROW}(%s, %s, NULL, NULL){dialect.or_nothing}", said)
    else:
        end = dialect.upsert(["queue"], ["lasts", "expires"])
        database.run(f"{ROW}(%s, %s, %s, {dialect.clock} + %s){end}", [*said, lasts, lasts])


def is_declared(database: Database, name: str) -> bool:
    """Return whether a queue was declared and has not expired."""
    return bool(database.rows("SELECT 1 FROM {queue} WHERE queue = %s", [queue_number(name)]))


def bind(database: Database, exchange: str, routing_key: str, pattern: str, name: str) -> None:
    """Route messages for this exchange and key to a queue."""
    text, said = values(
        [(exchange.encode(), routing_key.encode(), pattern.encode(), name.encode(), queue_number(name))]
    )
    columns = "exchange, routing_key, pattern, name, queue"
    database.run(f"INSERT INTO {{binding}} ({columns}) VALUES {text}{database.dialect.or_nothing}", said)


def bindings(database: Database, exchange: str) -> list[tuple[str, str, str]]:
    """Return routing key, pattern and queue of each binding of an exchange."""
    rows = database.rows("SELECT routing_key, pattern, name FROM {binding} WHERE exchange = %s", [exchange.encode()])
    return [(bytes(key).decode(), bytes(pattern).decode(), bytes(name).decode()) for key, pattern, name in rows]


def size(database: Database, name: str) -> int:
    """Return the number of messages that nobody has claimed."""
    statement = f"SELECT COUNT(*) FROM {{message}} WHERE queue = %s AND NOT EXISTS ({CLAIMED})"
    return int(database.rows(statement, [queue_number(name)])[0][0])


def purge(database: Database, name: str) -> int:
    """Delete the messages that nobody has claimed, and those that wait for their ETA; return their number."""
    number = queue_number(name)
    database.run("DELETE FROM {deferred} WHERE queue = %s", [number])
    return database.run(f"DELETE FROM {{message}} WHERE queue = %s AND NOT EXISTS ({CLAIMED})", [number])


def delete(database: Database, name: str) -> None:
    """Delete a queue, its bindings and its messages."""
    with database.transaction() as inside:
        _delete(inside, queue_number(name))


def keep(database: Database, names: Collection[str], lasts: float) -> None:
    """Let temporary queues that are consumed from expire later."""
    for some in chunks(sorted(names)):
        numbers = [queue_number(name) for name in some]
        database.run(
            f"UPDATE {{queue}} SET expires = {database.dialect.clock} + CASE WHEN lasts > %s THEN lasts ELSE %s END "
            f"WHERE queue IN {marks(len(some))} AND lasts IS NOT NULL",
            [lasts, lasts, *numbers],
        )


def expire(database: Database) -> None:
    """Delete queues that have expired."""
    dialect = database.dialect
    old = f"expires < {dialect.clock}"
    for (number,) in database.rows(f"SELECT queue FROM {{queue}} WHERE {old} LIMIT {EXPIRED}"):
        with database.transaction() as inside:
            if inside.rows(f"SELECT t.queue FROM {{queue}} t WHERE t.queue = %s AND t.{old}{dialect.update}", [number]):
                _delete(inside, number)


def _delete(inside: Transaction, number: int) -> None:
    for table in ("{binding}", "{message}", "{deferred}", "{claim}", "{queue}"):
        inside.run(f"DELETE FROM {table} WHERE queue = %s", [number])
