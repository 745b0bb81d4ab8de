"""The keeper of one keyspace's jobs in a worker: it runs the job reconciler against the store and the job host.

It has its own operating system thread and its own client, like the member, so that no task and no broker can delay it.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Protocol

from celery_sticky.errors import Fenced, StoreUnavailable
from celery_sticky.jobs import misplaced
from celery_sticky.jobs.keeper.backoff import Backoff
from celery_sticky.jobs.keeper.held import JobRun, is_built_in
from celery_sticky.jobs.keeper.poller import Poller
from celery_sticky.jobs.keeper.reconciler import JobReconciler
from celery_sticky.jobs.wire import Message, Notify, Start
from celery_sticky.keys import Slot
from celery_sticky.membership.deadline import Reliance
from celery_sticky.membership.lease import Lease, boottime
from celery_sticky.ownership.events import Drained, Event, HostDown, HostUp, OpenRefused
from celery_sticky.platform.native import start_native_thread
from celery_sticky.platform.outage import Outage
from celery_sticky.stores.jobs import JobStore, Report, Reserved

logger = logging.getLogger("celery_sticky.jobs")

BROKEN_PAUSE = 0.1
"""Seconds between attempts to reach a store that does not answer."""
WITHOUT_STORE = "Running jobs continue while the lease is trusted; no job is started or notified"
UNTRUSTED_PAUSE = 0.1
"""Seconds until starts that wait for trust or for the host are retried."""

AT_ONCE = 500
"""Slots to open, or to start jobs in, in one go: each costs a request, and meanwhile nothing is stopped."""


class Hosting(Protocol):
    """The keeper's view of the worker's job host. No method waits."""

    def say(self, number: int, messages: Sequence[Message]) -> None:
        """Send messages to the `number`th host; do nothing if that host is gone."""

    def kill(self, number: int, reason: str) -> None:
        """Kill the `number`th host and everything that runs in it."""


class Placer(Protocol):
    """The keeper's view of the placer in a placed keyspace. No method waits."""

    def wanted(self, places: Collection[str]) -> None:
        """Report that there may be jobs in these places: something changed there."""

    def listed(self, places: Collection[str]) -> None:
        """Report that there are jobs in these places and in no others."""

    def drained(self, place: str, epoch: int, *, vacant: bool) -> None:
        """Report that nothing runs in a place held here under this epoch; `vacant`: it has no jobs any more."""


class Keeper:
    """The jobs of one keyspace. Any thread may call the public methods; they do not wait."""

    def __init__(
        self,
        keyspace: str,
        worker: str,
        reconciler: JobReconciler,
        open_store: Callable[[], JobStore],
        hosting: Hosting,
        lease: Lease,
        report: Callable[[Event], None],
        *,
        poll: float,
        outcome_ttl: float,
        placer: Placer | None = None,
    ) -> None:
        self.keyspace = keyspace
        self._worker, self._reconciler, self._open_store = worker, reconciler, open_store
        self._hosting, self._lease, self._report = hosting, lease, report
        self._outcome_ttl = outcome_ttl
        self._backoff = Backoff()
        listed = placer.listed if placer is not None else None
        self._poller = Poller(keyspace, reconciler, self._backoff, self._each, poll=poll, listed=listed)
        self._inbox: deque[Callable[[], None]] = deque()
        self._store: JobStore | None = None
        self._outage = Outage(logger, f"jobs of keyspace {keyspace}", lambda _: WITHOUT_STORE)
        self._host = 0
        self._killed = 0
        self._placer = placer
        self._more = False
        """True if there is more to do at once."""
        self._warned = False
        """True after the warning about jobs stored where they cannot run."""
        self._running = True
        self._ended = True  # no thread yet

    def start(self) -> None:
        """Start the thread."""
        self._ended = False
        start_native_thread(self._run)

    def finish(self, timeout: float) -> None:
        """Stop the thread; wait for it at most `timeout` seconds. The host ends what still runs."""
        self._running = False
        self._post(lambda: None)
        deadline = time.monotonic() + timeout
        while not self._ended and time.monotonic() < deadline:
            time.sleep(0.005)

    def open(self, slot: Slot, epoch: int, membership: int, idle: str = "") -> None:
        """Open the slot under this epoch, in this membership; `idle`: why no job may start in it, or empty."""
        self._post(lambda: self._reconciler.open(slot, epoch, membership, idle))

    def stop(self, slot: Slot) -> None:
        """Stop the jobs of a slot; reports when neither jobs nor tasks of it are left."""
        self._post(lambda: self._reconciler.stop(slot))

    def tasks_drained(self, slot: int) -> None:
        """Note that no tasks of the slot are left."""
        self._post(lambda: self._reconciler.tasks_drained(slot))

    def close(self, slot: Slot) -> None:
        """Close the slot: another worker already has it."""

        def take_in() -> None:
            self._backoff.forget(slot)
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
            for run in self._reconciler.runs()
        ]

    def _post(self, call: Callable[[], None]) -> None:
        self._inbox.append(call)
        if (store := self._store) is not None:
            store.wake()

    # -- for the host --------------------------------------------------------------------------

    def host_started(self, number: int) -> None:
        """Note that the `number`th job host has started."""

        def take_in() -> None:
            self._host = number
            self._reconciler.host_started()

        self._post(take_in)
        self._report(HostUp())

    def host_ended(self) -> None:
        """Note that the job host is gone."""
        self._report(HostDown())
        self._post(lambda: self._reconciler.host_ended(boottime()))

    def heard(self, message: Message) -> None:
        """Take in a message from the host about a run, perhaps of another keyspace."""
        self._post(lambda: self._reconciler.heard(message, boottime()))

    def relied_on(self) -> set[Reliance]:
        """Return the memberships whose trust the runs rely on."""
        return {(self.keyspace, membership) for membership in self._reconciler.memberships()}

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._running:
                try:
                    if self._store is None:
                        self._store = self._open_store()
                        self._store.watch(0.0)  # subscribes first, so no change after our first look is missed
                    self._turn(self._store)
                except StoreUnavailable as error:
                    self._outage.failed(error, boottime())
                    self._take_in()
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

    def _turn(self, store: JobStore) -> None:
        self.work(store)
        at_once = self._inbox or self._outage.lasts
        self.heed(store.watch(0.0 if at_once else self._pause()))
        self._outage.over(boottime())

    def heed(self, changed: Collection[Slot]) -> None:
        """Schedule a look at changed slots that are ours; tell the placer about all places with jobs."""
        self._poller.add(self._reconciler.changed(changed))
        places = [slot for slot in changed if isinstance(slot, str)]
        if places and self._placer is not None:
            self._placer.wanted(places)

    def work(self, store: JobStore) -> None:
        """Do all work that is due. Work without the store comes first, because the store may be down."""
        self._take_in()
        self._reconciler.again(self._tend())
        self._open_slots(store)
        self._settle(store)
        self._poller.look(store, boottime())
        self._start(store, self._tend())

    def _take_in(self) -> None:
        while self._inbox:
            self._inbox.popleft()()
        self._end_overdue()
        self._report_drained()

    def _end_overdue(self) -> None:
        if self._reconciler.overdue and self._killed != self._host:
            self._killed = self._host
            self._hosting.kill(self._host, f"a job of keyspace {self.keyspace} did not stop in time")

    def _report_drained(self) -> None:
        for drained in self._reconciler.take_drained():
            self._backoff.forget(drained.slot)
            if isinstance(drained.slot, int):
                self._report(Drained(drained.slot))
            elif self._placer is not None:
                self._placer.drained(drained.slot, drained.epoch, vacant=drained.vacant)

    def _each(self, store: JobStore, slot: Slot, verb: str, work: Callable[[], None]) -> bool:
        """Do `work` for one slot; False: the slot is set aside. A refusal for one slot must not block the others."""
        if self._backoff.has(slot, boottime()):
            return False
        try:
            work()
        except Exception as error:
            store.look({})  # raises if the store as a whole is down
            again = self._backoff.put(slot, verb, boottime())
            what = f"slot {slot} at {store.where(slot)}: {verb}"
            logger.error(
                "jobs of keyspace %s: %s has failed: %s; trying again in %g s", self.keyspace, what, error, again
            )
            return False
        self._backoff.worked(slot, verb)
        return True

    def _open_slots(self, store: JobStore) -> None:
        now = boottime()
        to_open = [(slot, epoch) for slot, epoch in self._reconciler.to_open() if not self._backoff.has(slot, now)]
        self._more = len(to_open) > AT_ONCE
        for slot, epoch in to_open[:AT_ONCE]:
            self._each(store, slot, "open", partial(self._open, store, slot, epoch))

    def _open(self, store: JobStore, slot: Slot, epoch: int) -> None:
        try:
            store.open(slot, epoch)
        except Fenced as fenced:
            # The store lost the document but kept the records: the member raises the epoch and opens the slot again.
            self._reconciler.stop(slot)
            if isinstance(slot, int):
                self._report(OpenRefused(slot, fenced.epoch))
            else:  # or it lost the claims: the placer claims the key again
                logger.warning("jobs of keyspace %s: place %r is fenced at %d", self.keyspace, slot, fenced.epoch)
        else:
            self._reconciler.fenced(slot)
            self._poller.add((slot,))

    def _settle(self, store: JobStore) -> None:
        for slot, epoch, reports, notes in self._reconciler.settling.to_settle():
            self._each(store, slot, "settle", partial(self._settle_slot, store, slot, epoch, reports, notes))

    def _settle_slot(self, store: JobStore, slot: Slot, epoch: int, reports: list[Report], notes: list[str]) -> None:
        self._warn_of_misplaced(reports)
        try:
            known = self._reconciler.revision(slot)
            revision = store.settle(slot, epoch, reports, notes, outcome_ttl=self._outcome_ttl, known=known)
        except Fenced:
            self._reconciler.unfenced(slot)
            self._poller.add((slot,))
        else:
            if self._reconciler.settled(slot, len(reports), len(notes), revision):
                self._poller.add((slot,))  # otherwise we know everything in the slot

    def _warn_of_misplaced(self, reports: Sequence[Report]) -> None:
        why = misplaced.as_plain(self.keyspace)
        if not self._warned and any(report.error == why for report in reports):
            self._warned = True
            logger.error("jobs of keyspace %s: at least one job cannot run: %s", self.keyspace, why)

    def _tend(self) -> dict[Slot, list[str]]:
        """Do the work that needs no store: stop, notify, end; return the starts to reserve."""
        reserves = self._reconciler.reconcile(
            boottime(), lambda membership: self._lease.trusted(self.keyspace, membership)
        )
        self._hosting.say(self._host, self._reconciler.take_says())
        for run, note in self._reconciler.settling.to_notify():
            self._hosting.say(self._host, [Notify(run.ref, note.id, json.loads(note.payload))])
        self._end_overdue()
        self._report_drained()
        return reserves

    def _start(self, store: JobStore, reserves: dict[Slot, list[str]]) -> None:
        try:
            self._more |= len(reserves) > AT_ONCE
            for slot in list(reserves)[:AT_ONCE]:
                if self._each(store, slot, "reserve", partial(self._begin, store, slot, reserves[slot])):
                    del reserves[slot]
        finally:
            self._reconciler.again(reserves)  # those left over: there were very many, or the store or some slot failed

    def _begin(self, store: JobStore, slot: Slot, ids: list[str]) -> None:
        epoch = self._reconciler.epoch(slot)
        reserved = Reserved({job_id: 1 for job_id in ids if is_built_in(job_id)})
        if written := [job_id for job_id in ids if not is_built_in(job_id)]:
            try:
                found = store.reserve(slot, epoch, self._worker, written, known=self._reconciler.revision(slot))
                reserved = Reserved({**reserved.attempts, **found.attempts}, found.revision)
            except Fenced:
                self._reconciler.unfenced(slot)
            if len(reserved.attempts) < len(ids):
                self._poller.add((slot,))  # some of these jobs are no longer wanted
        runs = self._reconciler.reserved(slot, reserved, boottime())
        self._hosting.say(self._host, [self._start_of(run, attempt) for run, attempt in runs])

    def _start_of(self, run: JobRun, attempt: int) -> Start:
        record = run.record
        return Start(
            run.ref,
            record.name,
            record.key,
            self.keyspace,
            record.id,
            run.epoch,
            attempt,
            json.loads(record.payload),
            run.membership,
            self._worker,
        )

    def _pause(self) -> float:
        now = boottime()
        ends = [now if self._more else self._poller.next_at(now)]
        ends += [at for at in (self._reconciler.wake_at(), self._backoff.next_at(now)) if at is not None]
        if self._reconciler.waiting:
            ends.append(now + UNTRUSTED_PAUSE)
        return max(0.0, min(ends) - now)
