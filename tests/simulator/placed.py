"""The additional parts of a world with a placed keyspace: placements, senders, pins and a witness."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from celery_sticky.errors import NotAMember, StoreUnavailable
from celery_sticky.keys import slot_for
from celery_sticky.message import Stamp
from celery_sticky.placement.flow import Request
from celery_sticky.slots import Slot, WorkerQueue
from celery_sticky.stores.memory.store import PlacementRecords
from celery_sticky.stores.placement import PlacementStore
from simulator.invariants import Invariant
from simulator.placement_lookup import PlacementLookup
from simulator.placing import Pin, PlacementSetup
from simulator.scenario import Task
from simulator.senders import SENDERS, Sender
from simulator.terms import KEYSPACE
from simulator.witness import PlacedWitness

if TYPE_CHECKING:
    from simulator.placer import SteppedPlacer
    from simulator.process import Process
    from simulator.world import World


class Placed:
    """The additional state of such a world."""

    def __init__(self, world: World, placement: PlacementSetup) -> None:
        self._world, scenario = world, world.scenario
        self.keyspace, self.slots = placement.keyspace, scenario.slots
        jobs = scenario.jobs.calls if scenario.jobs is not None else ()
        keys = sorted(
            {str(call.key) for call in jobs}
            | {str(task.key) for task in scenario.tasks}
            | {str(pin.key) for pin in scenario.pins}
        )
        self._lookup = PlacementLookup(world.server, self.keyspace, self.slots, keys)
        calm = not (scenario.faults or scenario.losses or scenario.broker_losses or scenario.deaf)
        self.witness = PlacedWitness(self.slots, self._lookup, calm=calm, tends=scenario.jobs is not None)
        self._senders = [Sender(world, self.keyspace, number) for number in range(SENDERS)]

    def stamp(self, key: int) -> Stamp:
        """Return the stamp that a sender writes on a message."""
        return Stamp(str(key), KEYSPACE, slot_for(str(key), self.slots), self.slots, 0.0)

    def send(self, task: Task, copy: int = 0) -> None:
        """Let one of the senders send a task."""
        self._senders[(task.key + task.n) % SENDERS].send(task, copy)

    def place_of(self, key: int) -> Slot | None:
        """Return the queue of a key; None: the key has no place."""
        return self._lookup.of(str(key))

    def pin(self, pin: Pin) -> None:
        """Let a worker pin a key."""
        if self._world.jobs is not None:
            self._world.jobs.members_change()
        for process in self._world.processes:
            if process.name == pin.worker and process.taking_part and process.placer is not None:
                process.placer.pinning.pin(pin)

    def serve(self, request: Request, placement_store: PlacementStore) -> object:
        """Make a request to the placement store; return its answer, or the expected error."""
        if self._world.store_is_away:
            return StoreUnavailable("away")
        assert callable(request)
        try:
            return request(placement_store)
        except (NotAMember, StoreUnavailable) as error:
            return error

    def look(self) -> None:
        """Re-check placements after a possible change of document or pins, and pass signals on to the placers."""
        self._lookup.look(self._world.now)
        for process in self._world.processes:
            if process.alive and process.placer is not None:
                self._tell(process, process.placer)

    def _tell(self, process: Process, placer: SteppedPlacer) -> None:
        world = self._world
        if not placer.subscribed:
            return
        try:
            heard = placer.placement_store.watch(0)
        except StoreUnavailable:
            process.outcome(placer.cut)
            return
        for signal in heard:
            deaf = world.scenario.deaf or world.now < process.store_cut_until
            if not deaf and process.rng.random() >= world.losses:
                process.later(process.rng.uniform(0, 0.1), partial(placer.hear, signal))

    def disorder(self, living: Sequence[Process]) -> tuple[Invariant, str] | None:
        """Return what is not in order yet."""
        if unsent := {str(task): why for sender in self._senders for task, why in sender.unsent.items()}:
            return Invariant.NOT_DRAINED, f"not sent yet: {unsent}"
        for process in living:
            fence = self._world.broker.slot(KEYSPACE, WorkerQueue(process.name)).fence
            if fence is None or fence.incarnation != process.machine.incarnation:
                return Invariant.NOT_OWNED, f"the worker queue of {process.origin} is fenced for {fence}"
        records = self._world.server.records
        book, members = records.placement_stores.get(KEYSPACE, PlacementRecords()), records.heartbeats.get(KEYSPACE, {})
        jobs = self._world.jobs.keys if self._world.jobs is not None else ()
        if kept := {key: holder for key, (_, holder) in book.claims.items() if holder in members and key not in jobs}:
            return Invariant.NOT_GIVEN_BACK, f"{kept} are claimed"
        return self._untold(living, book)

    def _untold(self, living: Sequence[Process], book: PlacementRecords) -> tuple[Invariant, str] | None:
        for process in living:
            assert process.placer is not None
            pins = {key for key, pin in book.pins.items() if pin[0] == process.machine.incarnation}
            if untold := process.placer.pinning.pinned.keys() - pins:
                return Invariant.UNTOLD_PIN, f"{process.origin} believes that it has pinned {sorted(untold)}"
        return None
