"""The claims and pins of a keyspace, while a transaction has them for itself: it holds the row of the view."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from celery_sticky.sql import Runner
from celery_sticky.sql.bell import DOCUMENT, PINS, keyspace_topic
from celery_sticky.sql.dialects.base import Dialect
from celery_sticky.sql.link import Row
from celery_sticky.sql.text import chunks, marks, values
from celery_sticky.stores.placement import LOST_KEPT, NO_VERSION
from celery_sticky.stores.sql.snapshot import Snapshot

MOVED_KEPT = 60_000
"""Milliseconds for which changes of pins are kept for listeners."""


class Pin(NamedTuple):
    """A stored pin, whether or not its incarnation is alive."""

    incarnation: str
    worker: str
    token: int


class Book:
    """Reads and changes the rows of one keyspace inside a transaction."""

    def __init__(self, inside: Runner, dialect: Dialect, scope: bytes, found: Snapshot) -> None:
        self._inside, self._dialect, self._scope = inside, dialect, scope
        self.found = found

    def lives(self, incarnation: str) -> bool:
        """Return whether an incarnation has a counter."""
        return incarnation in self.found.counters

    def may_act(self, incarnation: str) -> bool:
        """Return whether it is a member, and the document was written to this run of the store."""
        found = self.found
        return self.lives(incarnation) and found.version != NO_VERSION and found.written_to == found.store_id

    def in_turn(self, incarnation: str, call: int) -> bool:
        """Remember the number of a member's call; return False if a later one was here before."""
        statement = "UPDATE {heartbeat} SET calls = %s WHERE scope = %s AND incarnation = %s AND calls < %s"
        return bool(self._inside.run(statement, [call, self._scope, incarnation.encode(), call]))

    def remove_document(self) -> None:
        """Remove the document, and with it all members."""
        self._inside.run(
            "UPDATE {view} SET version = 0, generation = 0, document = %s WHERE scope = %s",
            [b"", self._scope],
            ring=[keyspace_topic(DOCUMENT, self._scope)],
        )
        self._inside.run("DELETE FROM {heartbeat} WHERE scope = %s", [self._scope])

    def tokens(self, count: int) -> range:
        """Return that many new tokens."""
        rows = self._inside.rows("SELECT token FROM {token} WHERE scope = %s", [self._scope])
        last = rows[0][0] if rows else 0
        first = max(last + 1, int(self.found.clock * 1000))
        end = self._dialect.upsert(["scope"], ["token"])
        self._inside.run(f"INSERT INTO {{token}} (scope, token) VALUES (%s, %s){end}", [self._scope, first + count - 1])
        return range(first, first + count)

    # -- Claims --------------------------------------------------------------------------------

    def holders(self, keys: Collection[str]) -> dict[str, str]:
        """Return the incarnations that have claimed keys, alive or not."""
        return {key: bytes(row[0]).decode() for key, row in self._of_keys("key_claim", "incarnation", keys)}

    def claim(self, incarnation: str, tokens: Mapping[str, int]) -> None:
        """Record claims: key -> token."""
        end = self._dialect.upsert(["scope", "task_key"], ["incarnation", "token"])
        rows = [(self._scope, key.encode(), incarnation.encode(), token) for key, token in tokens.items()]
        for some in chunks(sorted(rows)):
            text, said = values(some)
            self._inside.run(
                f"INSERT INTO {{key_claim}} (scope, task_key, incarnation, token) VALUES {text}{end}", said
            )

    def release(self, incarnation: str, keys: Collection[str]) -> None:
        """Delete the claims of keys by this incarnation."""
        for some in chunks([(self._scope, key, incarnation.encode()) for key in names(keys)]):
            self._delete("{key_claim}", ("scope name", "task_key key", "incarnation name"), some)

    # -- Pins ----------------------------------------------------------------------------------

    def pins(self, keys: Collection[str]) -> dict[str, Pin]:
        """Return the pins of keys, also those of incarnations that are gone."""
        found = self._of_keys("pin", "incarnation, worker, token", keys)
        return {key: Pin(bytes(row[0]).decode(), bytes(row[1]).decode(), row[2]) for key, row in found}

    def set_pin(self, key: str, pin: Pin) -> None:
        """Write a pin."""
        end = self._dialect.upsert(["scope", "task_key"], ["incarnation", "worker", "token"])
        self._inside.run(
            f"INSERT INTO {{pin}} (scope, task_key, incarnation, worker, token) VALUES (%s, %s, %s, %s, %s){end}",
            [self._scope, key.encode(), pin.incarnation.encode(), pin.worker.encode(), pin.token],
        )

    def delete_pin(self, key: str) -> None:
        """Delete a pin."""
        self._inside.run("DELETE FROM {pin} WHERE scope = %s AND task_key = %s", [self._scope, key.encode()])

    def enlisted(self, worker: str) -> str:
        """Return the incarnation of a worker; empty: it is not enlisted."""
        statement = "SELECT incarnation FROM {enlisted} WHERE scope = %s AND worker = %s"
        rows = self._inside.rows(statement, [self._scope, worker.encode()])
        return bytes(rows[0][0]).decode() if rows else ""

    def lose(self, key: str, pin: Pin) -> None:
        """Record that somebody else has ended a pin."""
        end = self._dialect.upsert(["scope", "incarnation", "task_key"], ["token", "expires"])
        self._inside.run(
            f"INSERT INTO {{lost_pin}} (scope, incarnation, task_key, token, expires) VALUES {marks(5)}{end}",
            [self._scope, pin.incarnation.encode(), key.encode(), pin.token, self.found.clock + LOST_KEPT],
        )

    def drop_lost(self, key: str, incarnation: str, token: int | None = None) -> None:
        """Forget that an incarnation has lost the pin of a key. `token`: only if it was this one."""
        statement = "DELETE FROM {lost_pin} WHERE scope = %s AND incarnation = %s AND task_key = %s"
        said = [self._scope, incarnation.encode(), key.encode()]
        self._inside.run(*((statement, said) if token is None else (f"{statement} AND token = %s", [*said, token])))

    def forget_lost(self, incarnations: Collection[str], keys: Collection[str]) -> None:
        """Forget that any of these incarnations have lost the pins of these keys."""
        for incarnation in names(incarnations):
            for some in chunks([(self._scope, incarnation, key) for key in names(keys)]):
                self._delete("{lost_pin}", ("scope name", "incarnation name", "task_key key"), some)

    def drop_expired(self) -> None:
        """Forget lost pins whose time is up."""
        statement = "DELETE FROM {lost_pin} WHERE scope = %s AND expires <= %s"
        self._inside.run(statement, [self._scope, self.found.clock])

    def tell(self, key: str, incarnations: Iterable[str], token: int | None = None) -> None:
        """Tell listeners that the pin of a key has changed. `token`: a new one, if there is one already."""
        token = self.tokens(1)[0] if token is None else token
        living = "\n".join(sorted(filter(self.lives, set(incarnations))))
        self._inside.run("DELETE FROM {moved} WHERE scope = %s AND token < %s", [self._scope, token - MOVED_KEPT])
        self._inside.run(
            f"INSERT INTO {{moved}} (scope, token, task_key, concerned) VALUES {marks(4)}",
            [self._scope, token, key.encode(), living.encode()],
            ring=[keyspace_topic(PINS, self._scope)],
        )

    def _delete(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[bytes]]) -> None:
        self._inside.run(*self._dialect.delete(table, columns, rows))

    def _of_keys(self, table: str, columns: str, keys: Collection[str]) -> Iterable[tuple[str, Row]]:
        for some in chunks(names(keys)):
            statement = (
                f"SELECT task_key, {columns} FROM {{{table}}} WHERE scope = %s AND task_key IN {marks(len(some))}"
            )
            for key, *row in self._inside.rows(statement, [self._scope, *some]):
                yield bytes(key).decode(), tuple(row)


def names(keys: Iterable[str]) -> Sequence[bytes]:
    """Return keys or incarnations as they are stored, in the order of their rows."""
    return sorted({key.encode() for key in keys})
