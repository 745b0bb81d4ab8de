"""The connections of one command: the app, its stores and its slot queues, opened on demand and closed at the end."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from types import TracebackType
from typing import Any, Self

from celery_sticky.app import Sticky
from celery_sticky.drivers import find_driver, known_connection, open_queues, open_shared
from celery_sticky.errors import StickyError
from celery_sticky.keyed import KeyedTasks
from celery_sticky.keys import DEFAULT_KEYSPACE
from celery_sticky.queues import SlotQueues
from celery_sticky.settings import Settings
from celery_sticky.stores import JobStore, PlacementStore, Reading, Store
from celery_sticky.stores.jobs import JobCounts
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
        self._stores: dict[str, Store] = {}
        self._placement_stores: dict[str, PlacementStore] = {}
        self._job_stores: dict[str, JobStore] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if "_client" in vars(self):
            self._client.close()
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

    @cached_property
    def _client(self) -> SharedClient:
        """The client of all stores."""
        return open_shared(self.store_at, prefix=self.settings.key_prefix, socket_timeout=IO_TIMEOUT)

    def store(self, keyspace: str) -> Store:
        """Return the store of a keyspace."""
        if keyspace not in self._stores:
            self._stores[keyspace] = self._client.store(keyspace)
        return self._stores[keyspace]

    def read(self, keyspaces: Collection[str]) -> dict[str, Reading | StickyError]:
        """Read the stores of keyspaces together, as `SharedClient.read_each` does."""
        stores = [self.store(keyspace) for keyspace in keyspaces]
        return dict(zip(keyspaces, self._client.read_each(stores), strict=True))

    def enlisted(self, keyspaces: Collection[str]) -> dict[str, Mapping[str, str] | StickyError]:
        """Return the workers of placed keyspaces that have a worker queue, as `SharedClient.enlisted_each` does."""
        stores = [self.placement_store(keyspace) for keyspace in keyspaces]
        return dict(zip(keyspaces, self._client.enlisted_each(stores), strict=True))

    def job_counts(self, keyspaces: Collection[str]) -> dict[str, JobCounts | StickyError]:
        """Count the jobs of keyspaces, as `SharedClient.job_counts_each` does; a store without jobs has none."""
        driver = find_driver(self.store_at)
        if driver is not None and driver.job_store is None:
            return dict.fromkeys(keyspaces, JobCounts())
        stores = [self.job_store(keyspace) for keyspace in keyspaces]
        return dict(zip(keyspaces, self._client.job_counts_each(stores), strict=True))

    def job_store(self, keyspace: str) -> JobStore:
        """Return the job store of a keyspace."""
        if keyspace not in self._job_stores:
            self._job_stores[keyspace] = self._client.job_store(keyspace)
        return self._job_stores[keyspace]

    def placement_store(self, keyspace: str) -> PlacementStore:
        """Return the placement store of a placed keyspace, which holds its claims and pins."""
        if keyspace not in self._placement_stores:
            self._placement_stores[keyspace] = self._client.placement_store(keyspace)
        return self._placement_stores[keyspace]

    def slots_of(self, keyspace: str, reading: Reading) -> int:
        """Return the number of slots of a keyspace, from its document, or else from the settings."""
        return reading.view.slots if reading.view is not None else self.settings.slots_of(keyspace)

    def only(self, keyspace: str | None) -> list[str]:
        """Return the requested keyspace, or all of them."""
        return self.keyspaces if keyspace is None else [keyspace]
