"""The connections of one command: the app, its stores and its slot queues, opened on demand and closed at the end."""

from __future__ import annotations

from functools import cached_property
from types import TracebackType
from typing import Any, Self

from celery_sticky.app import Sticky
from celery_sticky.drivers import known_connection, open_job_store, open_queues, open_shared, shares_clients
from celery_sticky.errors import StickyError
from celery_sticky.keyed import KeyedTasks
from celery_sticky.keys import DEFAULT_KEYSPACE
from celery_sticky.queues import SlotQueues
from celery_sticky.settings import Settings
from celery_sticky.stores import JobStore, PlacementStore, Reading, Store
from celery_sticky.stores.shared import SharedClient

IO_TIMEOUT = 2.0
"""Seconds the store or the broker may take to answer."""


class Session:
    """One command's connections."""

    def __init__(self, app: Any) -> None:
        try:
            sticky = Sticky.of(app)
        except StickyError as error:
            raise StickyError(f"{error}, and name that app here: celery -A yourapp sticky …") from error
        app.loader.import_default_modules()  # registers the tasks, and so the keyed ones
        self.app = app
        self._wiring = sticky.wiring
        self.settings: Settings = sticky.settings
        self.tasks: KeyedTasks = sticky.tasks
        self._clients: list[SharedClient] = []
        self._stores: dict[str, Store] = {}
        self._placement_stores: dict[str, PlacementStore] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients:
            client.close()
        if "queues" in vars(self):
            self.queues.close()

    @cached_property
    def keyspaces(self) -> list[str]:
        """The keyspaces this app knows: those of its settings, its tasks and its jobs."""
        named = {spec.keyspace for spec in self.tasks.all().values()} | self._wiring.declared.keyspaces
        return sorted({*(self.settings.keyspaces or {DEFAULT_KEYSPACE}), *named, *self.settings.placed})

    @cached_property
    def broker(self) -> Any:
        """A Kombu connection that only describes where the broker is; nothing is sent over it."""
        return known_connection(self.app.connection_for_read)

    @cached_property
    def store_at(self) -> Any:
        """A Kombu connection that only describes where the store is; nothing is sent over it."""
        return self._wiring.store_at

    @cached_property
    def queues(self) -> SlotQueues:
        """The slot queues."""
        return open_queues(self.broker, prefix=self.settings.key_prefix, socket_timeout=IO_TIMEOUT)

    def store(self, keyspace: str) -> Store:
        """Return the store of a keyspace."""
        if keyspace not in self._stores:
            self._stores[keyspace] = self._client().store(keyspace)
        return self._stores[keyspace]

    def _client(self) -> SharedClient:
        """Return the client of all stores, or another one if the driver cannot share one."""
        if not self._clients or not shares_clients(self.store_at):
            prefix = self.settings.key_prefix
            self._clients.append(open_shared(self.store_at, prefix=prefix, socket_timeout=IO_TIMEOUT))
        return self._clients[0] if shares_clients(self.store_at) else self._clients[-1]

    def jobs(self, keyspace: str) -> JobStore:
        """Open the job store of a keyspace. The caller must close it."""
        return open_job_store(self.store_at, keyspace, prefix=self.settings.key_prefix, socket_timeout=IO_TIMEOUT)

    def placement_store(self, keyspace: str) -> PlacementStore:
        """Return the placement store of a placed keyspace, which holds its claims and pins."""
        if keyspace not in self._placement_stores:
            self._placement_stores[keyspace] = self._client().placement_store(keyspace)
        return self._placement_stores[keyspace]

    def slots_of(self, keyspace: str, reading: Reading) -> int:
        """Return the number of slots of a keyspace, from its document, or else from the settings."""
        return reading.view.slots if reading.view is not None else self.settings.slots_of(keyspace)

    def only(self, keyspace: str | None) -> list[str]:
        """Return the requested keyspace, or all of them."""
        return self.keyspaces if keyspace is None else [keyspace]
