"""The signals of a placed keyspace: changes of its document, and of its pins."""

from __future__ import annotations

from celery_sticky.ownership.events import ViewChanged
from celery_sticky.sql import Database
from celery_sticky.stores.placement import NO_VERSION, PinMoved

LAST = "SELECT COALESCE(MAX(token), 0) FROM {moved} WHERE scope = %s"
# Tokens are drawn and committed in the same order, since both happen under the lock of the view.
LOOK = (
    "SELECT v.version, v.generation, m.token, m.task_key, m.concerned FROM {view} v "
    "LEFT JOIN {moved} m ON m.scope = v.scope AND m.token > %s WHERE v.scope = %s ORDER BY m.token"
)


class PlacementSignals:
    """Looks at one keyspace."""

    def __init__(self, database: Database, scope: bytes) -> None:
        self._database, self._scope = database, scope
        self._version = NO_VERSION
        self._token: int | None = None

    def look(self) -> list[ViewChanged | PinMoved]:
        """Return what has changed since the last look."""
        if self._token is None:
            self._token = int(self._database.rows(LAST, [self._scope])[0][0])
        rows = self._database.rows(LOOK, [self._token, self._scope])
        version = rows[0][:2] if rows else NO_VERSION
        signals: list[ViewChanged | PinMoved] = [ViewChanged(version[0])] if version != self._version else []
        for _, _, token, key, concerned in rows:
            if token is not None:
                incarnations = bytes(concerned).decode().split("\n")
                signals.append(PinMoved(bytes(key).decode(), frozenset(filter(None, incarnations))))
                self._token = token
        self._version = version
        return signals
