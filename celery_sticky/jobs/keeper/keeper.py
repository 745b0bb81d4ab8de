"""The keeper of one keyspace's jobs in a worker: it runs the job reconciler against the store and the job host.

It has its own operating system thread and its own client, like the member, so that no task and no broker can delay it.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from celery_sticky.errors import StoreUnavailable
from celery_sticky.jobs.keeper.flow import KeeperFlow, Surroundings
from celery_sticky.jobs.keeper.reconciler import JobReconciler
from celery_sticky.jobs.wire import Message
from celery_sticky.keys import Slot
from celery_sticky.membership.deadline import Reliance
from celery_sticky.ownership.events import HostDown, HostUp
from celery_sticky.platform.native import start_native_thread
from celery_sticky.platform.outage import Outage
from celery_sticky.stores.flow import Flow, serve
from celery_sticky.stores.jobs import JobStore

logger = logging.getLogger("celery_sticky.jobs")

BROKEN_PAUSE = 0.1
"""Seconds between attempts to reach a store that does not answer."""
WITHOUT_STORE = "Running jobs continue while the lease is trusted; no job is started or notified"


class Keeper:
    """The jobs of one keyspace. Any thread may call the public methods; they do not wait."""

    def __init__(self, here: Surroundings, reconciler: JobReconciler, open_store: Callable[[], JobStore]) -> None:
        self.keyspace = here.keyspace
        self._here, self._reconciler, self._open_store = here, reconciler, open_store
        self._flow = KeeperFlow(here, reconciler)
        self._inbox: deque[Callable[[], None]] = deque()
        self._store: JobStore | None = None
        self._outage = Outage(logger, f"jobs of keyspace {here.keyspace}", lambda _: WITHOUT_STORE)
        self._running = True
        self._ended = True  # no thread yet

    def start(self) -> None:
        """Start the thread."""
        self._ended = False
        start_native_thread(self._run)

    def finish(self, timeout: float) -> None:
        """Stop the thread; wait for it at most `timeout` seconds. The host ends what still runs."""
        self._running = False
        self.wake()
        deadline = time.monotonic() + timeout
        while not self._ended and time.monotonic() < deadline:
            time.sleep(0.005)

    def wake(self) -> None:
        """Schedule a turn: there is something to do."""
        if (store := self._store) is not None:
            store.wake()

    def open(self, slot: Slot, epoch: int, membership: int, idle: str = "") -> None:
        """Open the slot under this epoch, in this membership; `idle`: why no job may start in it, or empty."""
        self._post(partial(self._reconciler.open, slot, epoch, membership, idle))

    def stop(self, slot: Slot) -> None:
        """Stop the jobs of a slot; reports when neither jobs nor tasks of it are left."""
        self._post(partial(self._reconciler.stop, slot))

    def tasks_drained(self, slot: int) -> None:
        """Note that no tasks of the slot are left."""
        self._post(partial(self._reconciler.tasks_drained, slot))

    def close(self, slot: Slot) -> None:
        """Close the slot: another worker already has it."""

        def take_in() -> None:
            self._flow.forget(slot)
            self._reconciler.close(slot)

        self._post(take_in)

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

    def host_started(self, number: int) -> None:
        """Note that the `number`th job host has started."""

        def take_in() -> None:
            self._flow.host = number
            self._reconciler.host_started()

        self._post(take_in)
        self._here.report(HostUp())

    def host_ended(self) -> None:
        """Note that the job host is gone."""
        self._here.report(HostDown())
        self._post(lambda: self._reconciler.host_ended(self._here.clock()))

    def heard(self, message: Message) -> None:
        """Take in a message from the host about a run, perhaps of another keyspace."""
        self._post(lambda: self._reconciler.runs.heard(message, self._here.clock()))

    def relied_on(self) -> set[Reliance]:
        """Return the memberships whose trust the runs rely on."""
        return {(self.keyspace, membership) for membership in self._reconciler.runs.memberships()}

    # -- in the keeper's thread ----------------------------------------------------------------

    def heed(self, changed: Collection[Slot]) -> None:
        """Take in that these slots changed."""
        self._flow.heed(changed)

    def turn(self) -> Flow[JobStore, float]:
        """Do all work that is due; return the seconds until there may be more if nothing is heard before."""
        self.take_in()
        pause = yield from self._flow.turn()
        return 0.0 if self._inbox else pause

    def take_in(self) -> None:
        """Do what was posted, as far as it needs no store."""
        while self._inbox:
            self._inbox.popleft()()
        self._flow.conclude()

    def _run(self) -> None:
        try:
            while self._running:
                try:
                    if self._store is None:
                        self._store = self._open_store()
                        self._store.watch(0.0)  # subscribes first, so no change after our first look is missed
                    self._work(self._store)
                except StoreUnavailable as error:
                    self._outage.failed(error, self._here.clock())
                    self.take_in()
                    time.sleep(BROKEN_PAUSE)
                except Exception:
                    logger.exception(
                        "jobs of keyspace %s: unexpected error in the keeper; it tries again in 1 s", self.keyspace
                    )
                    time.sleep(BROKEN_PAUSE * 10)
        finally:
            if self._store is not None:
                self._store.close()
            self._ended = True

    def _work(self, store: JobStore) -> None:
        pause = serve(self.turn(), store)
        # After an outage do not wait: it counts as over only when the subscription works again.
        self.heed(store.watch(0.0 if self._outage.lasts else pause))
        self._outage.over(self._here.clock())
