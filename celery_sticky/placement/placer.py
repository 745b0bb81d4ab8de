"""The placer of one placed keyspace: it claims keys and passes on messages that belong elsewhere.

A thread runs it beside the placers of other keyspaces, apart from the courier. Its state and decisions are in its
`PlacementState`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from celery_sticky.delivery.courier import Courier
from celery_sticky.errors import StoreUnavailable
from celery_sticky.keyspace import Keyspace
from celery_sticky.membership.flow import Snapshot
from celery_sticky.membership.lease import Lease, boottime
from celery_sticky.ownership.events import Event
from celery_sticky.placement.flow import Flow, Request
from celery_sticky.placement.lost_pins import PinHooks
from celery_sticky.placement.state import PlacementState
from celery_sticky.platform.flow_thread import FlowThread
from celery_sticky.platform.outage import Outage
from celery_sticky.platform.seat import Seat
from celery_sticky.queues.base import SlotQueues
from celery_sticky.stores.flow import Pause, Watch
from celery_sticky.stores.placement import PinMoved, PlacementStore
from celery_sticky.stores.shared import SharedClient

logger = logging.getLogger("celery_sticky.placer")

WITHOUT_STORE = "No key can be claimed; only keys that are already claimed proceed"
BROKEN_PAUSE = 0.1
"""Seconds between attempts to reach a store that does not answer."""


class Placer:
    """One worker's placer of one keyspace. Any thread may call its public methods; they do not wait."""

    def __init__(
        self,
        keyspace: Keyspace,
        slots: int,
        worker: str,
        thread: FlowThread[PlacementStore],
        connect: Callable[[], SlotQueues],
        courier: Courier,
        lease: Lease,
        report: Callable[[Event], None],
        pin_hooks: PinHooks,
        clock: Callable[[], float] = boottime,
    ) -> None:
        self._thread = thread
        self._seat: Seat[PlacementStore] | None = None
        membership = partial(lease.membership, keyspace.name)
        self._state = PlacementState(
            keyspace, slots, worker, connect, courier, membership, report, pin_hooks, self.wake, clock
        )
        self.jobs = self._state.jobs
        self._routine = PlacerRoutine(keyspace.name, self._state, clock)

    def start(self) -> None:
        """Start the turns."""
        self._seat = self._thread.seat(self._routine)
        self._thread.add(self._seat)

    def finish(self, timeout: float) -> None:
        """Stop the turns; wait for their end at most `timeout` seconds."""
        if self._seat is None:
            return
        self._seat.stop()
        deadline = time.monotonic() + timeout
        while not self._seat.ended and time.monotonic() < deadline:
            time.sleep(0.01)  # until its last turn has ended

    def wake(self) -> None:
        """Schedule a turn: there is something to decide."""
        if self._seat is not None:
            self._seat.wake()

    def report(self, event: Event) -> None:
        """Take in the courier's report on a worker queue."""
        self._state.report(event)

    # -- for the member, in its thread ---------------------------------------------------------

    def observe(self, snapshot: Snapshot) -> None:
        """Take in the member's state."""
        self._state.observe(snapshot)

    def heartbeat_done(self, incarnation: str, counter: int) -> None:
        """Take in a counted heartbeat."""
        self._state.heartbeat_done(incarnation, counter)


class PlacerRoutine:
    """A placer in the thread of the placers; see `platform.seat.Routine`."""

    def __init__(self, keyspace: str, state: PlacementState, clock: Callable[[], float]) -> None:
        self._name, self._state, self._clock = keyspace, state, clock
        self._outage = Outage(logger, f"placed keyspace {keyspace}", lambda _: WITHOUT_STORE)
        self._subscribed = False

    def open(self, client: SharedClient) -> PlacementStore:
        """See `Routine.open`."""
        return client.placement_store(self._name)

    def turn(self) -> Flow[None]:
        """See `Routine.turn`."""
        try:
            if not self._subscribed:
                yield Watch(0.0)  # so no change after the first look is missed
                self._subscribed = True
            pause = yield from self._state.turn()
            # After an outage do not wait: it counts as over only when the subscription works again.
            for heard in (yield Watch(0.0 if self._outage.lasts else pause)):
                if isinstance(heard, PinMoved):
                    self._state.hear(heard)
            self._outage.over(self._clock())
        except StoreUnavailable as error:
            self._outage.failed(error, self._clock())
            yield Pause(BROKEN_PAUSE)

    def perform(self, request: Request, placement_store: PlacementStore) -> object:
        """See `Routine.perform`."""
        assert callable(request)
        return request(placement_store)

    def failed(self) -> None:
        """See `Routine.failed`."""
        logger.exception("keyspace %s: unexpected error in the placer; it tries again in 1 s", self._name)

    def ended(self) -> None:
        """See `Routine.ended`."""
