"""The keeper of one keyspace's jobs in a worker: it runs the job reconciler against the store and the job host.

A thread runs it beside the keepers of other keyspaces: one of the operating system, like that of the members, so that
no task and no broker delays it.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Generator
from functools import partial
from typing import Any

from celery_sticky.errors import StoreUnavailable
from celery_sticky.jobs.keeper.flow import KeeperFlow, Surroundings
from celery_sticky.jobs.keeper.held import JobRun
from celery_sticky.jobs.keeper.host_flow import Blame
from celery_sticky.jobs.keeper.reconciler import JobReconciler
from celery_sticky.jobs.wire import Message
from celery_sticky.ownership.events import HostDown, HostUp
from celery_sticky.platform.flow_thread import FlowThread
from celery_sticky.platform.outage import Outage
from celery_sticky.platform.seat import Seat
from celery_sticky.slots import Slot
from celery_sticky.stores.flow import Flow, Pause, Request, Watch
from celery_sticky.stores.jobs import JobStore
from celery_sticky.stores.shared import SharedClient

logger = logging.getLogger("celery_sticky.jobs")

BROKEN_PAUSE = 0.1
"""Seconds between attempts to reach a store that does not answer."""
WITHOUT_STORE = "Running jobs continue while the lease is trusted; no job is started or notified"


class Keeper:
    """The jobs of one keyspace. Any thread may call the public methods; they do not wait."""

    def __init__(self, here: Surroundings, reconciler: JobReconciler, thread: FlowThread[JobStore]) -> None:
        self.keyspace = here.keyspace
        self._here, self._reconciler, self._thread = here, reconciler, thread
        self._flow = KeeperFlow(here, reconciler, self._hear)
        self._inbox: deque[Callable[[], None]] = deque()
        self._routine = KeeperRoutine(self, here.clock)
        self._seat: Seat[JobStore] | None = None

    def start(self) -> None:
        """Start the turns."""
        self._seat = self._thread.seat(self._routine)
        self._thread.add(self._seat)

    def finish(self, timeout: float) -> None:
        """Stop the turns; wait for their end at most `timeout` seconds. The host ends what still runs."""
        if self._seat is None:
            return
        self._seat.stop()
        deadline = time.monotonic() + timeout
        while not self._seat.ended and time.monotonic() < deadline:
            time.sleep(0.005)  # until its last turn has ended

    def wake(self) -> None:
        """Schedule a turn: there is something to do."""
        if self._seat is not None:
            self._seat.wake()

    def open(self, slot: Slot, epoch: int, membership: int, idle: str = "") -> None:
        """Open the slot under this epoch, in this membership; `idle`: why no job may start in it, or empty."""
        self._post(partial(self._reconciler.open, slot, epoch, membership, idle))

    def stop(self, slot: Slot) -> None:
        """Stop the jobs of a slot; reports when none of them is left."""
        self._post(partial(self._reconciler.stop, slot))

    def close(self, slot: Slot) -> None:
        """Close the slot: another worker already has it."""
        if self._reconciler.has_runs(slot):
            # Their process will be killed. The member must know that before it joins again: otherwise it gets slots
            # whose jobs run well elsewhere, and they wait here for the next process.
            self._here.report(HostDown())

        def take_in() -> None:
            self._flow.forget(slot)
            self._reconciler.close(slot)
            self._flow.closed = True

        self._post(take_in)

    def runs(self) -> list[JobRun]:
        """Return what runs in the host."""
        return self._reconciler.runs.all()

    def describe(self) -> list[dict[str, Any]]:
        """Return the runs, as `inspect sticky_jobs` shows them."""
        return [
            {
                "name": run.record.name,
                "key": run.record.key,
                "slot": run.slot if isinstance(run.slot, int) else None,
                "epoch": run.epoch,
                "state": run.stage.value,
            }
            for run in self._reconciler.runs.all()
        ]

    def _post(self, call: Callable[[], None]) -> None:
        self._inbox.append(call)
        self.wake()

    # -- for the host --------------------------------------------------------------------------

    def hosts_up(self, *, up: bool) -> None:
        """See `hosts.Listener`."""
        self._flow.host_is_up = up
        self._here.report(HostUp() if up else HostDown())

    def host_started(self) -> None:
        """See `hosts.Listener`."""
        self._post(self._reconciler.hosts_changed)

    def host_ended(self, number: int, blame: Blame) -> None:
        """See `hosts.Listener`."""
        self._post(lambda: self._reconciler.host_ended(number, blame, self._here.clock()))

    def heard(self, message: Message) -> None:
        """Take in a message from the host about a run, perhaps of another keyspace."""
        self._post(lambda: self._reconciler.runs.heard(message, self._here.clock()))

    # -- in the keeper's thread ----------------------------------------------------------------

    def heed(self, changed: Collection[Slot]) -> None:
        """Take in that these slots changed."""
        self._flow.heed(changed)

    def turn(self) -> Flow[JobStore, float]:
        """Do all work that is due; return the seconds until there may be more if nothing is heard before."""
        self.take_in()
        return (yield from self._flow.turn())

    def take_in(self) -> None:
        """Do what was posted, as far as it needs no store."""
        self._hear()
        self._flow.conclude()

    def _hear(self) -> None:
        while self._inbox:
            self._inbox.popleft()()


class KeeperRoutine:
    """A keeper in the thread of the keepers; see `platform.seat.Routine`."""

    def __init__(self, keeper: Keeper, clock: Callable[[], float]) -> None:
        self._keeper, self._clock = keeper, clock
        self._outage = Outage(logger, f"jobs of keyspace {keeper.keyspace}", lambda _: WITHOUT_STORE)
        self._begun = False

    def open(self, client: SharedClient) -> JobStore:
        """See `Routine.open`."""
        return client.job_store(self._keeper.keyspace)

    def turn(self) -> Generator[Request[JobStore] | Watch | Pause, Any, None]:
        """See `Routine.turn`."""
        try:
            if not self._begun:
                self._begun = True  # even if the store does not answer, because some work needs no store
                yield Watch(0.0)  # so no change after the first look is missed
            pause = yield from self._keeper.turn()
            # After an outage do not wait: it counts as over only when the subscription works again.
            self._keeper.heed((yield Watch(0.0 if self._outage.lasts else pause)))
            self._outage.over(self._clock())
        except StoreUnavailable as error:
            self._outage.failed(error, self._clock())
            self._keeper.take_in()
            yield Pause(BROKEN_PAUSE)

    def perform(self, request: Request[JobStore], store: JobStore) -> object:
        """See `Routine.perform`."""
        return request(store)

    def failed(self) -> None:
        """See `Routine.failed`."""
        logger.exception(
            "jobs of keyspace %s: unexpected error in the keeper; it tries again in 1 s", self._keeper.keyspace
        )

    def ended(self) -> None:
        """See `Routine.ended`."""
