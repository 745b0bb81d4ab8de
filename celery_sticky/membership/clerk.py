"""The clerk of a member: carries out the requests of its flow with the store, the name lock and the placer.

Only the member's thread uses it, except for `wake`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from celery_sticky.membership.flow import Pause, Placer, Prepare, Request, Watch
from celery_sticky.membership.name_lock import NameLock
from celery_sticky.stores.base import Store


class Clerk:
    """A member's client of one store."""

    def __init__(self, open_store: Callable[[], Store], name_lock: NameLock, placer: Placer | None) -> None:
        self._open_store, self._name_lock, self._placer = open_store, name_lock, placer
        self._store: Store | None = None

    def perform(self, request: Request) -> object:
        """Carry out a request; return its answer.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        match request:
            case Watch(seconds):
                return self._connected.watch(seconds)
            case Prepare(incarnation):
                self._name_lock.write(incarnation)
                if self._placer is not None:
                    self._placer.joining(incarnation)
            case Pause(seconds):
                time.sleep(seconds)
            case _:
                return request(self._connected)
        return None

    @property
    def _connected(self) -> Store:
        if self._store is None:
            self._store = self._open_store()
        return self._store

    def wake(self) -> None:
        """End the present `Watch`, or the next one, at once. Any thread may call this."""
        if (store := self._store) is not None:
            store.wake()

    def close(self) -> None:
        """Disconnect."""
        if self._store is not None:
            self._store.close()
