"""Worker step: takes part in keyspaces. Makes what the other steps share, and registers membership and heartbeats.

It is made before the pool forks, so that the children share the lease; the threads start when the pool has started.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping
from importlib.metadata import version
from typing import Any

from celery import bootsteps, signals
from celery.backends.base import DisabledBackend
from celery.concurrency.prefork import TaskPool as PreforkPool
from celery.worker import state as worker_state

from celery_sticky.bootsteps.children import Children
from celery_sticky.bootsteps.interrupts import Interrupts
from celery_sticky.bootsteps.jobs import make_jobs
from celery_sticky.bootsteps.part import Part
from celery_sticky.bootsteps.refusals import Refusals
from celery_sticky.bootsteps.retry import fence_retry
from celery_sticky.errors import InvalidSettings, RefusedToStart
from celery_sticky.keys import DEFAULT_KEYSPACE
from celery_sticky.ownership.events import Drained, Event, Opened, OpenRefused
from celery_sticky.ownership.machine import Terms
from celery_sticky.ownership.view import DIRECT_QUEUE
from celery_sticky.queues import SlotQueues, open_queues
from celery_sticky.settings import OnLeaseLoss, Settings, read_keyspaces
from celery_sticky.signals import pins_lost, slots_gained, slots_lost
from celery_sticky.stores import Directory, Store, open_directory, open_store
from celery_sticky.worker.claim import Claim, runtime_dir
from celery_sticky.worker.courier import Courier
from celery_sticky.worker.director import Director
from celery_sticky.worker.lease import Lease
from celery_sticky.worker.member import Member
from celery_sticky.worker.native import share_with_threads

logger = logging.getLogger("celery_sticky")


class Membership(bootsteps.StartStopStep):
    """Takes part in the keyspaces of this worker."""

    # Threads start when everything has forked: a child would inherit whatever lock one of them happened to hold.
    requires = (
        "celery.worker.components:Pool",
        "celery.worker.components:Beat",
        "celery_sticky.bootsteps.control:Control",
    )

    def __init__(self, worker: Any, sticky_keyspaces: Any = None, without_sticky: bool = False, **kwargs: Any) -> None:
        worker.sticky = None
        self.enabled = not without_sticky
        super().__init__(worker, **kwargs)
        if self.enabled:
            worker.sticky = self._part = self._make_part(worker, sticky_keyspaces)

    def _make_part(self, worker: Any, chosen: Any) -> Part:
        wiring = worker.app.sticky_wiring
        settings: Settings = wiring.settings
        keyed = wiring.tasks.all()
        named = {spec.keyspace for spec in keyed.values()} | wiring.declared.keyspaces
        keyspaces = _keyspaces(settings, chosen, named)
        lease = Lease(keyspaces)
        app = worker.app

        def connect() -> SlotQueues:
            return open_queues(app.connection_for_read(), prefix=settings.key_prefix, socket_timeout=settings.patience)

        queues = connect()
        queues.close()  # nothing is sent: a broker we have no driver for is refused here and now
        directed = [name for name in keyspaces if settings.directing(name) is not None]
        if directed and not queues.guarantees.moves:
            raise InvalidSettings(
                f"keyspaces {', '.join(directed)} direct keys to workers (assign, pins): this broker cannot do that"
            )
        courier = Courier(
            connect,
            self._report,
            lease.trusted,
            keyspaces=tuple(keyspaces),
            worker=worker.hostname,
            max_waiting=settings.max_waiting,
            max_attempts=settings.max_attempts,
            broker_grace=settings.broker_grace,
            directed=directed,
            unclaimed=self._unclaimed,
        )
        part = Part(
            hostname=worker.hostname,
            settings=settings,
            tasks=wiring.tasks,
            keyspaces=keyspaces,
            lease=lease,
            has_processes=issubclass(worker.pool_cls, PreforkPool),
            courier=courier,
        )
        part.refusals = Refusals(app, worker.hostname)
        where = wiring.store_at
        open_store(where, DEFAULT_KEYSPACE).close()  # likewise
        part.store_url = where.as_uri()
        for name in directed:
            part.directors[name] = self._make_director(part, name, keyspaces[name], where, connect)
        part.jobs = make_jobs(worker, part)
        hooks = _Hooks(worker)
        for keyspace, slots in keyspaces.items():
            part.members[keyspace] = self._make_member(part, hooks, keyspace, slots, where)
        for name in keyed:
            _keep_when_lost(app.tasks[name])
            if worker.pool_cls.is_green:
                share_disabled_backend(app.tasks[name])
        for task in app.tasks.values():
            fence_retry(task)  # all: a message may bring a key of its own to a task without one
        wiring.lease, wiring.worker = lease, worker.hostname
        self._watch = self._make_watch(part, worker)
        return part

    def _make_watch(self, part: Part, worker: Any) -> Children | Interrupts:
        ends_tasks = part.settings.on_lease_loss is OnLeaseLoss.TERMINATE
        if part.has_processes:
            return Children(part, ends_tasks=ends_tasks)
        interrupts = Interrupts(part, green=worker.pool_cls.is_green, ends_tasks=ends_tasks)
        for name, task in worker.app.tasks.items():
            if not name.startswith("celery."):  # a message may bring a key of its own to a task without one
                interrupts.guard(task)
        return interrupts

    def _make_member(self, part: Part, hooks: _Hooks, keyspace: str, slots: int, where: Any) -> Member:
        settings, name = part.settings, part.hostname
        origin = uuid.uuid4().hex[:12]

        def terms(dead_incarnation: str) -> Terms:
            return Terms(
                name=name,
                origin=origin,
                slots=slots,
                hash=settings.hash_of(keyspace),
                ttl=settings.lease_ttl,
                margin=settings.lease_margin,
                settle=settings.settle,
                broker_grace=settings.broker_grace,
                weight=settings.weight,
                attributes=_attributes(settings, keyspace),
                dead_incarnation=dead_incarnation,
                jitter=int(origin, 16) % 1000 / 1000,
            )

        def connect() -> Store:
            return open_store(where, keyspace, prefix=settings.key_prefix, socket_timeout=settings.patience)

        claim = Claim(runtime_dir(settings.runtime_dir), f"{part.store_url} {settings.key_prefix}", keyspace, name)
        return Member(
            keyspace,
            terms,
            connect,
            part.jobs.slots(keyspace) if part.jobs else part.courier,
            part.lease,
            claim,
            hooks,
            revoke_ttl=settings.revoke_ttl,
            revoke_limit=settings.revoke_limit,
            director=part.directors.get(keyspace),
        )

    def _make_director(self, part: Part, name: str, slots: int, where: Any, connect: Any) -> Director:
        settings = part.settings
        keyspace = settings.directing(name)
        assert keyspace is not None

        def open_it() -> Directory:
            return open_directory(where, name, prefix=settings.key_prefix, socket_timeout=settings.patience)

        def report(event: Event) -> None:
            part.members[name].post(event)

        def tell_lost(keys: frozenset[str]) -> None:
            pins_lost.send(sender=part.hostname, keyspace=name, keys=keys)

        return Director(keyspace, slots, part.hostname, open_it, connect, part.courier, part.lease, report, tell_lost)

    def _unclaimed(self, keyspace: str) -> None:
        self._part.directors[keyspace].wake()

    def _report(self, keyspace: str, event: Event) -> None:
        if isinstance(event, Opened | OpenRefused | Drained) and isinstance(event.slot, str):
            self._part.directors[keyspace].report(event)
        elif self._part.jobs is not None:
            self._part.jobs.report(keyspace, event)
        else:
            self._part.members[keyspace].post(event)

    def create(self, worker: Any) -> Membership:
        """Return the service that is started and stopped: this step."""
        return self

    def start(self, worker: Any) -> None:
        """Take the name in every keyspace and begin to send heartbeats."""
        if not self.enabled:
            return
        signals.worker_shutting_down.connect(self._leave, weak=False)
        self._leave_before_cold_shutdown(worker)
        share_with_threads(slots_gained, slots_lost, pins_lost)  # logging is set up by now
        self._watch.start()
        names = ", ".join(f"{name} ({slots} slots)" for name, slots in self._part.keyspaces.items())
        logger.info("sticky: keyspaces %s; ownership is kept at %s", names, self._part.store_url)
        if self._part.jobs is not None:
            self._part.jobs.start()
        for director in self._part.directors.values():
            director.start()
        for member in self._part.members.values():
            member.start()

    def _leave_before_cold_shutdown(self, worker: Any) -> None:
        # Celery sends its signal only when it has waited for the soft shutdown and for what it has cancelled.
        wait = worker.wait_for_soft_shutdown

        def leave_and_wait() -> None:
            self._leave()
            wait()

        worker.wait_for_soft_shutdown = leave_and_wait

    def _leave(self, **_: Any) -> None:
        for member in self._part.members.values():
            member.leave()

    def close(self, worker: Any) -> None:
        """The worker begins to shut down: begin to give the slots away."""
        if self.enabled:
            self._leave()

    def stop(self, worker: Any) -> None:
        """Nothing: tasks may still run. The step `Handover` ends it all when the pool has drained."""

    terminate = stop

    def info(self, worker: Any) -> dict[str, Any]:
        """Return what `inspect stats` shows."""
        return {"sticky": self._part.describe()} if self.enabled else {}


class _Hooks:
    """What a member tells the application."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._known: set[str] = set()

    def gained(self, keyspace: str, slots: frozenset[int]) -> None:
        slots_gained.send(sender=self._worker.hostname, keyspace=keyspace, slots=slots)

    def lost(self, keyspace: str, slots: frozenset[int]) -> None:
        slots_lost.send(sender=self._worker.hostname, keyspace=keyspace, slots=slots)

    def refused(self, error: RefusedToStart) -> None:
        logger.critical("sticky: this worker stops: %s", error)
        worker_state.should_stop = 1  # looked at by Celery's loops, which then shut down with this exit code

    def fresh_revokes(self) -> Collection[str]:
        revoked = worker_state.revoked  # a LimitedSet (celery/utils/collections.py), whose own iterator sorts
        if len(revoked) == len(self._known) and len(revoked) < revoked.maxlen:
            return ()
        current = set(list(revoked._data))  # noqa: C414  a list is made in one step, while the main thread may add
        fresh, self._known = current - self._known, current
        return fresh

    def learn_revokes(self, task_ids: Collection[str]) -> None:
        for task_id in task_ids:
            worker_state.revoked.add(task_id)
        self._known |= set(task_ids)


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


def share_disabled_backend(task: Any) -> None:
    """Let all greenlets have one backend where there is none: Celery makes one in each, a third of a no-op task."""
    backend = task.app.backend
    if isinstance(backend, DisabledBackend):
        task.backend = backend


def _keep_when_lost(task: Any) -> None:
    """Settle after the run, and keep the message when the process is lost, whatever the task says."""
    task.acks_late = True
    task.reject_on_worker_lost = True
    task.retry_on_worker_lost = False  # would publish a second message of the same task
