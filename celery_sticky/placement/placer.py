"""The placer of one placed keyspace: it claims keys and passes on messages that belong elsewhere.

It has its own thread and its own client, beside the courier. Its state and decisions are in its `PlacementState`.
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
from celery_sticky.placement.state import PlacementState
from celery_sticky.platform.native import start_thread
from celery_sticky.platform.outage import Outage
from celery_sticky.queues.base import SlotQueues
from celery_sticky.stores.flow import serve
from celery_sticky.stores.placement import PinMoved, PlacementStore

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
        open_placement_store: Callable[[], PlacementStore],
        connect: Callable[[], SlotQueues],
        courier: Courier,
        lease: Lease,
        report: Callable[[Event], None],
        pins_lost: Callable[[frozenset[str]], None],
        clock: Callable[[], float] = boottime,
    ) -> None:
        self._name, self._worker = keyspace.name, worker
        self._open_placement_store = open_placement_store
        self._placement_store: PlacementStore | None = None
        self._joining: PlacementStore | None = None
        membership = partial(lease.membership, keyspace.name)
        self._state = PlacementState(
            keyspace, slots, worker, connect, courier, membership, report, pins_lost, self.wake, clock
        )
        self.jobs = self._state.jobs
        self._outage = Outage(logger, f"placed keyspace {self._name}", lambda _: WITHOUT_STORE)
        self._running = True
        self._ended = True  # no thread yet

    def start(self) -> None:
        """Start the thread."""
        self._ended = False
        start_thread(self._run, f"sticky-placer-{self._name}")

    def finish(self, timeout: float) -> None:
        """Stop the thread; wait for it at most `timeout` seconds."""
        self._running = False
        deadline = time.monotonic() + timeout
        while not self._ended and time.monotonic() < deadline:
            self.wake()
            time.sleep(0.01)  # until the thread has ended

    def wake(self) -> None:
        """Schedule a turn: there is something to decide."""
        if (placement_store := self._placement_store) is not None:
            placement_store.wake()

    def report(self, event: Event) -> None:
        """Take in the courier's report on a worker queue."""
        self._state.report(event)

    # -- for the member, in its thread ---------------------------------------------------------

    def joining(self, incarnation: str) -> None:
        """Enlist before others can see this worker: if it dies at once, somebody must look after its queue."""
        if self._joining is None:
            self._joining = self._open_placement_store()
        self._joining.enlist(self._worker, incarnation)

    def observe(self, snapshot: Snapshot) -> None:
        """Take in the member's state."""
        self._state.observe(snapshot)

    def heartbeat_done(self, incarnation: str, counter: int) -> None:
        """Take in a counted heartbeat."""
        self._state.heartbeat_done(incarnation, counter)

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        while self._running:
            try:
                if self._placement_store is None:
                    self._placement_store = self._open_placement_store()
                    self._placement_store.watch(0.0)  # subscribes
                self._turn(self._placement_store)
            except StoreUnavailable as error:
                self._outage.failed(error, boottime())
                time.sleep(BROKEN_PAUSE)
            except Exception:
                logger.exception("keyspace %s: unexpected error in the placer; it tries again in 1 s", self._name)
                time.sleep(BROKEN_PAUSE * 10)
        for placement_store in (self._placement_store, self._joining):
            if placement_store is not None:
                placement_store.close()
        self._ended = True

    def _turn(self, placement_store: PlacementStore) -> None:
        pause = serve(self._state.turn(), placement_store)
        # After an outage do not wait: it counts as over only when the subscription works again.
        for heard in placement_store.watch(0.0 if self._outage.lasts else pause):
            if isinstance(heard, PinMoved):
                self._state.hear(heard)
        self._outage.over(boottime())
