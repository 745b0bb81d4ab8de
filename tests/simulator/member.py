"""A member without a thread: the real `MembershipState` decides the requests; each request to the store is one step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from celery_sticky.errors import RefusedToStart, StickyError, StoreUnavailable
from celery_sticky.membership.flow import Flow, Prepare, Request, Slots, Surroundings
from celery_sticky.membership.state import MembershipState
from celery_sticky.ownership.events import Event
from celery_sticky.ownership.machine import Machine, MemberConfig
from celery_sticky.ownership.view import View
from celery_sticky.stores.base import Signal, Store
from celery_sticky.stores.flow import Aside, Pause, Watch
from simulator.invariants import HELD, Invariant, Violation
from simulator.scenario import Point
from simulator.store import WitnessedStore
from simulator.terms import KEYSPACE

if TYPE_CHECKING:
    from simulator.process import Process

NEVER = float("-inf")
STEP = 0.25
"""Seconds until a child sees that its lease was ended early."""


class SteppedMember:
    """Does the same as `membership.member.Member` and its clerk, in the same order."""

    def __init__(self, process: Process, config: MemberConfig, slots: Slots) -> None:
        self._process, self._world = process, process.world
        self.machine = Machine(config, process.clock)
        self.store = WitnessedStore(process)
        self.lease, self.application = SimulatedLease(process), SimulatedApplication(process)
        self.held = frozenset[int]()
        """The slots that are open here or may be."""
        self._inbox: deque[Event] = deque()
        self._state = MembershipState(self._surroundings(slots), self.machine, self._inbox)
        self._flow: Flow[None] = self._state.turn()
        self._view: View | None = None
        self._heard: list[Signal] = []
        self._watching = self._woken = self._cut = False
        self._alarm = 0

    def _surroundings(self, slots: Slots) -> Surroundings:
        process = self._process
        return Surroundings(
            KEYSPACE,
            slots,
            self.lease,
            self.application,
            lambda: process.clock,
            revoke_ttl=0.0,
            revoke_limit=0,
            observer=process.placer,
            instruments=process.world.instruments,
        )

    @property
    def joined_as(self) -> str:
        """The incarnation of the newest membership."""
        return self._state.joined_as

    # -- from others ---------------------------------------------------------------------------

    def start(self) -> None:
        """See `Member.start`."""
        self._go_on(None)

    def post(self, event: Event, *, wakes: Callable[[Callable[[], None]], None] = lambda wake: wake()) -> None:
        """See `Member.post`. `wakes` calls its argument when the thread notices the event."""
        self._inbox.append(event)
        wakes(self._wake)

    def hear(self, signal: Signal) -> None:
        """Take in a signal of the store."""
        self._heard.append(signal)
        self._look_up()

    def cut(self) -> None:
        """Note that the store has dropped the subscription."""
        self._cut = True
        self._look_up()

    def close(self) -> None:
        """Close the connection, because the process is dead."""
        self.store.close()

    def _wake(self) -> None:
        self._woken = True
        self._look_up()

    def _look_up(self) -> None:
        if self._watching:
            self._process.outcome(partial(self._watched, self._alarm))

    # -- the flow ------------------------------------------------------------------------------

    def _go_on(self, answer: object) -> None:
        """Let the flow continue with an answer, or with an error, up to its next request."""
        request: Request | None = None
        while request is None:
            try:
                request = self._flow.throw(answer) if isinstance(answer, StickyError) else self._flow.send(answer)
            except StopIteration:
                self._flow, answer = self._state.turn(), None
        self._show()
        self._perform(request)

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
        match request:
            case Watch(seconds):
                self._watch(seconds)
            case Pause(seconds):
                self._process.later(seconds, partial(self._go_on, None))
            case Prepare(incarnation):
                self._prepare(incarnation)
            case Aside(call):
                call()
                self._go_on(None)
            case _:
                self._ask(request)

    def _prepare(self, incarnation: str) -> None:
        if (placer := self._process.placer) is None:
            self._go_on(None)
            return
        placer.joining(
            incarnation, joined=partial(self._go_on, None), failed=partial(self._go_on, StoreUnavailable("no answer"))
        )

    # -- the line to the store -----------------------------------------------------------------

    def _watch(self, seconds: float) -> None:
        if not (self.store.subscribed or self._cut):
            self._ask(_subscribe)
            return
        self._watching = True
        self._alarm += 1
        if self._woken or self._heard or self._cut:
            self._watched(self._alarm)
        else:
            self._world.after(
                seconds / self._process.rate + 1e-6, partial(self._process.outcome, partial(self._watched, self._alarm))
            )

    def _watched(self, alarm: int) -> None:
        if not self._watching or alarm != self._alarm:
            return
        self._watching = self._woken = False
        cut, self._cut = self._cut, False
        if cut:
            self._go_on(StoreUnavailable("the subscription broke"))
            return
        heard, self._heard = self._heard, []
        self._go_on(heard)

    def _ask(self, request: Callable[[Store], object]) -> None:
        process = self._process

        def take_in(answer: object) -> None:
            if process.passes(Point.STORE_ANSWERED):
                process.outcome(partial(take_in, answer))
            else:
                self._go_on(answer)

        def send() -> None:
            process.ask_store(
                lambda: self._world.serve(request, self.store),
                answered=take_in,
                failed=lambda: take_in(StoreUnavailable("no answer")),
            )

        # A process that is frozen while it asks has sent its request already, or sends it when it wakes.
        if process.passes(Point.STORE_ASKED) and process.rng.random() < 0.5:
            process.outcome(send)
        else:
            send()


def _subscribe(store: Store) -> object:
    return store.watch(0.0)


class SimulatedLease:
    """The lease in a process, as its children see it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.until = NEVER
        self.membership = 0
        """The number of the newest membership."""

    @property
    def trusted(self) -> bool:
        """See `Lease.trusted`."""
        return self._process.clock < self.until

    def grant(self, _: str, until: float, membership: int) -> None:
        """See `Lease.grant`."""
        process = self._process
        self.until, self.membership = until, membership
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
