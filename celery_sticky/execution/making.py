"""Makes a worker's part in its keyspaces: courier, directors, keepers and members, before the pool forks."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from typing import Any

from celery.concurrency.prefork import TaskPool as PreforkPool

from celery_sticky.delivery.courier import Courier
from celery_sticky.delivery.dead_bounds import DeadBounds
from celery_sticky.errors import InvalidSettings
from celery_sticky.execution.body import runs_task
from celery_sticky.execution.hooks import WorkerHooks
from celery_sticky.execution.jobs import make_jobs
from celery_sticky.execution.part import Part
from celery_sticky.execution.refusals import Refusals
from celery_sticky.keys import DEFAULT_KEYSPACE
from celery_sticky.membership.claim import Claim, runtime_dir
from celery_sticky.membership.lease import Lease
from celery_sticky.membership.loop_watch import LoopWatch
from celery_sticky.membership.member import Member
from celery_sticky.ownership.events import Drained, Event, Opened, OpenRefused
from celery_sticky.ownership.machine import Terms
from celery_sticky.ownership.view import DIRECT_QUEUE
from celery_sticky.placement.director import Director
from celery_sticky.queues import SlotQueues, open_queues
from celery_sticky.settings import Settings, read_keyspaces
from celery_sticky.signals import pins_lost
from celery_sticky.stores import open_directory, open_store


def make_part(worker: Any, chosen: Any) -> Part:
    """Make it for the keyspaces that were chosen on the command line, or else for those of the app.

    Raises:
        InvalidSettings: there is no driver for the broker or the store, or it cannot do what a keyspace asks for.
    """
    return _Maker(worker, chosen).make()


class _Maker:
    def __init__(self, worker: Any, chosen: Any) -> None:
        wiring = worker.app.sticky_wiring
        self._worker, self._wiring, self._where = worker, wiring, wiring.store_at
        self._settings: Settings = wiring.settings
        named = {spec.keyspace for spec in wiring.tasks.all().values()} | wiring.declared.keyspaces
        self._keyspaces = _keyspaces(self._settings, chosen, named)
        self._directed = [name for name in self._keyspaces if self._settings.directing(name) is not None]

    def make(self) -> Part:
        self._check()
        worker, wiring = self._worker, self._wiring
        lease = Lease(self._keyspaces)
        part = self._part = Part(
            hostname=worker.hostname,
            settings=self._settings,
            tasks=wiring.tasks,
            keyspaces=self._keyspaces,
            lease=lease,
            has_processes=issubclass(worker.pool_cls, PreforkPool),
            courier=self._courier(lease),
        )
        if self._settings.loop_timeout:
            part.loop_watch = LoopWatch(self._settings.loop_timeout, self._report_loop, runs_task)
        part.refusals = Refusals(worker.app, worker.hostname, part.results)
        part.store_url = self._where.as_uri()
        broker = worker.app.connection_for_read()
        part.servers = {"the broker": broker}
        if broker.as_uri() != part.store_url:
            part.servers = {**part.servers, "the store": self._where}
        for name in self._directed:
            part.directors[name] = self._director(name)
        part.jobs = make_jobs(worker, part)
        hooks, self._folder = WorkerHooks(worker), runtime_dir(self._settings.runtime_dir)
        for name in self._keyspaces:
            part.members[name] = self._member(name, hooks)
        wiring.lease, wiring.worker = lease, worker.hostname
        return part

    def _check(self) -> None:
        queues = self._connect()
        queues.close()  # nothing is sent: a broker we have no driver for is refused here and now
        if self._directed and not queues.guarantees.moves:
            names = ", ".join(self._directed)
            raise InvalidSettings(
                f"keyspaces {names} direct keys to workers (assign, pins): this broker cannot do that"
            )
        open_store(self._where, DEFAULT_KEYSPACE).close()  # likewise

    def _connect(self) -> SlotQueues:
        settings = self._settings
        connection = self._worker.app.connection_for_read()
        return open_queues(connection, prefix=settings.key_prefix, socket_timeout=settings.patience)

    def _courier(self, lease: Lease) -> Courier:
        settings = self._settings
        return Courier(
            self._connect,
            self._report,
            lease.trusted,
            keyspaces=tuple(self._keyspaces),
            worker=self._worker.hostname,
            max_waiting=settings.max_waiting,
            max_waiting_bytes=settings.max_waiting_bytes,
            max_attempts=settings.max_attempts,
            dead_bounds=DeadBounds(settings.dead_limit, settings.dead_ttl),
            broker_grace=settings.broker_grace,
            directed=self._directed,
            unclaimed=lambda keyspace: self._part.directors[keyspace].wake(),
        )

    def _report(self, keyspace: str, event: Event) -> None:
        """Pass on what the courier says."""
        if isinstance(event, Opened | OpenRefused | Drained) and isinstance(event.slot, str):
            self._part.directors[keyspace].report(event)
        elif self._part.jobs is not None:
            self._part.jobs.report(keyspace, event)
        else:
            self._part.members[keyspace].post(event)

    def _report_loop(self, event: Event) -> None:
        for member in self._part.members.values():
            member.post(event)

    def _member(self, name: str, hooks: WorkerHooks) -> Member:
        settings, part = self._settings, self._part
        claim = Claim(self._folder, f"{part.store_url} {settings.key_prefix}", name, part.hostname)
        return Member(
            name,
            self._terms(name),
            partial(open_store, self._where, name, prefix=settings.key_prefix, socket_timeout=settings.patience),
            part.jobs.slots(name) if part.jobs else part.courier,
            part.lease,
            claim,
            hooks,
            revoke_ttl=settings.revoke_ttl,
            revoke_limit=settings.revoke_limit,
            director=part.directors.get(name),
        )

    def _terms(self, keyspace: str) -> Callable[[str], Terms]:
        settings = self._settings
        origin = uuid.uuid4().hex[:12]
        return partial(
            _terms_of,
            name=self._part.hostname,
            origin=origin,
            slots=self._keyspaces[keyspace],
            hash=settings.hash_of(keyspace),
            ttl=settings.lease_ttl,
            margin=settings.lease_margin,
            settle=settings.settle,
            broker_grace=settings.broker_grace,
            loop_timeout=settings.loop_timeout or 0.0,
            weight=settings.weight,
            attributes=_attributes(settings, keyspace),
            jitter=int(origin, 16) % 1000 / 1000,
        )

    def _director(self, name: str) -> Director:
        settings, part = self._settings, self._part
        keyspace = settings.directing(name)
        assert keyspace is not None

        def report(event: Event) -> None:
            part.members[name].post(event)

        def tell_lost(keys: frozenset[str]) -> None:
            pins_lost.send(sender=part.hostname, keyspace=name, keys=keys)

        return Director(
            keyspace,
            self._keyspaces[name],
            part.hostname,
            partial(open_directory, self._where, name, prefix=settings.key_prefix, socket_timeout=settings.patience),
            self._connect,
            part.courier,
            part.lease,
            report,
            tell_lost,
        )


def _terms_of(dead_incarnation: str, **terms: Any) -> Terms:
    return Terms(dead_incarnation=dead_incarnation, **terms)


def _keyspaces(settings: Settings, chosen: Any, named: set[str]) -> Mapping[str, int]:
    if chosen:
        named_here = read_keyspaces("--sticky-keyspaces", chosen) or {}
        return {name: slots or settings.slots_of(name) for name, slots in named_here.items()}
    if settings.keyspaces is not None:
        return settings.keyspaces
    return {name: settings.slots_of(name) for name in sorted({DEFAULT_KEYSPACE, *named, *settings.directed})}


def _attributes(settings: Settings, keyspace: str) -> dict[str, str]:
    own = {**(settings.attributes or {}), "version": version("celery-sticky")}
    return own if settings.directing(keyspace) is None else {**own, DIRECT_QUEUE: "1"}
