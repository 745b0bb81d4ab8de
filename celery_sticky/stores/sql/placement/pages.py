"""Reads pins and claims page by page, and removes those of incarnations that are gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from celery_sticky.sql import Database
from celery_sticky.sql.link import Row
from celery_sticky.stores.placement import START, PinRecord
from celery_sticky.stores.sql.placement.book import Book

PAGE = 500
"""Most rows read by one call."""
NEXT = {"key_claim": "pin", "pin": ""}
"""The table that is swept after another."""


class Pages:
    """The pages of one keyspace. A cursor is the name of a table and the last key in it, in hexadecimal digits."""

    def __init__(self, database: Database, scope: bytes, locked: Callable[[], AbstractContextManager[Book]]) -> None:
        self._database, self._scope, self._locked = database, scope, locked

    def pins(self, start: str) -> tuple[str, Sequence[PinRecord]]:
        """See `PlacementStore.pins`."""
        table, after = _place(start, "pin")
        rows = self._page(table, f"r.worker, r.token, {self._database.dialect.clock}", after)
        records = [
            PinRecord.made(bytes(key).decode(), bytes(worker).decode(), bytes(by).decode(), token, int(now * 1000))
            for key, by, alive, worker, token, now in rows
            if alive
        ]
        return _cursor(table, rows) if len(rows) == PAGE else START, records

    def sweep(self, start: str) -> str:
        """See `PlacementStore.sweep`."""
        table, after = _place(start, "key_claim")
        rows = self._page(table, "r.token", after)
        void = {bytes(key).decode(): bytes(by).decode() for key, by, alive, _ in rows if not alive}
        if void:
            self._remove(table, void)
        if len(rows) == PAGE:
            return _cursor(table, rows)
        if NEXT[table]:
            return f"{NEXT[table]}."
        with self._locked() as book:
            book.drop_expired()
        return START

    def _remove(self, table: str, void: dict[str, str]) -> None:
        """Remove entries, unless a live incarnation has them by now: one that is gone stays gone."""
        with self._locked() as book:
            if table == "key_claim":
                for incarnation in set(void.values()):
                    book.release(incarnation, [key for key, by in void.items() if by == incarnation])
                return
            for key, pin in book.pins(void.keys()).items():
                if not book.lives(pin.incarnation):
                    book.delete_pin(key)
                    book.lose(key, pin)

    def _page(self, table: str, columns: str, after: bytes) -> list[Row]:
        return self._database.rows(
            f"SELECT r.task_key, r.incarnation, h.incarnation IS NOT NULL, {columns} FROM {{{table}}} r "
            "LEFT JOIN {heartbeat} h ON h.scope = r.scope AND h.incarnation = r.incarnation "
            "WHERE r.scope = %s AND r.task_key > %s ORDER BY r.task_key LIMIT %s",
            [self._scope, after, PAGE],
        )


def _place(cursor: str, first: str) -> tuple[str, bytes]:
    """Return the table and the last key of a cursor; no key is empty."""
    table, _, key = (f"{first}." if cursor == START else cursor).partition(".")
    return table, bytes.fromhex(key)


def _cursor(table: str, rows: Sequence[Row]) -> str:
    return f"{table}.{bytes(rows[-1][0]).hex()}"
