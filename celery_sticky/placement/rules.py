"""Where a worker expects the messages and jobs of a key to go, before it asks the placement store. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from celery_sticky.delivery.key_claims import Question
from celery_sticky.errors import AssignmentFailed, NotPinned, NoWorker, StickyError
from celery_sticky.keys import slot_for
from celery_sticky.keyspace import Keyspace, Worker, placement_of
from celery_sticky.ownership.view import View
from celery_sticky.slots import Slot, WorkerQueue
from celery_sticky.stores.placement import Version


class Duty(Enum):
    """A worker's duty for the jobs of a key."""

    NONE = "none"
    RUN = "run"
    TEND = "tend"
    """No worker can run them now. The owner of the key's slot removes those that are to stop; the others wait."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The placement of a key."""

    slot: int | WorkerQueue | None = None
    refusal: StickyError | None = None
    """Why the key has no place: nobody pinned it, or the function failed."""

    @property
    def failed(self) -> bool:
        """True if the function failed."""
        return isinstance(self.refusal, AssignmentFailed)

    @property
    def nobody(self) -> bool:
        """True if no worker is available for the key."""
        return self.slot is None and self.refusal is None


@dataclass(frozen=True, slots=True)
class Scene:
    """What one worker knows of a keyspace at one version of its document."""

    keyspace: Keyspace
    slots: int
    view: View
    workers: Sequence[Worker]
    worker: str
    """The name of the worker that decides."""

    @property
    def version(self) -> Version:
        """The document's version and generation."""
        return self.view.version, self.view.generation

    def seen(self, pin: str) -> str:
        """Return an identifier of the facts a decision on a key with this pin is based on, for comparing workers."""
        return f"{self.view.generation} {self.view.version} {pin}"

    def placement(self, key: str, pin: str) -> Placement:
        """Return the placement of a key; `pin`: the incarnation that pinned it, empty: none.

        By a fresh document nobody may run it: members that have not seen it when it is lost count on that.
        """
        if self.view.fresh:
            return Placement()
        try:
            return Placement(placement_of(self.keyspace, key, self.slots, self.view, self.workers, pin or None))
        except NoWorker:
            return Placement()
        except (NotPinned, AssignmentFailed) as error:
            return Placement(refusal=error)

    def duty(self, key: str, placement: Placement) -> Duty:
        """Return this worker's duty for the jobs of a key with this placement."""
        if placement.refusal is not None:
            return Duty.TEND if self._owns(slot_for(key, self.slots)) else Duty.NONE
        match placement.slot:
            case int(slot):
                here = self._owns(slot)
            case WorkerQueue(worker):
                here = worker == self.worker
            case _:
                here = False
        return Duty.RUN if here else Duty.NONE

    def _owns(self, slot: int) -> bool:
        # Until the slot has moved: a job need not wait because some task of its slot takes long.
        return self.view.owner[slot] == self.worker


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """The expected placement of a key that needs a claim."""

    question: Question
    placement: Placement
    duty: Duty
    """`NONE` also if no job waits for the claim."""

    @classmethod
    def make(cls, question: Question, scene: Scene) -> KeyPlan:
        """Plan for one key."""
        placement = scene.placement(question.key, question.pin)
        return cls(question, placement, scene.duty(question.key, placement) if question.job else Duty.NONE)

    def runs(self, mine: Slot) -> bool:
        """True if any message of the key, or its jobs, should run here."""
        return self.duty is not Duty.NONE or any(self.here(slot, mine) for slot in self.question.slots)

    def here(self, slot: Slot, mine: Slot) -> bool:
        """True if a message from this queue should run here."""
        foreign = isinstance(slot, WorkerQueue) and slot != mine
        return self.placement.slot is not None and not foreign and self.placement.slot in (slot, mine)

    def onward(self, slot: Slot, mine: Slot) -> Slot | None:
        """Return the queue to pass a message from this queue on to; None: it stays."""
        # A message in the queue of a worker that is back stays there, to keep its place: that worker fetches it again.
        stays = self.here(slot, mine) or self.placement.slot == slot
        return None if stays else self.placement.slot
