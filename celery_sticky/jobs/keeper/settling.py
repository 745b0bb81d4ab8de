"""Reports and notes of a job reconciler: run results to store, and notifications to hand over. Pure.

A report stays with its slot until the store has it, a note until the job has it. `held` contains both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from celery_sticky.jobs.keeper.held import HeldSlot, JobRun, RunStage
from celery_sticky.keys import Slot
from celery_sticky.stores.jobs import JobState, Note, Report, RunResult


class Settling:
    """Reports and notes of the slots that are held here."""

    def __init__(self, held: Mapping[Slot, HeldSlot]) -> None:
        self._held = held
        self._unsettled: dict[Slot, None] = {}
        """Slots with reports, or with delivered notes."""
        self._noting: dict[Slot, None] = {}
        """Slots with notes that may be handed over."""

    def report(self, slot: Slot, report: Report) -> None:
        """Queue a run result for storing."""
        self._held[slot].reports.append(report)
        self._unsettled[slot] = None

    def noted(self, slot: Slot, note: str) -> None:
        """Queue a note for removal from the store, because the job has it."""
        self._held[slot].noted.append(note)
        self._unsettled[slot] = None

    def look(self, slot: Slot) -> None:
        """Note that there may be notes for runs of this slot."""
        self._noting[slot] = None

    def to_settle(self) -> list[tuple[Slot, int, list[Report], list[str]]]:
        """Return slot, epoch, reports and delivered notes of the slots that have any."""
        found = [(slot, held) for slot in self._unsettled if (held := self._held.get(slot)) is not None]
        found = [(slot, held) for slot, held in found if held.reports or held.noted]
        self._unsettled = dict.fromkeys(slot for slot, _ in found)
        return [(slot, held.epoch, held.reports[:], held.noted[:]) for slot, held in found if held.opened]

    def settled(self, held: HeldSlot, reports: int, notes: int, revision: int) -> bool:
        """Drop the first `reports` reports and `notes` notes, which are stored; revision 0: other things changed too.

        Return True if the stored records must be looked at again.
        """
        written = held.reports[:reports]
        look = (held.more and notes > 0) or any(report.result is not RunResult.STARTED for report in written)
        look = look or not revision
        if not look:
            _have_started(held, {report.id for report in written})
            held.revision = revision
        if notes:  # otherwise a new run would get them again before the next look
            dropped = set(held.noted[:notes])
            held.notes = tuple(note for note in held.notes if note.id not in dropped)
        del held.reports[:reports], held.noted[:notes]
        return look

    def to_notify(self) -> list[tuple[JobRun, Note]]:
        """Return the notes to hand over now, each with its run, and mark them as handed over."""
        found = []
        noting, self._noting = self._noting, {}
        for held in (self._held[slot] for slot in noting if slot in self._held):
            for note in held.notes:
                run = held.runs.get((note.name, note.key))
                if run is not None and run.stage is RunStage.RUNNING and note.id not in run.sent:
                    run.sent.add(note.id)
                    found.append((run, note))
        return found


def _have_started(held: HeldSlot, ids: set[str]) -> None:
    """Change the known records as the store does when it is told of a start."""
    for job, record in held.wanted.items():
        if record.id in ids and record.state is not JobState.STOPPING:
            held.wanted[job] = replace(record, state=JobState.RUNNING, fresh=False, error="")
