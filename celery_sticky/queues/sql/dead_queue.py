"""The buried messages of a keyspace."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from celery_sticky.errors import SlotBroken
from celery_sticky.queues.inspection import Dead, run_of
from celery_sticky.queues.sql.ledger import forget_run
from celery_sticky.queues.sql.names import keyspace_name, slot_number
from celery_sticky.slots import Slot
from celery_sticky.sql import Database
from celery_sticky.sql.bell import queue_topic
from celery_sticky.sql.text import as_bytes, marks

PAGE = 200
TRIM_STEP = 100
"""Most buried messages dropped by one request."""
ONE = "keyspace = %s AND name = %s"


class _Gone(Exception):
    """Another client was faster."""


class DeadQueue:
    """The dead queues, with the methods of `SlotQueues`."""

    def __init__(self, database: Database, prefix: str) -> None:
        self._database, self._prefix = database, prefix

    def page(self, keyspace: str, after: str, limit: int | None) -> Sequence[Dead]:
        """See `SlotQueues.dead`."""
        name = keyspace_name(keyspace, self._prefix)
        last = self._database.rows(f"SELECT id FROM {{dead}} WHERE {ONE}", [name, after.encode()])
        seen, found = (last[0][0] if last else 0), list[Dead]()
        while limit is None or len(found) < limit:
            wanted = PAGE if limit is None else min(PAGE, limit - len(found))
            rows = self._database.rows(
                "SELECT id, name, info FROM {dead} WHERE keyspace = %s AND id > %s ORDER BY id LIMIT %s",
                [name, seen, wanted],
            )
            found += [Dead(_text(row[0], "name", row[1]), _text(row[0], "info", row[2])) for row in rows]
            if len(rows) < wanted:
                break
            seen = rows[-1][0]
        return found

    def read(self, keyspace: str, dead_id: str) -> Dead | None:
        """See `SlotQueues.dead_message`."""
        rows = self._database.rows(f"SELECT id, info, body FROM {{dead}} WHERE {ONE}", self._one(keyspace, dead_id))
        return Dead(dead_id, _text(rows[0][0], "info", rows[0][1]), as_bytes(rows[0][2])) if rows else None

    def counts(self, keyspaces: Collection[str]) -> dict[str, int]:
        """See `SlotQueues.dead_counts`."""
        if not keyspaces:
            return {}
        names = {keyspace_name(keyspace, self._prefix): keyspace for keyspace in keyspaces}
        statement = f"SELECT keyspace, COUNT(*) FROM {{dead}} WHERE keyspace IN {marks(len(names))} GROUP BY keyspace"
        found = {names[bytes(name)]: int(count) for name, count in self._database.rows(statement, list(names))}
        return {keyspace: found.get(keyspace, 0) for keyspace in keyspaces}

    def trim(self, keyspace: str, limit: int, before: float) -> int:
        """See `SlotQueues.trim_dead`."""
        surplus = self.counts([keyspace])[keyspace] - limit if limit else 0
        rows = self._database.rows(
            "SELECT id, at FROM {dead} WHERE keyspace = %s ORDER BY id LIMIT %s",
            [keyspace_name(keyspace, self._prefix), TRIM_STEP],
        )
        dropped: list[int] = []
        for number, at in rows:
            if len(dropped) >= surplus and not (isinstance(at, int | float) and at < before):
                break
            dropped.append(number)
        if not dropped:
            return 0
        return self._database.run(f"DELETE FROM {{dead}} WHERE id IN {marks(len(dropped))}", dropped)

    def requeue(self, keyspace: str, slot: Slot, dead_id: str) -> bool:
        """See `SlotQueues.requeue`; the message goes to this slot."""
        one = self._one(keyspace, dead_id)
        try:
            with self._database.transaction() as inside:
                inside.run(
                    "INSERT INTO {message} (queue, priority, body) SELECT queue, priority, body FROM {dead} "
                    f"WHERE {ONE}",
                    one,
                    ring=[queue_topic(slot_number(keyspace, slot, self._prefix))],
                )
                info = inside.rows(f"SELECT info FROM {{dead}} WHERE {ONE}", one)
                if not inside.run(f"DELETE FROM {{dead}} WHERE {ONE}", one):
                    raise _Gone
                if run := run_of(bytes(info[0][0]).decode()):
                    forget_run(inside, one[0], run)
        except _Gone:
            return False
        return True

    def drop(self, keyspace: str, dead_id: str) -> bool:
        """See `SlotQueues.drop`."""
        return self._database.run(f"DELETE FROM {{dead}} WHERE {ONE}", self._one(keyspace, dead_id)) == 1

    def _one(self, keyspace: str, dead_id: str) -> list[bytes]:
        return [keyspace_name(keyspace, self._prefix), dead_id.encode()]


def _text(number: int, column: str, value: object) -> str:
    try:
        return as_bytes(value).decode()
    except UnicodeDecodeError as error:
        raise SlotBroken(f"table dead, row {number}: {column} is not UTF-8; correct or delete the row") from error
