"""The additional parts of a world with jobs: their store, the clients that dispatch, and a witness."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from celery_sticky.errors import Fenced, StoreUnavailable
from celery_sticky.slots import KeyPlace, Slot, WorkerQueue
from celery_sticky.stores.jobs import JobStore, NewJob
from celery_sticky.stores.memory.jobs import MemoryJobServer
from simulator.invariants import Invariant
from simulator.job_invariants import RECOVERS, JobWitness
from simulator.job_store import WitnessedJobs
from simulator.jobs_scenario import NAME, Call, Fault, Jobs, Verb
from simulator.scenario import TROUBLE, Kind
from simulator.scenario import Fault as WorldFault
from simulator.terms import EPOCH, OUTCOME_TTL

if TYPE_CHECKING:
    from simulator.keeper import KeeperSeat
    from simulator.process import Process
    from simulator.world import World

MANY = 10_000
"""More dispatches and notifications than any scenario has."""
AGAIN = 1.0
"""Seconds after which a client repeats a call that was not answered."""


class JobsWorld:
    """The additional state of such a world."""

    def __init__(self, world: World, jobs: Jobs) -> None:
        self._world, scenario = world, world.scenario
        self._rng = Random(f"clients {scenario.seed}")
        self.witness = JobWitness({_id(call): call for call in jobs.calls})
        self.server = MemoryJobServer()
        self.server.clock = lambda: EPOCH + world.now
        if scenario.losses or scenario.broker_losses:
            self.witness.disturbed(TROUBLE + RECOVERS)
        if scenario.deaf:
            self.witness.disturbed(float("inf"))
        self._client = WitnessedJobs(self.server, self.witness)
        self.copy()
        for call in jobs.calls:
            world.at(call.at, partial(self._call, call))
        for fault in jobs.faults:
            world.at(fault.at, partial(self._strike, fault))

    def slot(self, key: int) -> Slot:
        """Return where the records of a job are."""
        return key % self._world.scenario.slots if self._world.placed is None else KeyPlace(str(key))

    @property
    def keys(self) -> Collection[str]:
        """The keys that have jobs."""
        return {record.key for record in self._client.records()}

    # -- requests ------------------------------------------------------------------------------

    def serve(self, request: Callable[[JobStore], object], client: WitnessedJobs) -> object:
        """Make a request to the job store; return its answer, or the expected error."""
        if self._world.store_is_away:
            return StoreUnavailable("away")
        try:
            return request(client)
        except (Fenced, StoreUnavailable) as error:
            return error
        finally:
            self._pass_signals_on()

    def _pass_signals_on(self) -> None:
        for process in self._world.processes:
            if process.alive and process.jobs is not None:
                self._tell(process, process.jobs.keeper.seat)

    def _tell(self, process: Process, seat: KeeperSeat) -> None:
        world = self._world
        try:
            heard = seat.client.watch(0.0) if seat.subscribed else ()
        except StoreUnavailable:
            process.outcome(seat.cut)
            return
        for slot in heard:
            deaf = world.scenario.deaf or world.now < process.store_cut_until
            if not deaf and process.rng.random() >= world.losses:
                process.later(process.rng.uniform(0, 0.1), partial(seat.hear, slot))

    def _call(self, call: Call) -> None:
        """A client calls, and repeats it until it is answered."""
        again = partial(self._world.after, AGAIN, partial(self._call, call))
        self._world.ask(
            self._rng,
            self._world.losses,
            False,
            serve=lambda: self.serve(partial(_ask, call, self.slot(call.key)), self._client),
            answered=lambda answer: again() if isinstance(answer, StoreUnavailable) else None,
            failed=again if call.verb is not Verb.NOTIFY else lambda: None,
        )

    # -- what befalls it -----------------------------------------------------------------------

    def struck(self, fault: WorldFault) -> None:
        """A fault begins now. That workers join or leave explains no delay."""
        if fault.kind not in (Kind.JOIN, Kind.LEAVE):
            self.witness.disturbed(self._world.now + fault.seconds + RECOVERS)

    def members_change(self) -> None:
        """Other workers are members now, or a pin has moved: jobs may belong elsewhere than a moment ago."""
        self.witness.disturbed(self._world.now)

    def _strike(self, fault: Fault) -> None:
        for process in self._world.processes:
            if process.name == fault.victim and process.taking_part and process.jobs is not None:
                self._world.note(process.origin, "FAULT: %s", fault)
                self._world.struck += 1
                process.failed = True
                self.witness.disturbed(self._world.now + fault.seconds + RECOVERS)
                process.jobs.supervisor.strike(fault)

    def copy(self) -> None:
        """Update the older data that the store fails over to."""
        self._backup = self.server.snapshot()

    def lose(self, *, all_of_it: bool) -> None:
        """Have the store lose its data, or go back to the older data."""
        if all_of_it:
            self.server.wipe()
        else:
            self.server.roll_back(self._backup)
            self.server.restart()
        self.witness.goes_back(self._client.written())

    def disorder(self) -> tuple[Invariant, str] | None:
        """Return what is not in order yet."""
        return self.witness.disorder(self._client.records(), self._owner)

    def _owner(self, key: int) -> str | None:
        """Return the worker in which the jobs of a key are to run; None: in no worker."""
        slot = self.slot(key) if self._world.placed is None else self._world.placed.place_of(key)
        if isinstance(slot, WorkerQueue):
            return slot.worker
        owners = [process.name for process in self._world.processes if process.alive and slot in process.held]
        return owners[0] if owners else None


def _ask(call: Call, slot: Slot, store: JobStore) -> object:
    key = str(call.key)
    match call.verb:
        case Verb.DISPATCH:
            return store.admit(NewJob(NAME, key, slot, _id(call), b"null"), max_queued=MANY, outcome_ttl=OUTCOME_TTL)
        case Verb.STOP:
            return store.stop(slot, NAME, key)
        case Verb.NOTIFY:
            return store.notify(slot, NAME, key, b"%d" % call.number, limit=MANY)


def _id(call: Call) -> str:
    return f"{call.key}-{call.number}"
