"""The state and the decisions of a placer: open worker queues, keys that run here, and messages to pass on.

No thread, no clock, no client. It opens this worker's queue and the queues of departed workers whose successor it is.
It looks up every key that has work here in the placement store. It then tells the delivery state to run, wait, pass on
or bury messages, and the keeper to open or stop jobs. Each decision uses the newest members and pins: a claim names the
version it was based on and is refused if they changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from celery_sticky.delivery.state import DeliveryState
from celery_sticky.keyspace import Keyspace, Worker, workers_of
from celery_sticky.membership.flow import Snapshot
from celery_sticky.ownership.events import Drained, Event, OpenRefused, WorkerQueueClosed
from celery_sticky.ownership.machine import Phase
from celery_sticky.ownership.view import MemberState, View
from celery_sticky.placement.claiming import PAUSE, Decisions, Heartbeats
from celery_sticky.placement.flow import Courier, Flow
from celery_sticky.placement.lost_pins import LostPins, PinHooks
from celery_sticky.placement.placed_jobs import PlacedJobs
from celery_sticky.placement.rules import Scene
from celery_sticky.placement.worker_queues import WorkerQueues
from celery_sticky.queues.base import SlotQueues
from celery_sticky.slots import WorkerQueue
from celery_sticky.stores.flow import ask
from celery_sticky.stores.placement import NO_VERSION, PinMoved, PlacementStore

IDLE = 5.0
"""Seconds between checks for queues of departed workers."""


class PlacementState:
    """One worker's placement of the keys of one keyspace.

    `wake` schedules another turn soon, `clock` returns seconds, `term` returns the lease's membership number.
    """

    def __init__(
        self,
        keyspace: Keyspace,
        slots: int,
        worker: str,
        connect: Callable[[], SlotQueues],
        courier: Courier,
        membership: Callable[[], int],
        report: Callable[[Event], None],
        pin_hooks: PinHooks,
        wake: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.keyspace = keyspace
        self._name, self._slots, self._worker, self._mine = keyspace.name, slots, worker, WorkerQueue(worker)
        self._courier, self._report, self._wake, self._clock = courier, report, wake, clock
        self._inbox: deque[Event | _Observed] = deque()
        self._view: View | None = None
        self._workers: tuple[Worker, ...] = ()
        self._incarnation = ""
        self._queues = WorkerQueues(keyspace.name, worker, connect, courier)
        self._queue_closed = False
        """Our own queue is closed for good: this member is leaving."""
        self.jobs = PlacedJobs(keyspace.name, courier, membership, wake, clock, pins=keyspace.pins)
        self._decisions = Decisions(keyspace.name, worker, courier, self.jobs, clock)
        self._lost_pins = LostPins(worker, pin_hooks, lambda: courier.trusts(keyspace.name))
        self._known_as = ""

    # -- from any thread -----------------------------------------------------------------------

    def report(self, event: Event) -> None:
        """Take in the courier's report on a worker queue."""
        self._inbox.append(event)
        self._wake()

    def observe(self, snapshot: Snapshot) -> None:
        """Take in the member's state. Before it can join again, nothing of the old membership is open here."""
        incarnation = snapshot.incarnation if snapshot.phase is Phase.IN else ""
        if incarnation != self._incarnation:
            self._incarnation = incarnation
            self._queues.close_all()
            self._courier.decide(self._serve)
        self._inbox.append(_Observed(snapshot))
        self._wake()

    def heartbeat_done(self, incarnation: str, counter: int) -> None:
        """Take in a counted heartbeat: from now on the counter is at least this high unless the store lost writes."""
        self._decisions.heartbeats = heartbeats = Heartbeats(incarnation, counter).after(self._decisions.heartbeats)
        if heartbeats.forgotten:
            self._wake()

    def _serve(self, delivery_state: DeliveryState, _: float) -> None:
        self.jobs.serve(delivery_state.claims.serve(self._name, self._incarnation, self._mine))

    # -- the placer's turn ---------------------------------------------------------------------

    def turn(self) -> Flow[float]:
        """Do the work that is due; return the seconds until there may be more if nothing is heard before."""
        while self._inbox:
            self._take_in(self._inbox.popleft())
        self.jobs.take_in()
        more = False
        if self._incarnation and self._view is not None:
            yield from self._look_after_queues(self._view)
            yield from self._look_after_jobs()
            more = yield from self._decisions.take(self._incarnation, lambda: self._scene, self._adopt)
            more = more or self.jobs.more
            yield from self._decisions.give_back(self._incarnation)
            self._depart()
            if self.keyspace.pins:
                yield from self._lost_pins.look_after(self._clock())
        if more or self._inbox:
            return 0.0
        busy = self._courier.consult(lambda delivery_state: len(delivery_state.claims))
        return PAUSE if busy or self._leaving or self._queues.shut else min(IDLE, self.jobs.pause)

    def hear(self, moved: PinMoved) -> None:
        """Take in that the pin of a key changed."""
        self.jobs.pin_changed(moved.key)
        if self._incarnation in moved.concerned:
            self._lost_pins.moved()
            self._courier.consult(lambda delivery_state: delivery_state.claims.doubt(self._name, moved.key))

    def _take_in(self, event: Event | _Observed) -> None:
        match event:
            case _Observed(snapshot):
                if snapshot.incarnation != self._known_as or snapshot.phase is not Phase.IN:
                    self._known_as, self._queue_closed = snapshot.incarnation, False
                    self._queues.forget_all()
                    self.jobs.reset()
                if snapshot.phase is Phase.IN and snapshot.view is not None:
                    self._lost_pins.joined(snapshot.incarnation, snapshot.view.generation)
                if snapshot.view is not None:
                    self._adopt(snapshot.view)
            case OpenRefused(WorkerQueue() as queue, fence):
                self._queues.refused(queue, fence)
            case Drained(WorkerQueue() as queue) if self._queues.drained(queue):
                self._queue_closed = True

    def _adopt(self, view: View | None) -> None:
        old = self._view
        if view is None or (old is not None and (view.generation, view.version) <= (old.generation, old.version)):
            return
        self._view, self._workers = view, workers_of(view)
        if old is None or (old.members, old.owner) != (view.members, view.owner):
            self._queues.members_changed()
            self._courier.consult(lambda delivery_state: delivery_state.claims.review(self._name))
            self.jobs.review()

    @property
    def _leaving(self) -> bool:
        me = self._view.members.get(self._worker) if self._view is not None else None
        return me is not None and me.state is MemberState.LEAVING and me.incarnation == self._incarnation

    def _look_after_queues(self, view: View) -> Flow[None]:
        me = view.members.get(self._worker)
        if me is None or me.incarnation != self._incarnation:
            return
        if self._queues.outbid:
            look = yield from ask(PlacementStore.look, NO_VERSION, ())
            self._adopt(look.view)  # find out who holds the fence before raising the epoch
        newest, now = self._view or view, self._clock()
        closed = yield from self._queues.look_after(newest, self._incarnation, now, leaving=self._leaving)
        if closed:
            self._queue_closed = True

    def _look_after_jobs(self) -> Flow[None]:
        look = yield from self.jobs.look(self._scene.version)
        if look is not None and look.changed:
            self._adopt(look.view)
        self.jobs.decide(self._scene, self._known_as)

    def _depart(self) -> None:
        """When leaving: report it once our queue and our jobs are gone and no new ones can come."""
        slots_left = self._view is not None and self._worker in self._view.owner
        if self._leaving and self._queue_closed and not slots_left and not self.jobs.held:
            self._queue_closed = False
            self._report(WorkerQueueClosed(self._incarnation))

    @property
    def _scene(self) -> Scene:
        assert self._view is not None
        return Scene(self.keyspace, self._slots, self._view, self._workers, self._worker)


@dataclass(frozen=True, slots=True)
class _Observed:
    snapshot: Snapshot
