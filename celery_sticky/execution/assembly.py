"""Assembles a worker's part in its keyspaces: courier, placers, keepers and members, before the pool forks."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

from celery.concurrency.prefork import TaskPool as PreforkPool
from kombu import Connection

from celery_sticky.delivery.courier import Courier
from celery_sticky.delivery.flow import CourierConfig
from celery_sticky.delivery.line import ThreadedLine
from celery_sticky.drivers import open_queues, open_store
from celery_sticky.errors import StickyError
from celery_sticky.execution.body import runs_task
from celery_sticky.execution.children import Children
from celery_sticky.execution.context import WorkerContext
from celery_sticky.execution.hooks import WorkerHooks, WorkerPinHooks, signal_jobs
from celery_sticky.execution.interrupts import Interrupts
from celery_sticky.execution.jobs import Around, WorkerJobs, make_jobs
from celery_sticky.execution.ledger import ledgers
from celery_sticky.execution.places import waits_for_task
from celery_sticky.execution.refusals import Refusals
from celery_sticky.execution.results import Results
from celery_sticky.execution.run import TaskRun
from celery_sticky.execution.servers import check_servers, keeps_in_process
from celery_sticky.execution.store_threads import member_threads, placer_threads
from celery_sticky.instrumentation.logs import log_jobs, log_owner_changes
from celery_sticky.instrumentation.registry import Instruments
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
from celery_sticky.settings import OnLeaseLoss, Settings, read_keyspaces
from celery_sticky.slots import WorkerQueue
from celery_sticky.stores.first_document import write_first


def make_context(worker: Any, chosen: Any) -> WorkerContext:
    """Assemble it for the keyspaces chosen on the command line, or otherwise for those of the app.

    Raises:
        InvalidSettings: the broker or the store has no driver, or cannot do what a keyspace needs.
    """
    return _Assembly(worker, chosen).make()


class _Assembly:
    """The parts as they are made. What one part tells another goes through here, when both are there."""

    def __init__(self, worker: Any, chosen: Any) -> None:
        wiring = worker.app.sticky_wiring
        self._worker, self._wiring, self._where = worker, wiring, wiring.store_at
        self._settings: Settings = wiring.settings
        named = {spec.keyspace for spec in wiring.tasks.all().values()} | wiring.declared.keyspaces
        self._keyspaces = _keyspaces(self._settings, chosen, named)
        self._placed = [name for name in self._keyspaces if self._settings.placed_keyspace(name) is not None]
        self._has_processes = issubclass(worker.pool_cls, PreforkPool)
        with_jobs = [name for name in self._keyspaces if name in wiring.declared.keyspaces]
        self._ledgers = {name: some for name, some in ledgers(wiring.tasks).items() if name in self._keyspaces}
        claiming = sorted(task for some in self._ledgers.values() for task in some)
        self._guarantees = check_servers(worker, self._where, self._settings, self._placed, with_jobs, claiming)
        self._in_process = keeps_in_process(self._where)
        self._lease = Lease(self._keyspaces)
        self._instruments = Instruments()
        self._courier = self._make_courier()
        self._member_thread = member_threads(self._where, self._settings)
        self._placer_thread = placer_threads(self._where, self._settings)
        self._placers: dict[str, Placer] = {}
        self._members: dict[str, Member] = {}
        self._jobs: WorkerJobs | None = None

    def make(self) -> WorkerContext:
        worker, wiring, settings = self._worker, self._wiring, self._settings
        if self._in_process:
            self._write_documents()
        log_owner_changes(self._instruments)
        log_jobs(self._instruments)
        signal_jobs(self._instruments)
        for name in self._placed:
            self._placers[name] = self._make_placer(name)
        self._jobs = make_jobs(worker, self._around())
        hooks, folder = WorkerHooks(worker), runtime_dir(settings.runtime_dir)
        for name in self._keyspaces:
            self._members[name] = self._make_member(name, hooks, folder)
        results, runs = Results(), dict[int, TaskRun]()
        wiring.lease, wiring.worker = self._lease, worker.hostname
        return WorkerContext(
            hostname=worker.hostname,
            settings=settings,
            tasks=wiring.tasks,
            keyspaces=self._keyspaces,
            has_processes=self._has_processes,
            store_url=self._where.as_uri(),
            servers=self._servers(),
            lease=self._lease,
            courier=self._courier,
            members=self._members,
            placers=self._placers,
            jobs=self._jobs,
            refusals=Refusals(worker.app, worker.hostname, results),
            results=results,
            loop_watch=self._make_loop_watch(),
            trust_watch=self._make_trust_watch(runs),
            runs=runs,
        )

    def _servers(self) -> Mapping[str, Connection]:
        broker = self._worker.app.connection_for_read()
        if broker.as_uri() == self._where.as_uri():
            return {"the broker": broker}
        return {"the broker": broker, "the store": self._where}

    def _make_loop_watch(self) -> LoopWatch | None:
        timeout = self._settings.loop_timeout
        return LoopWatch(timeout, self._report_loop, _is_busy) if timeout else None

    def _make_trust_watch(self, runs: Mapping[int, TaskRun]) -> Children | Interrupts:
        ends_tasks = self._settings.on_lease_loss is OnLeaseLoss.TERMINATE
        if self._has_processes:
            return Children(self._lease, runs, self._worker.app.tasks, ends_tasks=ends_tasks)
        return Interrupts(self._lease, green=self._worker.pool_cls.is_green, ends_tasks=ends_tasks)

    def _around(self) -> Around:
        return Around(
            self._worker.hostname,
            self._settings,
            self._keyspaces,
            self._lease,
            self._courier,
            self._placers,
            self._post,
            self._instruments,
        )

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

    def _make_courier(self) -> Courier:
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
            claim_ahead=settings.claim_ahead,
            ledgers=sorted(self._ledgers),
            ledger_retention=settings.ledger_retention,
            dead_bounds={name: settings.dead_bounds_of(name) for name in self._keyspaces},
        )
        return Courier(
            ThreadedLine(self._connect),
            config,
            self._report,
            self._lease.trusted,
            lambda keyspace: self._placers[keyspace].wake(),
        )

    def _report(self, keyspace: str, event: Event) -> None:
        """Pass on the courier's reports."""
        match event:
            case Opened(WorkerQueue()) | OpenRefused(WorkerQueue()) | Drained(WorkerQueue()):
                self._placers[keyspace].report(event)
            case _ if self._jobs is not None:
                self._jobs.report(keyspace, event)
            case _:
                self._post(keyspace, event)

    def _report_loop(self, event: Event) -> None:
        for keyspace in self._keyspaces:
            self._post(keyspace, event)

    def _post(self, keyspace: str, event: Event) -> None:
        self._members[keyspace].post(event)

    def _make_member(self, name: str, hooks: WorkerHooks, folder: Path | None) -> Member:
        settings, hostname = self._settings, self._worker.hostname
        where = f"{self._where.as_uri()} {settings.key_prefix}"
        if self._in_process:
            where += f" in process {os.getpid()}"  # other processes have a store of the same URL
        shared = self._jobs.slots(name) if self._jobs is not None else None
        name_lock = NameLock(folder, where, name, hostname)
        return Member(
            name,
            self._config(name),
            self._member_thread(),
            shared or self._courier,
            self._lease,
            name_lock,
            hooks,
            revoke_ttl=settings.revoke_ttl,
            revoke_limit=settings.revoke_limit,
            placer=self._placers.get(name),
            jobs=shared,
            instruments=self._instruments,
        )

    def _config(self, keyspace: str) -> Callable[[str], MemberConfig]:
        settings = self._settings
        origin = uuid.uuid4().hex[:12]
        return partial(
            _config_of,
            name=self._worker.hostname,
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

    def _make_placer(self, name: str) -> Placer:
        settings, hostname = self._settings, self._worker.hostname
        keyspace = settings.placed_keyspace(name)
        assert keyspace is not None
        return Placer(
            keyspace,
            self._keyspaces[name],
            hostname,
            self._placer_thread(),
            self._connect,
            self._courier,
            self._lease,
            partial(self._post, name),
            WorkerPinHooks(hostname, name),
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
