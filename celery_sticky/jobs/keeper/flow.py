"""What a keeper does in its turns: the requests to the job store as flows, the orders to the job host at once.

No thread, no clock, no client. The decisions are in the `JobReconciler`; this carries them out and reports the answers.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from celery_sticky.errors import Fenced
from celery_sticky.instrumentation.registry import Instruments
from celery_sticky.jobs import misplaced
from celery_sticky.jobs.keeper.backoff import Backoff
from celery_sticky.jobs.keeper.held import JobRun, is_built_in, name_of
from celery_sticky.jobs.keeper.home import Home
from celery_sticky.jobs.keeper.host_flow import Blame
from celery_sticky.jobs.keeper.poller import Poller
from celery_sticky.jobs.keeper.reconciler import JobReconciler
from celery_sticky.jobs.keeper.settling import Unsettled
from celery_sticky.jobs.keeper.strikes import Who
from celery_sticky.jobs.wire import Message, Notify, Start
from celery_sticky.ownership.events import Drained, Event, HostUp, OpenRefused
from celery_sticky.slots import KeyPlace, Slot
from celery_sticky.stores.flow import Flow, ask
from celery_sticky.stores.jobs import JobStore, Report, Reserved

logger = logging.getLogger("celery_sticky.jobs")

UNTRUSTED_PAUSE = 0.1
"""Seconds until starts that wait for trust or for the host are retried."""
AT_ONCE = 500
"""Slots to open, or to start jobs in, in one go: each costs a request, and meanwhile nothing is stopped."""


class Hosting(Protocol):
    """The keeper's view of the worker's job host. No method waits."""

    def place(self, who: Who, label: str, home: Home) -> int:
        """Return the number of the process for a start; 0: wait for one. `label` names the job in the log."""

    def say(self, number: int, messages: Sequence[Message]) -> None:
        """Send messages to the process of this number; do nothing if it is gone."""

    def kill(self, number: int, reason: str, blame: Blame) -> None:
        """Kill the process of this number and everything that runs in it."""


class Placer(Protocol):
    """The keeper's view of the placer in a placed keyspace. No method waits."""

    def wanted(self, places: Collection[KeyPlace]) -> None:
        """Report that there may be jobs in these places: something changed there."""

    def listed(self, places: Collection[KeyPlace]) -> None:
        """Report that there are jobs in these places and in no others."""

    def drained(self, place: KeyPlace, epoch: int, *, vacant: bool) -> None:
        """Report that nothing runs in a place held here under this epoch; `vacant`: it has no jobs any more."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the keeper of one keyspace in one worker deals with, beside the job store."""

    keyspace: str
    worker: str
    hosting: Hosting
    trusted: Callable[[int], bool]
    """Returns whether a membership, by its number, is trusted for long enough to start jobs."""
    report: Callable[[Event], None]
    """Tells the member."""
    clock: Callable[[], float]
    """Returns seconds."""
    poll: float
    """Seconds between looks at everything that is held here."""
    outcome_ttl: float
    placer: Placer | None = None
    """None: the keyspace is not a placed one."""
    instruments: Instruments = field(default_factory=Instruments)


class KeeperFlow:
    """The turns of one keyspace's keeper."""

    def __init__(self, here: Surroundings, reconciler: JobReconciler, hear: Callable[[], None]) -> None:
        """`hear` takes in what the host and the member have said meanwhile."""
        self._here, self._reconciler, self._hear = here, reconciler, hear
        self._backoff = Backoff(here.keyspace, here.clock)
        listed = here.placer.listed if here.placer is not None else None
        self._poller = Poller(here.keyspace, reconciler, self._backoff, poll=here.poll, listed=listed)
        self._more = False
        """True if there is more to do at once."""
        self._warned = False
        """True after the warning about jobs stored where they cannot run."""
        self.host_is_up = False
        """Whether there is a host for jobs, as far as it has said."""
        self.closed = False
        """True if slots were closed; the member may believe that this costs the host."""

    def heed(self, changed: Collection[Slot]) -> None:
        """Schedule a look at changed slots that are ours; tell the placer about all places with jobs."""
        self._poller.add(self._reconciler.changed(changed))
        places = [slot for slot in changed if isinstance(slot, KeyPlace)]
        if places and self._here.placer is not None:
            self._here.placer.wanted(places)

    def forget(self, slot: Slot) -> None:
        """Forget what failed in a slot that another worker has now."""
        self._backoff.forget(slot)

    def turn(self) -> Flow[JobStore, float]:
        """Do all work that is due; return the seconds until there may be more if nothing is heard before.

        Work without the store comes first, because the store may be down.
        """
        self._reconciler.again(self._tend())
        yield from self._open_slots()
        yield from self._save()
        yield from self._settle()
        yield from self._poller.look(self._here.clock())
        self._hear()  # a slow store must not make a start look late whose end is known
        yield from self._start(self._tend())
        return self._pause()

    # -- without the store ---------------------------------------------------------------------

    def conclude(self) -> None:
        """Kill processes that do not stop a job in time or run a lost slot; report the slots that are left empty."""
        for number, blame in self._reconciler.take_overdue().items():
            self._here.hosting.kill(number, self._why_killed(blame), blame)
        for drained in self._reconciler.take_drained():
            self._backoff.forget(drained.slot)
            match drained.slot:
                case int(slot):
                    self._here.report(Drained(slot))
                case KeyPlace() as place if self._here.placer is not None:
                    self._poller.left()
                    self._here.placer.drained(place, drained.epoch, vacant=drained.vacant)
        if self.closed and self.host_is_up:
            self._here.report(HostUp())
        self.closed = False

    def _tend(self) -> dict[Slot, list[str]]:
        """Stop, notify and end what is due; return the starts to reserve."""
        reserves = self._reconciler.reconcile(self._here.clock(), self._here.trusted)
        self._say(self._reconciler.take_says())
        notes = self._reconciler.settling.to_notify()
        self._say(
            (run.host, Notify(run.ref, note.id, json.loads(note.payload), note.failed + 1)) for run, note in notes
        )
        self.conclude()
        for fact in self._reconciler.history.take():
            self._here.instruments.tell(fact)
        return reserves

    def _why_killed(self, blame: Blame) -> str:
        runs = [run for run in self._reconciler.runs.all() if run.ref in blame]
        if not runs:
            return f"another worker has a slot of keyspace {self._here.keyspace} whose jobs run here"
        return f"{name_of(runs[0].record)}: {blame[runs[0].ref]}"

    def _say(self, messages: Iterable[tuple[int, Message]]) -> None:
        by_process: dict[int, list[Message]] = {}
        for number, message in messages:
            by_process.setdefault(number, []).append(message)
        for number, said in by_process.items():
            self._here.hosting.say(number, said)

    def _pause(self) -> float:
        now = self._here.clock()
        ends = [now if self._more else self._poller.next_at(now)]
        ends += [at for at in (self._reconciler.wake_at(), self._backoff.next_at()) if at is not None]
        if self._reconciler.waiting:
            ends.append(now + UNTRUSTED_PAUSE)
        return max(0.0, min(ends) - now)

    # -- opening -------------------------------------------------------------------------------

    def _open_slots(self) -> Flow[JobStore, None]:
        to_open = [(slot, epoch) for slot, epoch in self._reconciler.to_open() if not self._backoff.has(slot)]
        self._more = len(to_open) > AT_ONCE
        for slot, epoch in to_open[:AT_ONCE]:
            yield from self._backoff.attempt(slot, "open", self._open(slot, epoch))

    def _open(self, slot: Slot, epoch: int) -> Flow[JobStore, None]:
        try:
            yield from ask(JobStore.open, slot, epoch)
        except Fenced as fenced:
            # The store lost the document but kept the records: the member raises the epoch and opens the slot again.
            self._reconciler.refused(slot)
            if isinstance(slot, int):
                self._here.report(OpenRefused(slot, fenced.epoch))
            else:  # or it lost the claims: the placer claims the key again
                logger.warning("jobs of keyspace %s: place %r is fenced at %d", self._here.keyspace, slot, fenced.epoch)
        else:
            self._reconciler.fenced(slot)
            self._poller.add((slot,))

    # -- settling ------------------------------------------------------------------------------

    def _save(self) -> Flow[JobStore, None]:
        """Store checkpoints, before the ends of the runs that sent them."""
        for slot, epoch, count in self._reconciler.saving.to_save():
            yield from self._backoff.attempt(slot, "save", self._save_slot(slot, epoch, count))
        self._say(self._reconciler.saving.take_answers())

    def _save_slot(self, slot: Slot, epoch: int, count: int) -> Flow[JobStore, None]:
        saving = self._reconciler.saving
        try:
            ids = yield from ask(JobStore.save, slot, epoch, saving.checkpoints(slot, count))
        except Fenced:
            self._reconciler.unfenced(slot)
            self._poller.add((slot,))
        else:
            saving.saved(slot, count, ids)
            self._reconciler.again((slot,))

    def _settle(self) -> Flow[JobStore, None]:
        for slot, news in self._reconciler.settling.to_settle():
            yield from self._backoff.attempt(slot, "settle", self._settle_slot(slot, news))

    def _settle_slot(self, slot: Slot, news: Unsettled) -> Flow[JobStore, None]:
        self._warn_of_misplaced(news.reports)
        known, ttl = self._reconciler.revision(slot), self._here.outcome_ttl
        told = news.reports, news.noted, news.failed
        try:
            revision = yield from ask(JobStore.settle, slot, news.epoch, *told, outcome_ttl=ttl, known=known)
        except Fenced:
            self._reconciler.unfenced(slot)
            self._poller.add((slot,))
        else:
            self._tell_of_dead(slot, news)
            if self._reconciler.settled(slot, news, revision):
                self._poller.add((slot,))  # otherwise we know everything in the slot

    def _tell_of_dead(self, slot: Slot, news: Unsettled) -> None:
        for note, failed in self._reconciler.settling.of_dead(slot, news):
            logger.error(
                "jobs of keyspace %s: a notification of job %r of key %r is dead after %d deliveries: %s; "
                "see 'celery sticky jobs dead list'",
                *(self._here.keyspace, note.name, note.key, failed.delivery, failed.error),
            )

    def _warn_of_misplaced(self, reports: Sequence[Report]) -> None:
        why = misplaced.as_plain(self._here.keyspace)
        if not self._warned and any(report.error == why for report in reports):
            self._warned = True
            logger.error("jobs of keyspace %s: at least one job cannot run: %s", self._here.keyspace, why)

    # -- starting ------------------------------------------------------------------------------

    def _start(self, reserves: dict[Slot, list[str]]) -> Flow[JobStore, None]:
        try:
            self._more |= len(reserves) > AT_ONCE
            for slot in list(reserves)[:AT_ONCE]:
                if (yield from self._backoff.attempt(slot, "reserve", self._begin(slot, reserves[slot]))):
                    del reserves[slot]
        finally:
            self._reconciler.again(reserves)  # those left over: there were very many, or the store or some slot failed

    def _begin(self, slot: Slot, ids: list[str]) -> Flow[JobStore, None]:
        reserved = yield from self._reserve(slot, ids)
        runs = self._reconciler.reserved(slot, reserved, self._here.clock())
        self._say((run.host, self._start_of(run, attempt)) for run, attempt in runs)

    def _reserve(self, slot: Slot, ids: list[str]) -> Flow[JobStore, Reserved]:
        reserved = Reserved({job_id: 1 for job_id in ids if is_built_in(job_id)})
        if written := [job_id for job_id in ids if not is_built_in(job_id)]:
            epoch, known = self._reconciler.epoch(slot), self._reconciler.revision(slot)
            try:
                found = yield from ask(JobStore.reserve, slot, epoch, self._here.worker, written, known=known)
                reserved = Reserved({**reserved.attempts, **found.attempts}, found.revision)
            except Fenced:
                self._reconciler.unfenced(slot)
            if len(reserved.attempts) < len(ids):
                self._poller.add((slot,))  # some of these jobs are no longer wanted
        return reserved

    def _start_of(self, run: JobRun, attempt: int) -> Start:
        record = run.record
        return Start(
            run.ref,
            record.name,
            record.key,
            self._here.keyspace,
            record.id,
            run.epoch,
            attempt,
            json.loads(record.payload),
            run.membership,
            self._here.worker,
            self._reconciler.timeouts.deliveries_of(record.name),
            None if record.saved is None else json.loads(record.saved),
        )
