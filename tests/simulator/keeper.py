"""A worker's keeper without its thread: the shipped `Keeper`, whose requests to the job store are one step each."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from celery_sticky.errors import StoreUnavailable
from celery_sticky.jobs.keeper.flow import Surroundings
from celery_sticky.jobs.keeper.held import JobTimeouts
from celery_sticky.jobs.keeper.keeper import BROKEN_PAUSE, Keeper
from celery_sticky.jobs.keeper.reconciler import JobReconciler
from celery_sticky.jobs.keeper.slots import SharedSlots
from celery_sticky.keys import Slot
from celery_sticky.ownership.events import Drained, Event, HostDown, Opened
from celery_sticky.placement.placed_jobs import PlacedJobs
from celery_sticky.stores.flow import Flow
from celery_sticky.stores.jobs import JobStore
from simulator.job_hosts import STEP, JobHosts
from simulator.job_store import WitnessedJobs
from simulator.scenario import Point
from simulator.terms import JOB_POLL, KEYSPACE, MAX_STARTS, OUTCOME_TTL, START_TIMEOUT, STOP_TIMEOUT

if TYPE_CHECKING:
    from simulator.jobs_world import JobsWorld
    from simulator.process import Process

TIMEOUTS = JobTimeouts(START_TIMEOUT, STOP_TIMEOUT, MAX_STARTS)

WRITES = ("open", "reserve", "settle")
"""Requests at which faults strike."""

Turn = Flow[JobStore, float]


class SteppedKeeper(Keeper):
    """The keeper, driven by the world's events."""

    def __init__(self, process: Process, jobs: JobsWorld, here: Surroundings, reconciler: JobReconciler) -> None:
        self._process, self._jobs = process, jobs
        self._client = client = WitnessedJobs(jobs.server, jobs.witness)
        super().__init__(here, reconciler, lambda: client)
        self._client.watch(0.0)  # subscribes
        self._stepped: Turn | None = None
        self._woken = False
        self._heard: set[Slot] = set()
        self._alarm = 0
        self.wake()

    def wake(self) -> None:
        """See `Keeper.wake`."""
        self._woken = True
        if self._stepped is None:
            self._go_on_in(self._process.rng.uniform(0, 0.005))

    def signals(self) -> Collection[Slot]:
        """Take the signals that the store has for it.

        Raises:
            StoreUnavailable: the subscription broke.
        """
        return self._client.watch(0.0)

    def hear(self, slot: Slot) -> None:
        """Take in a signal between two turns."""
        self._heard.add(slot)
        self.wake()

    def disconnect(self) -> None:
        """Close the connection, because the process is dead."""
        self._client.close()

    def _go_on_in(self, delay: float) -> None:
        self._alarm += 1
        self._process.world.after(delay, partial(self._rings, self._alarm))

    def _rings(self, alarm: int) -> None:
        if alarm == self._alarm:
            self._process.outcome(partial(self._begin, alarm))

    def _begin(self, alarm: int) -> None:
        if alarm != self._alarm or self._stepped is not None:
            return
        heard, self._heard = self._heard, set()
        self.heed(sorted(heard, key=str))
        self._woken = False
        self._stepped = turn = self.turn()
        self._carry_on(turn, None)

    def _carry_on(self, turn: Turn, answer: object) -> None:
        try:
            request = turn.throw(answer) if isinstance(answer, Exception) else turn.send(answer)
        except StoreUnavailable:
            self.take_in()
            self._rest(BROKEN_PAUSE)
        except StopIteration as end:
            self._rest(end.value)
        else:
            self._make(turn, request)

    def _rest(self, pause: float) -> None:
        self._stepped = None
        self._go_on_in(1e-4 if self._woken else pause + 1e-4)

    def _make(self, turn: Turn, request: Callable[[JobStore], object]) -> None:
        process, writes = self._process, str(request) in WRITES

        def take_in(answer: object) -> None:
            if writes and process.passes(Point.KEEPER_ANSWERED):
                process.outcome(partial(take_in, answer))
            else:
                self._carry_on(turn, answer)

        def send() -> None:
            process.ask_store(
                lambda: self._jobs.serve(request, self._client),
                answered=take_in,
                failed=lambda: self._carry_on(turn, StoreUnavailable("no answer")),
            )

        # A process paused while sending has either sent its request already, or sends it when it resumes.
        if writes and process.passes(Point.KEEPER_ASKED) and process.rng.random() < 0.5:
            process.outcome(send)
        else:
            send()


class ProcessJobs:
    """The jobs of one worker: keeper, job hosts, and the slots that the member shares between courier and keeper."""

    def __init__(self, process: Process, jobs: JobsWorld) -> None:
        self._process, self._witness = process, jobs.witness
        self.hosts = JobHosts(process, jobs, self.trusted)
        here = Surroundings(
            KEYSPACE,
            process.name,
            self.hosts,
            self.trusted,
            self._report,
            lambda: process.clock,
            poll=JOB_POLL,
            outcome_ttl=OUTCOME_TTL,
            placer=_ToPlacer(self, process.placer.jobs) if process.placer is not None else None,
        )
        placed = process.placer is not None
        reconciler = JobReconciler(TIMEOUTS, keyspace=KEYSPACE, suspects=self.hosts.suspects, placed=placed)
        self.keeper = self.hosts.keeper = SteppedKeeper(process, jobs, here, reconciler)
        if process.placer is not None:
            process.placer.jobs.keeper = self.keeper
        self.slots = SharedSlots(process.courier, self.keeper, lambda _: self.membership, process.tell)

    def start(self) -> None:
        """Start the first host; the member joins only when there is one."""
        self._process.tell(HostDown())
        self.hosts.begin()

    @property
    def membership(self) -> int:
        """The number of the newest membership, as in the lease."""
        return self._process.member.lease.membership

    def trusted(self, membership: int) -> bool:
        """Whether this membership is trusted now."""
        return self._process.trusts and self.membership == membership

    def takes(self, event: Event) -> bool:
        """Take a report of the courier on a slot; False: it is for the member."""
        of_slot = isinstance(event, Opened | Drained) and isinstance(event.slot, int)
        if of_slot:
            self.slots.report(event)
        return of_slot

    def _report(self, event: Event) -> None:
        if isinstance(event, Drained):
            self.drained(event.slot)
        self._process.tell(event)

    def drained(self, slot: Slot) -> None:
        """The keeper says that nothing of a slot is left here."""
        self._witness.drained(self._process, slot)

    def trust_changed(self) -> None:
        """The lease may have ended early: the host sees that a moment later."""
        self._process.world.after(self._process.rng.uniform(0, STEP), self.hosts.look_at_the_lease)

    def die(self) -> None:
        """The worker is dead, and its host with it."""
        self.hosts.die_with_parent()
        self.keeper.disconnect()


class _ToPlacer:
    """Passes on what the keeper tells the placer, and shows it to the witness."""

    def __init__(self, jobs: ProcessJobs, placer: PlacedJobs) -> None:
        self._jobs, self._placer = jobs, placer
        self.wanted, self.listed = placer.wanted, placer.listed

    def drained(self, place: str, epoch: int, *, vacant: bool) -> None:
        """See `Placer.drained`."""
        self._jobs.drained(place)
        self._placer.drained(place, epoch, vacant=vacant)
