"""The heartbeat rows of a keyspace: one for each member, made and removed by swaps only."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from celery_sticky.sql import Runner
from celery_sticky.sql.bell import HEARTBEAT, keyspace_topic
from celery_sticky.sql.dialects.base import Dialect, joined
from celery_sticky.sql.text import chunks, values

KEY = ("scope name", "incarnation name")


class Members:
    """The rows of one keyspace."""

    def __init__(self, dialect: Dialect, scope: bytes) -> None:
        self._dialect, self._scope = dialect, scope

    def lock(self, inside: Runner, incarnations: Iterable[str]) -> None:
        """Wait for heartbeats of these members that are under way; theirs are none until the transaction ends."""
        for some in chunks(self._rows(incarnations)):
            rows, said = joined(self._dialect, "{heartbeat}", KEY, some)
            inside.rows(f"SELECT t.counter FROM {rows} ORDER BY t.incarnation{self._dialect.update}", said)

    def beat(self, inside: Runner, incarnation: str, *, announce: bool) -> bool:
        """Add one to a member's counter; return False if it has none."""
        # `announced` comes first: MySQL computes it from the new counter otherwise.
        return bool(
            inside.run(
                f"UPDATE {{heartbeat}} SET announced = {'counter + 1' if announce else '0'}, counter = counter + 1, "
                f"heard = {self._dialect.clock} WHERE scope = %s AND incarnation = %s",
                [self._scope, incarnation.encode()],
                ring=[keyspace_topic(HEARTBEAT, self._scope)] if announce else (),
            )
        )

    def replace(self, inside: Runner, present: Collection[str], wanted: Collection[str], now: float) -> None:
        """Remove the counters of members that are not `wanted`, and create those that are missing."""
        for some in chunks(self._rows(set(present) - set(wanted))):
            inside.run(*self._dialect.delete("{heartbeat}", KEY, some))
        for some in chunks(self._rows(set(wanted) - set(present))):
            text, said = values([(*key, 0, 0, now, 0) for key in some])
            columns = "scope, incarnation, counter, announced, heard, calls"
            inside.run(f"INSERT INTO {{heartbeat}} ({columns}) VALUES {text}", said)

    def _rows(self, incarnations: Iterable[str]) -> list[tuple[bytes, bytes]]:
        """Return the primary keys of these members, in the order of locks."""
        return sorted((self._scope, incarnation.encode()) for incarnation in incarnations)
