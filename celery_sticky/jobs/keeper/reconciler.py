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
from celery_sticky.jobs.keeper.runs import Runs
from celery_sticky.jobs.keeper.settling import Settling
from celery_sticky.jobs.keeper.starts import Starts
from celery_sticky.jobs.keeper.suspects import Suspects
from celery_sticky.jobs.wire import Message, Stop
from celery_sticky.keys import Slot
from celery_sticky.stores.jobs import JobRecord, JobState, Reserved, RunResult, SlotJobs

STARTED = (JobState.RUNNING, JobState.STOPPING)
"""States of a job that has started and is not to start again."""


class JobReconciler:
    """The jobs of one keyspace that this worker owns."""

    def __init__(
        self,
        timeouts: JobTimeouts,
        *,
        keyspace: str = "",
        suspects: Suspects | None = None,
        refs: Iterator[int] | None = None,
        built_in: Mapping[int, Sequence[JobRecord]] | None = None,
        placed: bool = False,
    ) -> None:
        suspects = suspects or Suspects()
        self._timeouts = timeouts
        self._built_in = built_in or {}
        self._held: dict[Slot, HeldSlot] = {}
        self._agenda = Agenda()
        self.settling = Settling(self._held)
        self.runs = Runs(keyspace, timeouts, suspects, refs or count(1), self._held, self.settling, self._agenda)
        why = misplaced.as_plain(keyspace) if placed else ""
        self._starts = Starts(timeouts, suspects, self.runs, self.settling, self._agenda, why)
        self._unopened: dict[Slot, None] = {}
        self._says: list[Message] = []
        self._drained: list[DrainedSlot] = []
        self.host_up = False
        self.waiting = False
        """True if starts wait for trust."""
        self.overdue = False
        """True if a run did not stop in time, or another worker has its slot: the host must be killed."""

    # -- orders of the member ------------------------------------------------------------------

    def open(self, slot: Slot, epoch: int, membership: int, idle: str = "") -> None:
        """Hold the slot under this epoch, in this membership; fence its records. `idle`: see `HeldSlot`."""
        held = self._held.get(slot)
        if held is None:
            held = self._held[slot] = HeldSlot(epoch, membership, wanted=self._with_built_in(slot, ()))
        elif held.epoch != epoch or held.stopping:
            held.epoch, held.opened, held.stopping, held.tasks_drained = epoch, False, False, False
            held.membership, held.vacant = membership, False
        held.tasks_drained |= isinstance(slot, str)
        held.idle = idle
        self._unopened[slot] = None
        self._agenda.add(slot)

    def stop(self, slot: Slot) -> None:
        """Give the slot away: stop its runs. `take_drained` returns it when nothing is left."""
        held = self._held.get(slot)
        if held is not None:
            held.stopping = True
            self._agenda.add(slot)

    def tasks_drained(self, slot: int) -> None:
        """Note that none of the slot's tasks is left here."""
        held = self._held.get(slot)
        if held is None:
            self._drained.append(DrainedSlot(slot))
        else:
            held.tasks_drained = True
            self._agenda.add(slot)

    def close(self, slot: Slot) -> None:
        """Drop the slot, which another worker already has: none of its runs may continue."""
        held = self._held.pop(slot, None)
        self._drained = [drained for drained in self._drained if drained.slot != slot]
        if held is not None and held.runs:
            self.runs.drop(held)
            self.overdue = True

    def take_drained(self) -> list[DrainedSlot]:
        """Return, once, the slots that have neither tasks nor jobs left, and the key places without records."""
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

    def behind(self, revisions: Mapping[str, int]) -> list[Slot]:
        """Return the key places held here whose known revision differs from this one (absent: 0)."""
        held = self._held.items()
        return [slot for slot, p in held if isinstance(slot, str) and p.revision != revisions.get(slot, 0)]

    def seen(self, slot: Slot, found: SlotJobs) -> None:
        """Take in the stored records and notes of a slot."""
        held = self._held.get(slot)
        if held is not None:
            held.revision = found.revision
            held.wanted = self._with_built_in(slot, found.records)
            held.notes, held.more = found.notes, found.more
            held.vacant = isinstance(slot, str) and not found.records
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
            lost = record is not None and record.id == run.record.id and (record.fresh or record.state not in STARTED)
            if lost and run.stage is RunStage.RUNNING:
                self.runs.report(run, RunResult.STARTED)

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

    def host_started(self) -> None:
        """Note that the host has started and nothing runs in it."""
        self.host_up = True
        self._agenda.update(self._held)

    def host_ended(self, now: float) -> None:
        """Take in the end of the host and of all its runs. Wanted jobs start again in the next host."""
        self.host_up = self.overdue = False
        self._says.clear()
        self.runs.host_ended(now)

    def settled(self, slot: Slot, reports: int, notes: int, revision: int) -> bool:
        """Take in that reports and notes were stored; see `Settling.settled`."""
        held = self._held.get(slot)
        if held is None:
            return False
        self._agenda.add(slot)
        return self.settling.settled(held, reports, notes, revision)

    # -- actions -------------------------------------------------------------------------------

    def reconcile(self, now: float, may_start: Callable[[int], bool]) -> dict[Slot, list[str]]:
        """Compare wanted and running jobs in the slots that changed; return the ids to reserve, by slot.

        `may_start` returns whether a membership is trusted. Return slots that could not be reserved with `again`.
        """
        self._starts.take_kept_back()
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

    def take_says(self) -> list[Message]:
        """Return, once, the messages to send to the host."""
        says, self._says = self._says, []
        return says

    def wake_at(self) -> float | None:
        """Return when to reconcile again, unless something happens before."""
        at = min(self._agenda.next_at, self._starts.ask_at)
        return None if at == float("inf") else at

    def _reconcile(self, slot: Slot, held: HeldSlot, now: float) -> list[str]:
        for job, run in held.runs.items():
            self._look_after(held, run, held.wanted.get(job), now)
        if held.stopping or held.vacant:
            self._end(slot, held)
            return []
        if held.reports or self.overdue or not (held.opened and self.host_up):
            return []  # some reports are not stored yet, so the records are older than our knowledge
        return self._starts.due(slot, held, now)

    def _look_after(self, held: HeldSlot, run: JobRun, record: JobRecord | None, now: float) -> None:
        limit = {RunStage.STARTING: self._timeouts.start_timeout, RunStage.STOPPING: self._timeouts.stop_timeout}.get(
            run.stage
        )
        timed_out = limit is not None and now >= run.since + limit
        if run.stage is RunStage.STOPPING:
            self.overdue |= timed_out
            return
        wanted = record is not None and record.id == run.record.id and record.state is not JobState.STOPPING
        if timed_out or held.stopping or held.epoch != run.epoch or not wanted:
            run.late = timed_out
            run.stage, run.since = RunStage.STOPPING, now
            self._says.append(Stop(run.ref))
            self._agenda.add_at(now + self._timeouts.stop_timeout, run.slot)

    def _end(self, slot: Slot, held: HeldSlot) -> None:
        if held.tasks_drained and not held.runs and not (held.opened and (held.reports or held.noted)):
            del self._held[slot]
            self._drained.append(DrainedSlot(slot, held.epoch, held.vacant))
