"""A worker's keeper without its thread: the shipped `Keeper`, whose requests to the job store are one step each."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_sticky.jobs.keeper.flow import Surroundings
from celery_sticky.jobs.keeper.held import JobTimeouts
from celery_sticky.jobs.keeper.home import Home
from celery_sticky.jobs.keeper.keeper import Keeper, KeeperRoutine
from celery_sticky.jobs.keeper.reconciler import JobReconciler
from celery_sticky.jobs.keeper.slots import SharedSlots
from celery_sticky.membership.deadline import STEP
from celery_sticky.ownership.events import Drained, Event, HostDown, Opened
from celery_sticky.placement.placed_jobs import PlacedJobs
from celery_sticky.platform.flow_thread import FlowThread
from celery_sticky.slots import KeyPlace, Slot
from celery_sticky.stores.jobs import JobRecord
from celery_sticky.stores.shared import OwnClient
from simulator.job_store import WitnessedJobs
from simulator.scenario import Point
from simulator.seat import SteppedSeat
from simulator.supervisor import SteppedSupervisor
from simulator.terms import JOB_POLL, KEYSPACE, MAX_DELIVERIES, MAX_STARTS, OUTCOME_TTL, START_TIMEOUT, STOP_TIMEOUT

if TYPE_CHECKING:
    from simulator.jobs_world import JobsWorld
    from simulator.process import Process

TIMEOUTS = JobTimeouts(START_TIMEOUT, STOP_TIMEOUT, MAX_STARTS, MAX_DELIVERIES)

WRITES = ("open", "reserve", "settle")
"""Requests at which faults strike."""


class SteppedKeeper(Keeper):
    """The keeper, driven by the world's events."""

    def __init__(self, process: Process, jobs: JobsWorld, here: Surroundings, reconciler: JobReconciler) -> None:
        super().__init__(here, reconciler, FlowThread(OwnClient))
        self._process = process
        self.seat = KeeperSeat(process, jobs, self._routine)
        process.later(process.rng.uniform(0, 0.005), self.seat.start)

    def wake(self) -> None:
        """See `Keeper.wake`: the thread notices that a moment later."""
        self._process.later(self._process.rng.uniform(0, 0.005), self.seat.notice)


class KeeperSeat(SteppedSeat):
    """The seat of a keeper."""

    asked, answered = Point.KEEPER_ASKED, Point.KEEPER_ANSWERED

    def __init__(self, process: Process, jobs: JobsWorld, routine: KeeperRoutine) -> None:
        super().__init__(process)
        self._jobs, self._routine = jobs, routine
        self.client = WitnessedJobs(jobs.server, jobs.witness)

    @property
    def subscribed(self) -> bool:
        """Whether the store has signals for it."""
        return self.client.subscribed

    def turn(self) -> Generator[Any, Any, None]:
        """See `Routine.turn`."""
        return self._routine.turn()

    def serve(self, request: Callable[[Any], object]) -> object:
        """Make a request to the job store; return its answer, or the expected error."""
        return self._jobs.serve(request, self.client)

    def strikes(self, request: Callable[[Any], object]) -> bool:
        """Faults strike where it writes."""
        return str(request) in WRITES


class ProcessJobs:
    """The jobs of one worker: keeper, job hosts, and the slots that the member shares between courier and keeper."""

    def __init__(self, process: Process, jobs: JobsWorld) -> None:
        self._process, self._witness = process, jobs.witness
        self.supervisor = SteppedSupervisor(process, jobs)
        here = Surroundings(
            KEYSPACE,
            process.name,
            self.supervisor,
            partial(process.lease.trusted, KEYSPACE),
            self._report,
            lambda: process.clock,
            poll=JOB_POLL,
            outcome_ttl=OUTCOME_TTL,
            placer=_ToPlacer(self, process.placer.jobs) if process.placer is not None else None,
        )
        placed = process.placer is not None
        reconciler = JobReconciler(TIMEOUTS, place=self._place, keyspace=KEYSPACE, placed=placed)
        self.keeper = SteppedKeeper(process, jobs, here, reconciler)
        if process.placer is not None:
            process.placer.jobs.keeper = self.keeper
        self.slots = SharedSlots(process.courier, self.keeper, process.lease.membership, process.tell)

    def start(self) -> None:
        """Start the first host; the member joins only when there is one."""
        self._process.tell(HostDown())
        self.supervisor.start(self.keeper)

    def takes(self, event: Event) -> bool:
        """Take a report of the courier on a slot; False: it is for the member."""
        of_slot = isinstance(event, Opened | Drained) and isinstance(event.slot, int)
        if of_slot:
            self.slots.report(event)
        return of_slot

    def _place(self, record: JobRecord, home: Home) -> int:
        return self.supervisor.place((KEYSPACE, record.id), record.key, home)

    def _report(self, event: Event) -> None:
        if isinstance(event, Drained):
            self.drained(event.slot)
        self._process.tell(event)

    def drained(self, slot: Slot) -> None:
        """The keeper says that nothing of a slot is left here."""
        self._witness.drained(self._process, slot)

    def trust_changed(self) -> None:
        """The lease may have ended early: the host sees that a moment later."""
        self._process.world.after(self._process.rng.uniform(0, STEP), self.supervisor.look_at_the_lease)

    def die(self) -> None:
        """The worker is dead, and its host with it."""
        self.supervisor.die_with_parent()
        self.keeper.seat.client.close()


class _ToPlacer:
    """Passes on what the keeper tells the placer, and shows it to the witness."""

    def __init__(self, jobs: ProcessJobs, placer: PlacedJobs) -> None:
        self._jobs, self._placer = jobs, placer
        self.wanted, self.listed = placer.wanted, placer.listed

    def drained(self, place: KeyPlace, epoch: int, *, vacant: bool) -> None:
        """See `Placer.drained`."""
        self._jobs.drained(place)
        self._placer.drained(place, epoch, vacant=vacant)
