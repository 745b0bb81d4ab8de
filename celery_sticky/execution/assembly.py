"""Assembles a worker's part in its keyspaces: courier, placers, keepers and members, before the pool forks."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import partial
from importlib.metadata import version
from types import FrameType
from typing import Any

from celery.concurrency.prefork import TaskPool as PreforkPool

from celery_sticky.delivery.courier import Courier
from celery_sticky.delivery.flow import CourierConfig
from celery_sticky.delivery.line import ThreadedLine
from celery_sticky.drivers import open_placement_store, open_queues, open_store
from celery_sticky.errors import StickyError
from celery_sticky.execution.body import runs_task
from celery_sticky.execution.context import WorkerContext
from celery_sticky.execution.hooks import WorkerHooks
from celery_sticky.execution.jobs import make_jobs
from celery_sticky.execution.places import waits_for_task
from celery_sticky.execution.refusals import Refusals
from celery_sticky.execution.servers import check_servers, keeps_in_process
from celery_sticky.instrumentation.logs import log_owner_changes
from celery_sticky.keys import DEFAULT_KEYSPACE
from celery_sticky.membership.lease import Lease
from celery_sticky.membership.loop_watch import LoopWatch
from celery_sticky.membership.member import Member
from celery_sticky.membership.name_lock import NameLock, runtime_dir
from celery_sticky.ownership.events import Drained, Event, Opened, OpenRefused
from celery_sticky.ownership.machine import MemberConfig
from celery_sticky.ownership.view import HAS_WORKER_QUEUE
from celery_sticky.placement.placer import Placer
from celery_sticky.queues import SlotQueues
from celery_sticky.settings import Settings, read_keyspaces
from celery_sticky.signals import pins_lost
from celery_sticky.stores.first_document import write_first


def make_context(worker: Any, chosen: Any) -> WorkerContext:
    """Assemble it for the keyspaces chosen on the command line, or otherwise for those of the app.

    Raises:
        InvalidSettings: the broker or the store has no driver, or cannot do what a keyspace needs.
    """
    return _Assembly(worker, chosen).make()


class _Assembly:
    def __init__(self, worker: Any, chosen: Any) -> None:
        wiring = worker.app.sticky_wiring
        self._worker, self._wiring, self._where = worker, wiring, wiring.store_at
        self._settings: Settings = wiring.settings
        named = {spec.keyspace for spec in wiring.tasks.all().values()} | wiring.declared.keyspaces
        self._keyspaces = _keyspaces(self._settings, chosen, named)
        self._placed = [name for name in self._keyspaces if self._settings.placed_keyspace(name) is not None]

    def make(self) -> WorkerContext:
        worker, wiring = self._worker, self._wiring
        jobs = [name for name in self._keyspaces if name in wiring.declared.keyspaces]
        self._guarantees = check_servers(worker, self._where, self._settings, self._placed, jobs)
        self._in_process = keeps_in_process(self._where)
        if self._in_process:
            self._write_documents()
        lease = Lease(self._keyspaces)
        context = self._context = WorkerContext(
            hostname=worker.hostname,
            settings=self._settings,
            tasks=wiring.tasks,
            keyspaces=self._keyspaces,
            lease=lease,
            has_processes=issubclass(worker.pool_cls, PreforkPool),
            courier=self._courier(lease),
        )
        log_owner_changes(context.instruments)
        if self._settings.loop_timeout:
            context.loop_watch = LoopWatch(self._settings.loop_timeout, self._report_loop, _is_busy)
        context.refusals = Refusals(worker.app, worker.hostname, context.results)
        context.store_url = self._where.as_uri()
        broker = worker.app.connection_for_read()
        context.servers = {"the broker": broker}
        if broker.as_uri() != context.store_url:
            context.servers = {**context.servers, "the store": self._where}
        for name in self._placed:
            context.placers[name] = self._placer(name)
        context.jobs = make_jobs(worker, context)
        hooks, self._folder = WorkerHooks(worker), runtime_dir(self._settings.runtime_dir)
        for name in self._keyspaces:
            context.members[name] = self._member(name, hooks)
        wiring.lease, wiring.worker = lease, worker.hostname
        return context

    def _write_documents(self) -> None:
        """Write the first documents: nobody has to wait for workers that a store in this process has forgotten."""
        for name, slots in self._keyspaces.items():
            store = open_store(self._where, name, prefix=self._settings.key_prefix)
            with closing(store), suppress(StickyError):  # another worker of this process was quicker
                write_first(
                    store,
                    slots,
                    hash_name=self._settings.hash_of(name),
                    epochs_outlive_store=self._guarantees.epochs_outlive_store,
                )

    def _connect(self) -> SlotQueues:
        settings = self._settings
        connection = self._worker.app.connection_for_read()
        return open_queues(connection, prefix=settings.key_prefix, socket_timeout=settings.io_timeout)

    def _courier(self, lease: Lease) -> Courier:
        settings = self._settings
        config = CourierConfig(
            keyspaces=tuple(self._keyspaces),
            worker=self._worker.hostname,
            max_waiting=settings.max_waiting,
            max_waiting_bytes=settings.max_waiting_bytes,
            max_attempts=settings.max_attempts,
            broker_grace=settings.broker_grace,
            placed=self._placed,
            guarantees=self._guarantees,
            dead_limit=settings.dead_limit,
            dead_ttl=settings.dead_ttl,
        )
        return Courier(
            ThreadedLine(self._connect),
            config,
            self._report,
            lease.trusted,
            lambda keyspace: self._context.placers[keyspace].wake(),
        )

    def _report(self, keyspace: str, event: Event) -> None:
        """Pass on the courier's reports."""
        if isinstance(event, Opened | OpenRefused | Drained) and isinstance(event.slot, str):
            self._context.placers[keyspace].report(event)
        elif self._context.jobs is not None:
            self._context.jobs.report(keyspace, event)
        else:
            self._context.members[keyspace].post(event)

    def _report_loop(self, event: Event) -> None:
        for member in self._context.members.values():
            member.post(event)

    def _member(self, name: str, hooks: WorkerHooks) -> Member:
        settings, context = self._settings, self._context
        where = f"{context.store_url} {settings.key_prefix}"
        if self._in_process:
            where += f" in process {os.getpid()}"  # other processes have a store of the same URL
        name_lock = NameLock(self._folder, where, name, context.hostname)
        return Member(
            name,
            self._config(name),
            partial(open_store, self._where, name, prefix=settings.key_prefix, socket_timeout=settings.io_timeout),
            context.jobs.slots(name) if context.jobs else context.courier,
            context.lease,
            name_lock,
            hooks,
            revoke_ttl=settings.revoke_ttl,
            revoke_limit=settings.revoke_limit,
            placer=context.placers.get(name),
            instruments=context.instruments,
        )

    def _config(self, keyspace: str) -> Callable[[str], MemberConfig]:
        settings = self._settings
        origin = uuid.uuid4().hex[:12]
        return partial(
            _config_of,
            name=self._context.hostname,
            origin=origin,
            slots=self._keyspaces[keyspace],
            hash=settings.hash_of(keyspace),
            ttl=settings.lease_ttl,
            margin=settings.lease_margin,
            settle=settings.settle,
            broker_grace=settings.broker_grace,
            epochs_outlive_store=self._guarantees.epochs_outlive_store,
            loop_timeout=settings.loop_timeout or 0.0,
            weight=settings.weight,
            attributes=_attributes(settings, keyspace),
            jitter=int(origin, 16) % 1000 / 1000,
        )

    def _placer(self, name: str) -> Placer:
        settings, context = self._settings, self._context
        keyspace = settings.placed_keyspace(name)
        assert keyspace is not None

        def report(event: Event) -> None:
            context.members[name].post(event)

        def tell_lost(keys: frozenset[str]) -> None:
            pins_lost.send(sender=context.hostname, keyspace=name, keys=keys)

        return Placer(
            keyspace,
            self._keyspaces[name],
            context.hostname,
            partial(
                open_placement_store, self._where, name, prefix=settings.key_prefix, socket_timeout=settings.io_timeout
            ),
            self._connect,
            context.courier,
            context.lease,
            report,
            tell_lost,
        )


def _is_busy(frame: FrameType) -> bool:
    return runs_task(frame) or waits_for_task(frame)


def _config_of(dead_incarnation: str, **config: Any) -> MemberConfig:
    return MemberConfig(dead_incarnation=dead_incarnation, **config)


def _keyspaces(settings: Settings, chosen: Any, named: set[str]) -> Mapping[str, int]:
    if chosen:
        named_here = read_keyspaces("--sticky-keyspaces", chosen) or {}
        return {name: slots or settings.slots_of(name) for name, slots in named_here.items()}
    if settings.keyspaces is not None:
        return settings.keyspaces
    return {name: settings.slots_of(name) for name in sorted({DEFAULT_KEYSPACE, *named, *settings.placed})}


def _attributes(settings: Settings, keyspace: str) -> dict[str, str]:
    own = {**(settings.attributes or {}), "version": version("celery-sticky")}
    return own if settings.placed_keyspace(keyspace) is None else {**own, HAS_WORKER_QUEUE: "1"}
