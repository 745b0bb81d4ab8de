"""The director of a keyspace that directs keys: it claims keys, and passes messages on that belong elsewhere.

A thread of its own with a client of its own, beside the courier. It opens this worker's direct queue and those of
workers that are gone and whose heir it is; it asks the directory of every key that has something here, and tells the
desk: run, wait, pass on, bury; and the keeper: open, stop. Each decision is taken on the newest members and pins there
are: a claim names those it was thought out with, and is refused where they have changed.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from celery_sticky.assignment import Keyspace, Worker, workers_of
from celery_sticky.errors import StoreUnavailable
from celery_sticky.keys import direct
from celery_sticky.ownership.events import DirectClosed, Drained, Event, OpenRefused
from celery_sticky.ownership.machine import Phase
from celery_sticky.ownership.view import MemberState, View
from celery_sticky.queues.base import SlotQueues
from celery_sticky.stores.directory import NO_VERSION, Directory, PinMoved
from celery_sticky.worker.courier import Courier
from celery_sticky.worker.decisions import PAUSE, Decisions
from celery_sticky.worker.direct_queues import DirectQueues
from celery_sticky.worker.directed_jobs import DirectedJobs
from celery_sticky.worker.key_plans import Scene
from celery_sticky.worker.lease import Lease, boottime
from celery_sticky.worker.lost_pins import LostPins
from celery_sticky.worker.member import Snapshot
from celery_sticky.worker.native import start_thread
from celery_sticky.worker.outage import Outage

logger = logging.getLogger("celery_sticky.director")

IDLE = 5.0
"""Seconds between two looks for direct queues of workers that are gone."""
WITHOUT_STORE = "No key is claimed, so only keys that are claimed already go on"
BROKEN_PAUSE = 0.1


class Director:
    """One worker's part in the directing of a keyspace. Any thread may call its public methods; they do not wait."""

    def __init__(
        self,
        keyspace: Keyspace,
        slots: int,
        worker: str,
        open_directory: Callable[[], Directory],
        connect: Callable[[], SlotQueues],
        courier: Courier,
        lease: Lease,
        report: Callable[[Event], None],
        pins_lost: Callable[[frozenset[str]], None],
    ) -> None:
        self.keyspace = keyspace
        self._name, self._slots, self._worker, self._mine = keyspace.name, slots, worker, direct(worker)
        self._open_directory = open_directory
        self._courier, self._report = courier, report
        self._inbox: deque[Event | _Observed] = deque()
        self._directory: Directory | None = None
        self._joining: Directory | None = None
        self._view: View | None = None
        self._workers: tuple[Worker, ...] = ()
        self._incarnation = ""
        self._queues = DirectQueues(keyspace.name, worker, connect, courier)
        self._queue_closed = False
        """Our direct queue, for good: this member leaves."""
        self.jobs = DirectedJobs(keyspace.name, courier, lease, self.wake, pins=keyspace.pins)
        self._decisions = Decisions(keyspace.name, worker, courier, self.jobs)
        self._lost_pins = LostPins(worker, pins_lost, lambda: courier.trusts(keyspace.name))
        self._known_as = ""
        self._outage = Outage(logger, f"directed keyspace {self._name}", lambda _: WITHOUT_STORE)
        self._running = True
        self._ended = False

    def start(self) -> None:
        """Begin to work."""
        start_thread(self._run, f"sticky-director-{self._name}")

    def finish(self, timeout: float) -> None:
        """End the thread, at most `timeout` seconds later."""
        self._running = False
        deadline = time.monotonic() + timeout
        while not self._ended and time.monotonic() < deadline:
            self.wake()
            time.sleep(0.01)

    def wake(self) -> None:
        """There is something to decide."""
        if (directory := self._directory) is not None:
            directory.wake()

    def report(self, event: Event) -> None:
        """Take in what the courier says of a direct queue."""
        self._inbox.append(event)
        self.wake()

    # -- for the member, in its thread ---------------------------------------------------------

    def joining(self, incarnation: str) -> None:
        """Enlist before others can see us: should we die at once, somebody must look after our queue."""
        if self._joining is None:
            self._joining = self._open_directory()
        self._joining.enlist(self._worker, incarnation)

    def observe(self, snapshot: Snapshot) -> None:
        """Take in what the member knows. Before it may join anew, nothing of the old membership is open here."""
        incarnation = snapshot.incarnation if snapshot.phase is Phase.IN else ""
        if incarnation != self._incarnation:
            self._incarnation = incarnation
            self._queues.close_all()
            self._courier.decide(lambda desk: self.jobs.serve(desk.claims.serve(self._name, incarnation, self._mine)))
        self._inbox.append(_Observed(snapshot))
        self.wake()

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while self._running:
            try:
                if self._directory is None:
                    self._directory = self._open_directory()
                    self._directory.watch(0.0)  # subscribes
                self._turn(self._directory)
            except StoreUnavailable as error:
                self._outage.failed(error, boottime())
                time.sleep(BROKEN_PAUSE)
            except Exception:
                logger.exception("keyspace %s: the director met an error it does not know", self._name)
                time.sleep(BROKEN_PAUSE * 10)
        for directory in (self._directory, self._joining):
            if directory is not None:
                directory.close()
        self._ended = True

    def _turn(self, directory: Directory) -> None:
        while self._inbox:
            self._take_in(self._inbox.popleft())
        self.jobs.take_in()
        more = False
        if self._incarnation and self._view is not None:
            self._look_after_queues(directory, self._view)
            self._look_after_jobs(directory)
            more = self._decisions.take(directory, self._incarnation, lambda: self._scene, self._adopt)
            more = more or self.jobs.more
            self._decisions.give_back(directory, self._incarnation)
            self._depart()
            if self.keyspace.pins:
                self._lost_pins.look_after(directory)
        busy = self._courier.consult(lambda desk: len(desk.claims))
        pause = PAUSE if busy or self._leaving or self._queues.outbid else min(IDLE, self.jobs.pause)
        at_once = more or self._inbox or self._outage.lasts
        for heard in directory.watch(0.0 if at_once else pause):
            if isinstance(heard, PinMoved):
                self._on_pin_moved(heard)
        self._outage.over(boottime())

    def _on_pin_moved(self, moved: PinMoved) -> None:
        self.jobs.pin_changed(moved.key)
        if self._incarnation in moved.concerned:
            self._lost_pins.moved()
            self._courier.consult(lambda desk: desk.claims.doubt(self._name, moved.key))

    def _take_in(self, event: Event | _Observed) -> None:
        match event:
            case _Observed(snapshot):
                if snapshot.incarnation != self._known_as or snapshot.phase is not Phase.IN:
                    self._known_as, self._queue_closed = snapshot.incarnation, False
                    self._queues.forget_all()
                    self.jobs.reset()
                if snapshot.phase is Phase.IN:
                    self._lost_pins.joined(snapshot.incarnation)
                if snapshot.view is not None:
                    self._adopt(snapshot.view)
            case OpenRefused(str(name), fence):
                self._queues.refused(name, fence)
            case Drained(str(name)) if self._queues.drained(name):
                self._queue_closed = True

    def _adopt(self, view: View | None) -> None:
        old = self._view
        if view is None or (old is not None and (view.generation, view.version) <= (old.generation, old.version)):
            return
        self._view, self._workers = view, workers_of(view)
        if old is None or (old.members, old.owner) != (view.members, view.owner):
            self._queues.members_changed()
            self._courier.consult(lambda desk: desk.claims.review(self._name))
            self.jobs.review()

    @property
    def _leaving(self) -> bool:
        me = self._view.members.get(self._worker) if self._view is not None else None
        return me is not None and me.state is MemberState.LEAVING and me.incarnation == self._incarnation

    def _look_after_queues(self, directory: Directory, view: View) -> None:
        me = view.members.get(self._worker)
        if me is None or me.incarnation != self._incarnation:
            return
        if self._queues.outbid:
            self._adopt(directory.look(NO_VERSION, ()).view)  # whose the fence is must be read before it is outbid
        if self._queues.look_after(directory, self._view or view, self._incarnation, leaving=self._leaving):
            self._queue_closed = True

    def _look_after_jobs(self, directory: Directory) -> None:
        look = self.jobs.look(directory, self._scene.version)
        if look is not None and look.changed:
            self._adopt(look.view)
        self.jobs.decide(self._scene, self._known_as)

    def _depart(self) -> None:
        """Leaving: say so when neither our direct queue nor jobs hold this member here, and none can come any more."""
        slots_left = self._view is not None and self._worker in self._view.owner
        if self._leaving and self._queue_closed and not slots_left and not self.jobs.held:
            self._queue_closed = False
            self._report(DirectClosed(self._incarnation))

    @property
    def _scene(self) -> Scene:
        assert self._view is not None
        return Scene(self.keyspace, self._slots, self._view, self._workers, self._worker)


@dataclass(frozen=True, slots=True)
class _Observed:
    snapshot: Snapshot
