"""The job reconciler of one keyspace in one worker: a pure state machine. No thread, no clock, no store, no process.

It compares the wanted jobs (the records of the slots it holds) with the running ones (in the job host), and returns the
actions: starts to reserve, messages to the host, reports to store. The keeper carries them out and brings the answers.
The next look repairs anything that got lost. `now` is in seconds on one clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count

from celery_sticky.jobs import misplaced
from celery_sticky.jobs.keeper.agenda import Agenda
from celery_sticky.jobs.keeper.held import (
    DrainedSlot,
    HeldSlot,
    JobKey,
    JobRun,
    JobTimeouts,
    RunStage,
    job_key,
)
from celery_sticky.jobs.keeper.history import BACK, History, why_stopped
from celery_sticky.jobs.keeper.home import Home
from celery_sticky.jobs.keeper.host_flow import Blame
from celery_sticky.jobs.keeper.runs import Runs
from celery_sticky.jobs.keeper.saving import Saving
from celery_sticky.jobs.keeper.settling import Settling, Unsettled
from celery_sticky.jobs.keeper.starts import Place, Starts
from celery_sticky.jobs.retry import DEFAULT_RETRY, Retry
from celery_sticky.jobs.wire import Message, Stop
from celery_sticky.slots import KeyPlace, Slot
from celery_sticky.stores.jobs import UNWANTED, JobRecord, JobState, Report, Reserved, RunResult, SlotJobs

STARTED = UNWANTED | {JobState.RUNNING}
"""States of a job that has started and is not to start again."""


class JobReconciler:
    """The jobs of one keyspace that this worker owns."""

    def __init__(
        self,
        timeouts: JobTimeouts,
        *,
        place: Place,
        keyspace: str = "",
        worker: str = "",
        retry_of: Callable[[str], Retry] = lambda _: DEFAULT_RETRY,
        refs: Iterator[int] | None = None,
        built_in: Mapping[int, Sequence[JobRecord]] | None = None,
        placed: bool = False,
    ) -> None:
        """`place` finds the process for a start, `retry_of` the retry policy of the jobs of a name."""
        self.timeouts = timeouts
        self._built_in = built_in or {}
        self._held: dict[Slot, HeldSlot] = {}
        self._agenda = Agenda()
        self.settling, self.saving = Settling(self._held), Saving(self._held)
        self.history = History(worker, keyspace)
        stored = self._held, self.settling, self.saving
        self.runs = Runs(timeouts, retry_of, refs or count(1), *stored, self._agenda, self.history)
        why = misplaced.as_plain(keyspace) if placed else ""
        self._starts = Starts(timeouts, place, self.runs, self.settling, self._agenda, why)
        self._unopened: dict[Slot, None] = {}
        self._says: list[tuple[int, Message]] = []
        self._drained: list[DrainedSlot] = []
        self.waiting = False
        """True if starts wait for trust."""
        self._overdue: dict[int, dict[int, str]] = {}
        """The processes to kill, because a run did not stop in time, or another worker has its slot.

        For each, which runs are to blame, with their errors.
        """

    # -- orders of the member ------------------------------------------------------------------

    def open(self, slot: Slot, epoch: int, membership: int, idle: str = "") -> None:
        """Hold the slot under this epoch, in this membership; fence its records. `idle`: see `HeldSlot`."""
        held = self._held.get(slot)
        if held is None:
            held = self._held[slot] = HeldSlot(epoch, membership, wanted=self._with_built_in(slot, ()))
        elif held.epoch != epoch or held.stopping:
            held.epoch, held.opened, held.stopping, held.given = epoch, False, False, False
            held.membership, held.vacant = membership, False
        held.idle = idle
        self._unopened[slot] = None
        self._agenda.add(slot)

    def stop(self, slot: Slot) -> None:
        """Give the slot away: stop its runs. `take_drained` returns it when nothing is left."""
        held = self._held.get(slot)
        if held is not None:
            held.stopping = held.given = held.in_order = True
            self._agenda.add(slot)
        elif isinstance(slot, int):
            self._drained.append(DrainedSlot(slot))

    def close(self, slot: Slot) -> None:
        """Drop the slot, which another worker already has: none of its runs may continue."""
        held = self._held.pop(slot, None)
        self._drained = [drained for drained in self._drained if drained.slot != slot]
        if held is not None and held.runs:
            for run in held.runs.values():
                self._overdue.setdefault(run.host, {})
            self.runs.drop(held)

    def has_runs(self, slot: Slot) -> bool:
        """Return whether jobs of the slot run here. Any thread may call this."""
        held = self._held.get(slot)
        return held is not None and bool(held.runs)

    def take_overdue(self) -> dict[int, dict[int, str]]:
        """Return, once, the processes to kill, each with the runs to blame and their errors."""
        overdue, self._overdue = self._overdue, {}
        return overdue

    def take_drained(self) -> list[DrainedSlot]:
        """Return, once, the slots given away that have no jobs left, and the key places without records."""
        drained, self._drained = self._drained, []
        return drained

    # -- answers of the store ------------------------------------------------------------------

    def to_open(self) -> list[tuple[Slot, int]]:
        """Return slot and epoch of the records to fence."""
        found = [(slot, held) for slot in self._unopened if (held := self._held.get(slot)) is not None]
        found = [(slot, held) for slot, held in found if not (held.opened or held.stopping)]
        self._unopened = dict.fromkeys(slot for slot, _ in found)
        return [(slot, held.epoch) for slot, held in found]

    def fenced(self, slot: Slot) -> None:
        """Note that the slot's records are fenced for our epoch."""
        self._held[slot].opened = True
        self._held[slot].revision = 0
        self._agenda.add(slot)

    def refused(self, slot: Slot) -> None:
        """Note that the slot's records are fenced for a later epoch: stop its runs until it is opened again.

        The place of a key is given away: the placer must claim the key again.
        """
        held = self._held[slot]
        held.stopping, held.in_order = True, False
        held.given = held.given or isinstance(slot, KeyPlace)
        self._agenda.add(slot)

    def unfenced(self, slot: Slot) -> None:
        """Note that the slot's records are fenced for another epoch: fence them again, if we still may."""
        if (held := self._held.get(slot)) is not None:
            held.opened = False
            self._unopened[slot] = None
            self._agenda.add(slot)  # a slot that is stopping is not fenced again: its pending reports are void

    def changed(self, slots: Iterable[Slot]) -> list[Slot]:
        """Return those of the changed slots that are ours, to look at."""
        ours = [slot for slot in slots if slot in self._held]
        for slot in ours:
            self._held[slot].vacant = False  # as far as we know
        return ours

    def known(self, slots: Iterable[Slot] | None = None) -> dict[Slot, int]:
        """Return the known revisions of the slots that are open here: of all, or of these."""
        found = self._held if slots is None else {slot: self._held[slot] for slot in slots if slot in self._held}
        return {slot: held.revision for slot, held in found.items() if held.opened}

    def numbers(self) -> list[Slot]:
        """Return the numbered slots that are held here, without key places."""
        return [slot for slot in self._held if isinstance(slot, int)]

    def behind(self, revisions: Mapping[KeyPlace, int]) -> list[Slot]:
        """Return the key places held here whose known revision differs from this one (absent: 0)."""
        held = self._held.items()
        return [slot for slot, p in held if isinstance(slot, KeyPlace) and p.revision != revisions.get(slot, 0)]

    def seen(self, slot: Slot, found: SlotJobs) -> None:
        """Take in the stored records and notes of a slot."""
        held = self._held.get(slot)
        if held is not None:
            held.revision = found.revision
            before, held.wanted = held.wanted, self._with_built_in(slot, found.records)
            held.forgive(before)
            held.notes, held.more = found.notes, found.more
            held.vacant = isinstance(slot, KeyPlace) and not found.records
            self._forget_old(held)
            self._tell_again(held)
            self.settling.look(slot)
            self._agenda.add(slot)

    def _tell_again(self, held: HeldSlot) -> None:
        """Report a start again whose record does not show it: after a failover, or a request that arrived late."""
        if held.reports:
            return  # the records are older than these
        for job, run in held.runs.items():
            record = held.wanted.get(job)
            lost = record is not None and run.is_of(record) and (record.fresh or record.state not in STARTED)
            if lost and run.stage is RunStage.RUNNING:
                self.runs.report(run, Report(run.record.id, RunResult.STARTED))

    def _with_built_in(self, slot: Slot, records: Sequence[JobRecord]) -> dict[JobKey, JobRecord]:
        built_in = self._built_in.get(slot, ()) if isinstance(slot, int) else ()
        return {job_key(record): record for record in (*records, *built_in)}

    @staticmethod
    def _forget_old(held: HeldSlot) -> None:
        if held.failures:
            ids = {record.id for record in held.wanted.values()}
            held.failures = {job_id: when for job_id, when in held.failures.items() if job_id in ids}
        notes = {note.id for note in held.notes}
        for run in held.runs.values():
            if run.sent:
                run.sent &= notes

    # -- messages of the host ------------------------------------------------------------------

    def hosts_changed(self) -> None:
        """Note that there may be a process for starts that had to wait."""
        self._starts.hosts_changed()

    def host_ended(self, number: int, blame: Blame, now: float) -> None:
        """Take in the end of a process and of all its runs. Wanted jobs start again in another one."""
        self._overdue.pop(number, None)
        self.runs.host_ended(number, blame, now)
        self._starts.hosts_changed()

    def settled(self, slot: Slot, news: Unsettled, revision: int) -> bool:
        """Take in that news was stored; see `Settling.settled`."""
        held = self._held.get(slot)
        if held is None:
            return False
        self._agenda.add(slot)
        return self.settling.settled(held, news, revision)

    # -- actions -------------------------------------------------------------------------------

    def reconcile(self, now: float, may_start: Callable[[int], bool]) -> dict[Slot, list[str]]:
        """Compare wanted and running jobs in the slots that changed; return the ids to reserve, by slot.

        `may_start` returns whether a membership is trusted. Return slots that could not be reserved with `again`.
        """
        reserves: dict[Slot, list[str]] = {}
        for slot in self._agenda.take(now):
            held = self._held.get(slot)
            if held is not None and (ids := self._reconcile(slot, held, now)):
                reserves[slot] = ids
        wait = [slot for slot in reserves if not may_start(self._held[slot].membership)]
        self.waiting = bool(wait)
        self.again(wait)
        return {slot: ids for slot, ids in reserves.items() if slot not in wait}

    def again(self, slots: Iterable[Slot]) -> None:
        """Re-check these slots: their work could not be done."""
        self._agenda.update(slots)

    def epoch(self, slot: Slot) -> int:
        """Return the epoch under which a slot is held."""
        return self._held[slot].epoch

    def revision(self, slot: Slot) -> int:
        """Return the known revision of a slot."""
        return self._held[slot].revision

    def reserved(self, slot: Slot, reserved: Reserved, now: float) -> list[tuple[JobRun, int]]:
        """Take in reserved starts; return the runs to start, with their attempts."""
        held = self._held.get(slot)
        return [] if held is None or held.stopping else self._starts.reserved(slot, held, reserved, now)

    def take_says(self) -> list[tuple[int, Message]]:
        """Return, once, the messages to send, each with the number of the process it is for."""
        says, self._says = self._says, []
        return says

    def wake_at(self) -> float | None:
        """Return when to reconcile again, unless something happens before."""
        at = self._agenda.next_at
        return None if at == float("inf") else at

    def _reconcile(self, slot: Slot, held: HeldSlot, now: float) -> list[str]:
        leaves = held.leaving()
        for job, run in held.runs.items():
            self._look_after(held, run, held.wanted.get(job), now, leaves=leaves(run))
        if held.stopping or held.vacant:
            self._end(slot, held)
            return []
        if held.reports or held.saves or not held.opened:
            return []  # some reports are not stored yet, so the records are older than our knowledge
        return self._starts.due(slot, held, now)

    def _look_after(self, held: HeldSlot, run: JobRun, record: JobRecord | None, now: float, *, leaves: bool) -> None:
        timed_out = now >= run.due
        if run.stage is RunStage.STOPPING:
            if timed_out:
                error = f"its stop took longer than {self.timeouts.stop_timeout:g} s"
                self._overdue.setdefault(run.host, {})[run.ref] = error
            return
        wanted = record is not None and run.is_of(record) and record.state not in UNWANTED
        if timed_out or leaves or held.epoch != run.epoch or not wanted:
            run.again = record is not None and record.id == run.record.id and record.state is not JobState.STOPPING
            run.late = timed_out and run.called
            self._stop(run, why_stopped(held, run, record, timed_out=timed_out), now)
        elif now >= run.settles_at:
            self.runs.settle(held, run)
            if run.home is Home.QUARANTINE:  # others may need a process for themselves
                run.again = True
                self._stop(run, BACK, now)

    def _stop(self, run: JobRun, why: str, now: float) -> None:
        run.why = why
        self.runs.clocks.stop_ordered(run, now)
        self._says.append((run.host, Stop(run.ref)))

    def _end(self, slot: Slot, held: HeldSlot) -> None:
        if (held.given or held.vacant) and not held.runs and not (held.opened and held.has_news):
            del self._held[slot]
            self._drained.append(DrainedSlot(slot, held.epoch, held.vacant))
