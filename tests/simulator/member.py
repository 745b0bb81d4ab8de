"""A member without a thread: the real `MembershipState` decides the requests; the member's seat is stepped."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from celery_sticky.errors import RefusedToStart, StoreUnavailable
from celery_sticky.membership.deadline import STEP
from celery_sticky.membership.flow import Flow, Prepare, Request, Slots, Surroundings
from celery_sticky.membership.state import MembershipState
from celery_sticky.ownership.events import Event
from celery_sticky.ownership.machine import Machine, MemberConfig
from celery_sticky.ownership.view import View
from celery_sticky.stores.base import Store
from simulator.invariants import HELD, Invariant, Violation
from simulator.scenario import Point
from simulator.seat import SteppedSeat
from simulator.store import WitnessedStore
from simulator.terms import KEYSPACE

if TYPE_CHECKING:
    from simulator.process import Process

NEVER = float("-inf")


class SteppedMember(SteppedSeat):
    """Does the same as `membership.member.Member` and its clerk, in the same order."""

    asked, answered = Point.STORE_ASKED, Point.STORE_ANSWERED

    def __init__(self, process: Process, config: MemberConfig, slots: Slots) -> None:
        super().__init__(process)
        self._world = process.world
        self.machine = Machine(config, process.clock)
        self.store = WitnessedStore(process)
        self.application = SimulatedApplication(process)
        self.held = frozenset[int]()
        """The slots that are open here or may be."""
        self._inbox: deque[Event] = deque()
        self._state = MembershipState(self._surroundings(slots), self.machine, self._inbox)
        self._view: View | None = None

    def _surroundings(self, slots: Slots) -> Surroundings:
        process = self._process
        return Surroundings(
            KEYSPACE,
            slots,
            process.lease,
            self.application,
            lambda: process.clock,
            revoke_ttl=0.0,
            revoke_limit=0,
            observer=process.placer,
            jobs=process.jobs.slots if process.jobs is not None else None,
            instruments=process.world.instruments,
        )

    @property
    def joined_as(self) -> str:
        """The incarnation of the newest membership."""
        return self._state.joined_as

    # -- from others ---------------------------------------------------------------------------

    def post(self, event: Event, *, wakes: Callable[[Callable[[], None]], None] = lambda wake: wake()) -> None:
        """See `Member.post`. `wakes` calls its argument when the thread notices the event."""
        self._inbox.append(event)
        wakes(self.notice)

    def close(self) -> None:
        """Close the connection, because the process is dead."""
        self.store.close()

    # -- the flow ------------------------------------------------------------------------------

    @property
    def subscribed(self) -> bool:
        """Whether the store has signals for it."""
        return self.store.subscribed

    def turn(self) -> Flow[None]:
        """See `Clerk.turn`."""
        return self._state.turn()

    def serve(self, request: Callable[[Store], object]) -> object:
        """See `Clerk.perform`."""
        return self._world.serve(request, self.store)

    def _show(self) -> None:
        """Show the witness what has changed."""
        process, machine, witness = self._process, self.machine, self._world.witness
        if machine.view is not self._view:
            witness.adopts(process, self._view, machine.view)
            self._view = machine.view
        self.held = frozenset(slot for slot, state in machine.slots.items() if state in HELD)
        witness.owns(process, self._world.processes)
        process.learns_of_claims()

    def _perform(self, request: Request) -> None:
        self._show()
        if isinstance(request, Prepare):
            self._prepare(request.incarnation)
        else:
            super()._perform(request)

    def _prepare(self, incarnation: str) -> None:
        if (placer := self._process.placer) is None:
            self._go_on(None)
            return
        placer.joining(
            incarnation, joined=partial(self._go_on, None), failed=partial(self._go_on, StoreUnavailable("no answer"))
        )


class SimulatedLease:
    """The lease in a process, as its children see it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._until, self._membership = NEVER, 0

    def until(self, _: str) -> float:
        """See `Lease.until`."""
        return self._until

    def membership(self, _: str) -> int:
        """See `Lease.membership`."""
        return self._membership

    def trusted(self, _: str, membership: int | None = None) -> bool:
        """See `Lease.trusted`."""
        return self._process.clock < self._until and membership in (None, self._membership)

    def grant(self, _: str, until: float, membership: int) -> None:
        """See `Lease.grant`."""
        process = self._process
        self._until, self._membership = until, membership
        if until == NEVER:
            process.world.after(process.rng.uniform(0, STEP), process.pool.look_at_the_lease)
            if process.jobs is not None:
                process.jobs.trust_changed()

    def mark(self, keyspace: str, slot: int, *, open_here: bool) -> None:
        """See `Lease.mark`."""


class SimulatedApplication:
    """What the application of a worker hears."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.slots = frozenset[int]()
        """The slots that it was told of and has not lost."""

    @property
    def heeded(self) -> bool:
        """See `Hooks.heeded`."""
        return True

    def gained(self, _: str, slots: frozenset[int]) -> None:
        """See `Hooks.gained`."""
        self.slots |= slots

    def lost(self, _: str, slots: frozenset[int]) -> None:
        """See `Hooks.lost`."""
        self.slots -= slots

    def refused(self, error: RefusedToStart) -> None:
        """See `Hooks.refused`."""
        raise Violation(Invariant.REFUSED, f"{self._process.origin}: {error}")

    def fresh_revokes(self) -> Collection[str]:
        """See `Hooks.fresh_revokes`: nobody revokes anything."""
        return ()

    def revokes_told(self, task_ids: Collection[str]) -> None:
        """See `Hooks.revokes_told`."""

    def learn_revokes(self, task_ids: Collection[str]) -> None:
        """See `Hooks.learn_revokes`."""
