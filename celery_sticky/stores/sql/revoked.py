"""The revoked task ids of a key prefix."""

from __future__ import annotations

from collections.abc import Collection

from celery_sticky.sql import Database, Runner
from celery_sticky.sql.schema import STORE
from celery_sticky.sql.text import chunks, values


class Revoked:
    """See `Store.revoke`. The newest ids are those that expire last."""

    def __init__(self, database: Database, prefix: str) -> None:
        self._database, self._prefix = database, prefix.encode()

    def add(self, task_ids: Collection[str], ttl: float, limit: int) -> None:
        """See `Store.revoke`."""
        dialect = self._database.dialect
        with self._database.transaction() as inside:
            # One change of the set at a time.
            inside.rows(f"SELECT t.value FROM {{meta}} t WHERE t.name = %s{dialect.update}", [STORE])
            [(now,)] = inside.rows(f"SELECT {dialect.clock}")
            inside.run("DELETE FROM {revoked} WHERE prefix = %s AND expires <= %s", [self._prefix, now])
            for some in chunks(sorted({task_id.encode() for task_id in task_ids})):
                text, said = values([(self._prefix, task_id, now + ttl) for task_id in some])
                end = dialect.upsert(["prefix", "task"], ["expires"])
                inside.run(f"INSERT INTO {{revoked}} (prefix, task, expires) VALUES {text}{end}", said)
            self._trim(inside, limit)

    def read(self) -> frozenset[str]:
        """See `Store.revoked`."""
        statement = f"SELECT task FROM {{revoked}} WHERE prefix = %s AND expires > {self._database.dialect.clock}"
        return frozenset(bytes(row[0]).decode() for row in self._database.rows(statement, [self._prefix]))

    def _trim(self, inside: Runner, limit: int) -> None:
        [(count,)] = inside.rows("SELECT COUNT(*) FROM {revoked} WHERE prefix = %s", [self._prefix])
        if count <= limit:
            return
        oldest = "SELECT task FROM {revoked} WHERE prefix = %s ORDER BY expires, task LIMIT %s"
        excess = [(self._prefix, bytes(row[0])) for row in inside.rows(oldest, [self._prefix, count - limit])]
        for some in chunks(excess):
            inside.run(*self._database.dialect.delete("{revoked}", ("prefix name", "task key"), some))
