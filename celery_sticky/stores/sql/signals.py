"""The signals of a keyspace, as the difference between two looks at its rows."""

from __future__ import annotations

from celery_sticky.ownership.events import HeartbeatHeard, ViewChanged
from celery_sticky.sql import Database
from celery_sticky.stores.base import Signal
from celery_sticky.stores.placement import NO_VERSION

LOOK = (
    "SELECT v.version, v.generation, h.incarnation, h.announced FROM {view} v "
    "LEFT JOIN {heartbeat} h ON h.scope = v.scope AND h.announced > 0 WHERE v.scope = %s"
)


class Signals:
    """Looks at one keyspace."""

    def __init__(self, database: Database, scope: bytes) -> None:
        self._database, self._scope = database, scope
        self._version = NO_VERSION
        self._announced: dict[str, int] = {}
        self._own: set[str] = set()

    def is_own(self, incarnation: str) -> None:
        """Leave out heartbeats of this member from now on."""
        self._own.add(incarnation)

    def look(self) -> list[Signal]:
        """Return what has changed since the last look."""
        rows = self._database.rows(LOOK, [self._scope])
        version = rows[0][:2] if rows else NO_VERSION
        announced = {bytes(name).decode(): counter for _, _, name, counter in rows if name is not None}
        signals: list[Signal] = [ViewChanged(version[0])] if version != self._version else []
        signals += [
            HeartbeatHeard(incarnation, counter)
            for incarnation, counter in announced.items()
            if incarnation not in self._own and self._announced.get(incarnation) != counter
        ]
        self._version, self._announced = version, announced
        return signals
