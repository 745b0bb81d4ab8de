"""The parts that belong to one Celery app: its settings, tasks, jobs, and the clients of its stores."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any

from celery.bin.base import CeleryOption

from celery_sticky.drivers import known_connection, open_job_store, open_placement_store, open_store
from celery_sticky.jobs.client import Jobs
from celery_sticky.jobs.declared import DeclaredJobs
from celery_sticky.keyed import KeyedTasks
from celery_sticky.keyspace import Keyspace
from celery_sticky.membership.lease import Lease
from celery_sticky.outbox import Outboxes
from celery_sticky.placement.lookup import PlacementLookup
from celery_sticky.settings import SETTING, Settings
from celery_sticky.stores import JobStore, PlacementStore, Store


class Wiring:
    """The parts of one app, shared by all `Sticky` objects that refer to it."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.tasks = KeyedTasks(self._registry)
        self.declared = DeclaredJobs()
        self.lease: Lease | None = None
        """The worker's lease, and whether to trust it. It is set in a worker, its pool children and its job host."""
        self.worker: str | None = None
        """The worker's node name. It is set in the same processes."""
        self.lookup = PlacementLookup(lambda: self.settings, self._open_placement_store)
        self._keyspaces: list[Keyspace] = []

    def _registry(self) -> Mapping[str, Any]:
        # `app.tasks` also registers tasks that are only declared so far. Without it, a send by name would not see
        # that its task is keyed. An app with `autofinalize=False` raises if `app.tasks` is read too early.
        app = self.app
        tasks: Mapping[str, Any] = app.tasks if app.finalized or app.autofinalize else app._tasks
        return tasks

    @cached_property
    def settings(self) -> Settings:
        """The app's settings, read on first access."""
        return Settings.read(sticky_entries(self.app.conf)).declaring(self._keyspaces)

    def declare(self, keyspaces: list[Keyspace]) -> None:
        """Add keyspaces that the code declares."""
        if keyspaces:
            self._keyspaces += keyspaces
            vars(self).pop("settings", None)  # cached settings lack these keyspaces

    @property
    def store_at(self) -> Any:
        """A Kombu connection that only describes where the store is; nothing is sent over it."""
        url = self.settings.store
        return known_connection(partial(self.app.connection_for_write, **({"url": url} if url else {})))

    @cached_property
    def jobs(self) -> Jobs:
        """The client for this app's jobs."""
        return Jobs(
            lambda: self.settings,
            self._open_job_store,
            self.declared.keyspace_of,
            self._open_store,
            self.lookup,
            self.declared.find,
        )

    @cached_property
    def outboxes(self) -> Outboxes:
        """What `Sticky.outbox` opens."""
        return Outboxes(self.app)

    def _open_job_store(self, keyspace: str) -> JobStore:
        return open_job_store(
            self.store_at, keyspace, prefix=self.settings.key_prefix, socket_timeout=self.settings.io_timeout
        )

    def _open_store(self, keyspace: str) -> Store:
        return open_store(
            self.store_at, keyspace, prefix=self.settings.key_prefix, socket_timeout=self.settings.io_timeout
        )

    def _open_placement_store(self, keyspace: str) -> PlacementStore:
        return open_placement_store(
            self.store_at, keyspace, prefix=self.settings.key_prefix, socket_timeout=self.settings.io_timeout
        )


def sticky_entries(conf: Any) -> dict[str, Any]:
    """Return the `sticky_*` entries of `app.conf`, in whatever spelling they have there.

    Celery finds a setting it knows under its namespace (`CELERY_STICKY_SLOTS` in Django's settings), but it cannot list
    settings it does not know. Without a namespace, old-style upper-case modules also use `CELERY_STICKY_SLOTS`.
    """
    namespace = (conf.finalize().prefix or "CELERY_").lower()
    found = {}
    for key in conf:
        name = key if key.startswith(SETTING) else _bare(key, namespace)
        if name.startswith(SETTING):
            # The bare name comes first, so that `app.conf.update(sticky_slots=...)` overrides a settings module.
            found[name] = conf[name] if name in conf else conf[key]
    return found


def _bare(key: str, namespace: str) -> str:
    lowered = key.lower()
    return lowered.removeprefix(namespace) if lowered.startswith(namespace + SETTING) else ""


def take_part(app: Any) -> None:
    """Add our bootsteps and options to the app's workers, by name: other processes must not import worker code."""
    app.steps["worker"].add("celery_sticky.bootsteps.membership:Membership")
    for step in ("delivery:Delivery", "loop_check:LoopCheck", "handover:Handover"):
        app.steps["consumer"].add(f"celery_sticky.bootsteps.{step}")
    app.user_options["worker"] |= {_KEYSPACES_OPTION, _WITHOUT_OPTION}


_KEYSPACES_OPTION = CeleryOption(
    ("--sticky-keyspaces",),
    metavar="NAMES",
    help_group="Sticky Options",
    help="Take part in these keyspaces only (comma-separated).",
)
_WITHOUT_OPTION = CeleryOption(
    ("--without-sticky",),
    is_flag=True,
    help_group="Sticky Options",
    help="Take part in no keyspace; consume ordinary queues only.",
)
