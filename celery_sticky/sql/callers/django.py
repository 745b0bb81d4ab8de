"""Django's connections."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from celery_sticky.sql.callers.base import Said, first, loaded


class OfDjango:
    """See `Caller`."""

    def __init__(self, wrapper: Any) -> None:
        self.kind = str(wrapper.vendor)
        self._wrapper = wrapper

    def value(self, query: str) -> Any:
        """See `Caller.value`."""
        with self._wrapper.cursor() as cursor:
            cursor.execute(query)
            return first(cursor.fetchone())

    def run(self, statement: str, said: Said) -> None:
        """See `Caller.run`."""
        with self._wrapper.cursor() as cursor:
            cursor.execute(statement, list(said))

    def autocommits(self) -> bool:
        """See `Caller.autocommits`."""
        return bool(not self._wrapper.in_atomic_block and self._wrapper.get_autocommit())

    def after_commit(self, call: Callable[[], None]) -> None:
        """See `Caller.after_commit`."""
        if self._wrapper.in_atomic_block:
            self._wrapper.on_commit(call, robust=True)


def find(connection: Any) -> OfDjango | None:
    """Return the caller of a connection of Django, None if it is not one."""
    proxy = loaded("django.utils.connection", "ConnectionProxy")
    wrapper = loaded("django.db.backends.base.base", "BaseDatabaseWrapper")
    if isinstance(connection, proxy) and hasattr(connection, "vendor"):
        connection = sys.modules["django.db"].connections[connection.alias]
    return OfDjango(connection) if isinstance(connection, wrapper) else None
