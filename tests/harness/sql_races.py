"""Two connections at the same rows: what waits for what."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

from celery_sticky.sql import Database
from celery_sticky.sql.tables import Tables
from celery_sticky.testing.queue_steps import LONG
from celery_sticky.testing.waiting import wait_until

WAITERS = {
    "postgresql": "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() "
    "AND wait_event_type = 'Lock'",
    "mysql": "SELECT COUNT(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p "
    "ON p.id = t.trx_mysql_thread_id WHERE p.db = DATABASE() AND t.trx_state = 'LOCK WAIT'",
}
"""Counts the requests that wait for a lock."""


class Stranger:
    """A transaction of another program, which holds locks until it ends."""

    def __init__(self, raw: Any, tables: Tables) -> None:
        self.raw, self._tables = raw, tables
        self.run("BEGIN")

    def run(self, statement: str) -> None:
        """Run a statement."""
        with closing(self.raw.cursor()) as cursor:
            cursor.execute(self._tables.fill(statement))

    def end(self, how: str = "ROLLBACK") -> None:
        """End the transaction."""
        self.run(how)


class Doing(threading.Thread):
    """Does something in a thread, which waits for a lock."""

    def __init__(self, database: Database, what: Callable[[], Any], waiters: int) -> None:
        """Return when so many requests in the database wait for a lock, this one among them."""
        super().__init__(daemon=True)
        self._what, self._result = what, None
        self.start()
        statement = WAITERS[database.dialect.name]
        wait_until(
            lambda: database.rows(statement)[0][0] == waiters,
            timeout=LONG,
            message=f"{waiters} requests wait for a lock",
            interval=0.2,  # InnoDB shows the same answer again to those who ask more than ten times a second
        )

    def run(self) -> None:
        """See `Thread.run`."""
        self._result = self._what()

    def result(self) -> Any:
        """Wait for the end and return what came of it."""
        self.join(LONG)
        assert not self.is_alive(), "it came to its end"
        return self._result
