"""Reports and notes of a job reconciler: run results to store, and notifications to hand over. Pure.

A report stays with its slot until the store has it, a note until the job has handled it. `held` contains both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from celery_sticky.jobs.keeper.held import HeldSlot, JobRun, RunStage
from celery_sticky.slots import Slot
from celery_sticky.stores.jobs import UNWANTED, JobState, Report, RunResult
from celery_sticky.stores.notes import FailedDelivery, Note


@dataclass(frozen=True, slots=True)
class Unsettled:
    """The news of a slot, which the store does not have yet."""

    epoch: int
    reports: list[Report]
    noted: list[str]
    """Notes that their jobs have handled."""
    failed: list[FailedDelivery]


class Settling:
    """Reports and notes of the slots that are held here."""

    def __init__(self, held: Mapping[Slot, HeldSlot]) -> None:
        self._held = held
        self._unsettled: dict[Slot, None] = {}
        """Slots with news."""
        self._noting: dict[Slot, None] = {}
        """Slots with notes that may be handed over."""

    def report(self, slot: Slot, report: Report) -> None:
        """Queue a run result for storing."""
        self._held[slot].reports.append(report)
        self._unsettled[slot] = None

    def noted(self, slot: Slot, note: str) -> None:
        """Queue a note for removal from the store, because the job has handled it."""
        self._held[slot].noted.append(note)
        self._unsettled[slot] = None

    def failed(self, slot: Slot, failed: FailedDelivery) -> None:
        """Queue a failed delivery of a note for storing."""
        self._held[slot].failed.append(failed)
        self._unsettled[slot] = None

    def of_dead(self, slot: Slot, news: Unsettled) -> list[tuple[Note, FailedDelivery]]:
        """Return the notes of a slot that are dead with this news."""
        dead = {one.note: one for one in news.failed if one.dead}
        held = self._held.get(slot) if dead else None
        return [(note, dead[note.id]) for note in held.notes if note.id in dead] if held is not None else []

    def look(self, slot: Slot) -> None:
        """Note that there may be notes for runs of this slot."""
        self._noting[slot] = None

    def to_settle(self) -> list[tuple[Slot, Unsettled]]:
        """Return the slots that have news."""
        found = [(slot, held) for slot in self._unsettled if (held := self._held.get(slot)) is not None]
        found = [(slot, held) for slot, held in found if held.has_news]
        self._unsettled = dict.fromkeys(slot for slot, _ in found)
        return [
            (slot, Unsettled(held.epoch, held.reports[:], held.noted[:], held.failed[:]))
            for slot, held in found
            if held.opened
        ]

    def settled(self, held: HeldSlot, news: Unsettled, revision: int) -> bool:
        """Drop news that is stored; revision 0: other things changed too.

        Return True if the stored records must be looked at again.
        """
        look = held.more and bool(news.noted or news.failed)
        look = look or any(report.result is not RunResult.STARTED for report in news.reports) or not revision
        if not look:
            _have_started(held, {report.id for report in news.reports})
            held.revision = revision
        _know_notes(held, news)
        del held.reports[: len(news.reports)], held.noted[: len(news.noted)], held.failed[: len(news.failed)]
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


def _know_notes(held: HeldSlot, news: Unsettled) -> None:
    """Change the known notes as the store does: a new run may get them before the next look."""
    if news.noted or news.failed:
        gone = {*news.noted, *(one.note for one in news.failed if one.dead)}
        counts = {one.note: one.delivery for one in news.failed}
        held.notes = tuple(
            replace(note, failed=max(note.failed, counts.get(note.id, 0))) for note in held.notes if note.id not in gone
        )


def _have_started(held: HeldSlot, ids: set[str]) -> None:
    """Change the known records as the store does when it is told of a start."""
    for job, record in held.wanted.items():
        if record.id in ids and record.state not in UNWANTED:
            held.wanted[job] = replace(record, state=JobState.RUNNING, fresh=False)
