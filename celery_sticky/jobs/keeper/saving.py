"""Checkpoints of a job reconciler: those to store, and the answers to the runs that sent them. Pure.

A checkpoint stays with its slot until the store has it. `held` contains both. One that cannot be stored any more is
refused: its slot has another epoch, or is given away and no longer fenced for this worker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from celery_sticky.jobs.keeper.held import HeldSlot, JobRun, PendingSave, job_key
from celery_sticky.jobs.wire import Message, Save, Saved, SaveRefused
from celery_sticky.slots import Slot
from celery_sticky.stores.jobs import Checkpoint


class Saving:
    """Checkpoints of runs in the slots that are held here."""

    def __init__(self, held: Mapping[Slot, HeldSlot]) -> None:
        self._held = held
        self._unsaved: dict[Slot, None] = {}
        """Slots with checkpoints."""
        self._answers: list[tuple[int, Message]] = []

    def add(self, run: JobRun, message: Save) -> None:
        """Queue a checkpoint for storing."""
        self._held[run.slot].saves.append(PendingSave(run, message.number, message.saved.encode()))
        self._unsaved[run.slot] = None

    def to_save(self) -> list[tuple[Slot, int, int]]:
        """Return slot, epoch and number of checkpoints of the slots that have any; refuse those that come too late."""
        found = []
        for slot in list(self._unsaved):
            held = self._held.get(slot)
            if held is not None:
                self._refuse_late(held)
            if held is None or not held.saves:
                del self._unsaved[slot]
            elif held.opened:
                found.append((slot, held.epoch, len(held.saves)))
        return found

    def checkpoints(self, slot: Slot, count: int) -> Sequence[Checkpoint]:
        """Return the last checkpoint of each run among the first `count` ones of a slot."""
        last = {save.run.ref: save for save in self._held[slot].saves[:count]}
        return [Checkpoint(s.run.record.id, s.run.record.attempt, s.number, s.saved) for s in last.values()]

    def saved(self, slot: Slot, count: int, ids: Collection[str]) -> None:
        """Note that the first `count` checkpoints of a slot are stored, or that their jobs have no record any more."""
        held = self._held[slot]
        for save in held.saves[:count]:
            job, record = job_key(save.run.record), save.run.record
            self._answer(save, stored=record.id in ids)
            wanted = held.wanted.get(job)
            if wanted is not None and wanted.id == record.id and record.id in ids:
                held.wanted[job] = replace(wanted, saved=save.saved)  # as a look would find it
        del held.saves[:count]

    def take_answers(self) -> list[tuple[int, Message]]:
        """Return, once, the answers to send, each with the number of the process it is for."""
        answers, self._answers = self._answers, []
        return answers

    def _refuse_late(self, held: HeldSlot) -> None:
        lost = held.stopping and not held.opened
        for save in [save for save in held.saves if lost or save.run.epoch != held.epoch]:
            held.saves.remove(save)
            self._answer(save, stored=False)

    def _answer(self, save: PendingSave, *, stored: bool) -> None:
        self._answers.append((save.run.host, (Saved if stored else SaveRefused)(save.run.ref, save.number)))
