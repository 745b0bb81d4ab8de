"""The observer: reads owners, history, waiting and buried messages during a run."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from contextlib import suppress

from celery_sticky.app import Sticky
from celery_sticky.cli.session import Session
from celery_sticky.cli.verify.app import make_app
from celery_sticky.cli.verify.jobs import JOB
from celery_sticky.cli.verify.moves import Moves
from celery_sticky.cli.verify.placed import make_keyspace
from celery_sticky.cli.verify.site import Mode, Site, node
from celery_sticky.cli.verify.witness import Witness
from celery_sticky.drivers import open_placement_store
from celery_sticky.errors import StickyError
from celery_sticky.jobs.info import JobInfo
from celery_sticky.ownership.view import View
from celery_sticky.stores.first_document import write_first
from celery_sticky.stores.placement import NO_VERSION
from celery_sticky.testing.history import Event, Kind
from celery_sticky.testing.recorder import Recorder
from celery_sticky.testing.servers.base import Server
from celery_sticky.testing.slot_log import SlotEvent, SlotLog
from celery_sticky.testing.worker import WorkerProcess


class Observer:
    """Observes the run. It only reads, except that it writes the first document."""

    def __init__(self, site: Site, broker: Server) -> None:
        self._site, self._broker = site, broker
        self._app = make_app(site)
        self._session = Session(self._app) if site.mode is Mode.STICKY else None
        self._recorder, self._slots = Recorder(site.history), SlotLog(site.history)

    def initialise(self) -> None:
        """Write the first document, as `celery sticky init` does."""
        if self._session is not None:
            hash_name = self._session.settings.hash_of(self._site.keyspace)
            write_first(self._session.store(self._site.keyspace), self._site.slots, hash_name=hash_name)

    def view(self) -> View | None:
        """Return the ownership view, or None if it cannot be read at this moment."""
        if self._session is not None:
            with suppress(StickyError):
                return self._session.store(self._site.keyspace).read().view
        return None

    def witness(self) -> Witness | None:
        """Return a thread that observes the placement store, if the run uses a placed keyspace."""
        if self._session is None or self._site.placed is None:
            return None
        placement_store = open_placement_store(
            self._session.store_at, self._site.keyspace, prefix=self._session.settings.key_prefix
        )
        return Witness(placement_store, Moves(make_keyspace(self._site.placed)), self._site.pinned)

    def right(self, jobs: Collection[JobInfo]) -> set[str]:
        """Return the keys of the jobs that, according to the store, run in the worker that has their key now."""
        view = self.view()
        running = [info for info in jobs if info.state == "running"]
        if view is None or self._session is None:
            return set()
        if self._site.placed is None:
            return {info.key for info in running if view.epoch[info.slot] == info.epoch}
        members = {name: member.incarnation for name, member in view.members.items()}
        with suppress(StickyError):
            holder = self._session.placement_store(self._site.keyspace).holder
            return {info.key for info in running if holder(info.key) == members.get(info.worker)}
        return set()

    def all_ran_at(self, ids: Collection[str]) -> int:
        """Return a time at which each of these jobs ran, the last that the history proves; 0 if there is none.

        The store tells of the end of a process only when its jobs start again.
        """
        return all_ran_at(self.job_events(), ids)

    def worker_of(self, key: str, names: Iterable[str]) -> str | None:
        """Return which of these workers runs the job of a key, according to the store; None if none does."""
        if self._session is None or not self._site.jobs:
            return None
        with suppress(StickyError):
            info = Sticky.of(self._app).jobs.get(JOB, key)
            return next((name for name in names if info is not None and node(name) == info.worker), None)
        return None

    def untold(self, workers: Iterable[WorkerProcess]) -> list[Event] | None:
        """Return the pins that these workers wrongly believe to hold, each with the time of pinning.

        Return None if the store did not answer.
        """
        if self._session is None or (view := self.view()) is None:
            return None
        members = {name: member.incarnation for name, member in view.members.items()}
        try:
            pins = self._session.placement_store(self._site.keyspace).look(NO_VERSION, self._site.pinned).pins
        except StickyError:
            return None
        pids = {worker.pid for worker in workers if worker.alive}
        ordered = sorted(Recorder(self._site.pin_history).events(), key=lambda event: event.at)
        held = {(event.pid, event.key): event for event in ordered}.values()
        believed = [event for event in held if event.kind is Kind.START and event.pid in pids]
        return [event for event in believed if pins.get(event.key) != members.get(event.worker)]

    def settled(self, names: Collection[str]) -> View | None:
        """Return the view if exactly these workers are members and have opened every slot at its target."""
        view = self.view()
        if view is None or set(view.members) != {node(name) for name in names}:
            return None
        held = self._held()
        opened = all(owner is None or slot in held.get(owner, ()) for slot, owner in enumerate(view.owner))
        return view if view.settled and not view.unowned and opened else None

    def _held(self) -> dict[str, set[int]]:
        held: dict[str, set[int]] = {}
        for event in self.slot_events():
            of_worker = held.setdefault(event.worker, set())
            (of_worker.add if event.what == "gained" else of_worker.discard)(event.slot)
        return held

    def slot_events(self) -> list[SlotEvent]:
        """Return when workers gained and lost slots."""
        return self._slots.events()

    def events(self) -> list[Event]:
        """Return the history so far."""
        return self._recorder.events()

    def job_events(self) -> list[Event]:
        """Return the history of the jobs so far."""
        return Recorder(self._site.job_history).events()

    def unfinished(self) -> list[Event]:
        """Return the tasks that were accepted, but have neither finished nor been buried."""
        events = self.events()
        done = {event.task for event in events if event.kind is Kind.END and event.finished}
        buried = self.buried()
        accepted = (event for event in events if event.kind is Kind.PUBLISHED)
        return [event for event in accepted if event.task not in done and event.task_id not in buried]

    def buried(self) -> dict[str, str]:
        """Return the buried messages: task id -> reason."""
        if self._session is None:
            return {}
        with suppress(StickyError):
            infos = [json.loads(dead.info) for dead in self._session.queues.dead(self._site.keyspace)]
            return {info["id"]: info["reason"] for info in infos if info.get("id") and info.get("reason")}
        return {}

    def unburied(self) -> list[str]:
        """Return the senders' tags of the malformed messages that are not buried with a reason."""
        if self._session is None or not self._site.malformed_history.exists():
            return []
        sent = [json.loads(line) for line in self._site.malformed_history.read_text().splitlines()]
        with suppress(StickyError):
            queues, keyspace = self._session.queues, self._site.keyspace
            ids = [one.id for one in queues.dead(keyspace) if json.loads(one.info).get("reason")]
            found = (queues.dead_message(keyspace, dead_id) for dead_id in ids)
            text = b"\n".join(one.body for one in found if one is not None and one.body is not None)
            return [tag for tag in sent if json.dumps(tag).encode() not in text]
        return sent

    def waiting(self, ids: Iterable[str]) -> set[str]:
        """Return the ids of the tasks that have a message in any record at the broker."""
        return self._broker.find(ids, self._site.prefix)

    def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            self._session.__exit__(None, None, None)
            Sticky.of(self._app).jobs.close()
        self._app.close()


def all_ran_at(events: Iterable[Event], ids: Collection[str]) -> int:
    """Return the last time at which the jobs of all these ids surely ran, if none of their runs has ended; else 0.

    A process may be killed just after it was seen: only its next sign of life proves that it ran until then.
    """
    starts, signs = dict[str, Event](), dict[int, int]()
    for event in sorted(events, key=lambda event: event.at):
        if event.kind is Kind.START:
            starts[event.task_id] = event
        elif event.kind is Kind.ALIVE:
            signs[event.pid] = event.at
        elif event.kind is Kind.END and event.task_id in starts and starts[event.task_id].run == event.run:
            del starts[event.task_id]
    runs = [starts.get(job_id) for job_id in ids]
    at = min((signs.get(run.pid, 0) if run is not None else 0 for run in runs), default=0)
    return at if all(run is not None and run.at <= at for run in runs) else 0
