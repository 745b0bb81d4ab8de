"""What a worker thinks of a placed key before it has asked the directory: where its messages and jobs go. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from celery_sticky.delivery.key_claims import Question
from celery_sticky.errors import AssignmentFailed, NotPinned, NoWorker, StickyError
from celery_sticky.keys import Slot, slot_for, worker_queue
from celery_sticky.keyspace import Keyspace, Worker, placement_of
from celery_sticky.ownership.view import View
from celery_sticky.stores.placement import Version


class Duty(Enum):
    """What a worker has to do with the jobs of a key."""

    NONE = "none"
    RUN = "run"
    TEND = "tend"
    """They can run nowhere now. The owner of the key's slot lets go of those that are to stop; the others wait."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a key belongs."""

    slot: Slot | None = None
    refusal: StickyError | None = None
    """Why it belongs nowhere: nobody has pinned it, or the function has failed."""

    @property
    def failed(self) -> bool:
        """Whether it is the function."""
        return isinstance(self.refusal, AssignmentFailed)

    @property
    def nobody(self) -> bool:
        """Whether there is no worker it could belong to."""
        return self.slot is None and self.refusal is None


@dataclass(frozen=True, slots=True)
class Scene:
    """What is known of a keyspace at one version of its document, by one of its workers."""

    keyspace: Keyspace
    slots: int
    view: View
    workers: Sequence[Worker]
    worker: str
    """The name of the worker that thinks."""

    @property
    def version(self) -> Version:
        """That of the document."""
        return self.view.version, self.view.generation

    def seen(self, pin: str) -> str:
        """Return what tells whether two workers have concluded from the same, of a key with this pin."""
        return f"{self.view.generation} {self.view.version} {pin}"

    def placement(self, key: str, pin: str) -> Placement:
        """Return where a key belongs; `pin`: the incarnation that has pinned it, empty: nobody."""
        try:
            return Placement(placement_of(self.keyspace, key, self.slots, self.view, self.workers, pin or None))
        except NoWorker:
            return Placement()
        except (NotPinned, AssignmentFailed) as error:
            return Placement(refusal=error)

    def duty(self, key: str, placement: Placement) -> Duty:
        """Return what this worker has to do with the jobs of a key that belongs there."""
        if placement.refusal is not None:
            return Duty.TEND if self._owns(slot_for(key, self.slots)) else Duty.NONE
        here = placement.slot == worker_queue(self.worker) or (
            isinstance(placement.slot, int) and self._owns(placement.slot)
        )
        return Duty.RUN if here else Duty.NONE

    def _owns(self, slot: int) -> bool:
        # Until the slot has moved: a job need not stand still because some task of its slot takes long to end.
        return self.view.owner[slot] == self.worker


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """What is thought of a key that is asked of."""

    question: Question
    placement: Placement
    duty: Duty
    """`NONE` also where no job waits for the claim."""

    @classmethod
    def make(cls, question: Question, scene: Scene) -> KeyPlan:
        """Think about a key."""
        placement = scene.placement(question.key, question.pin)
        return cls(question, placement, scene.duty(question.key, placement) if question.job else Duty.NONE)

    def runs(self, mine: Slot) -> bool:
        """Whether anything of the key is to run here: any of its messages, or its jobs."""
        return self.duty is not Duty.NONE or any(self.here(slot, mine) for slot in self.question.slots)

    def here(self, slot: Slot, mine: Slot) -> bool:
        """Whether a message from this queue is to run here."""
        foreign = isinstance(slot, str) and slot != mine
        return self.placement.slot is not None and not foreign and self.placement.slot in (slot, mine)

    def onward(self, slot: Slot, mine: Slot) -> Slot | None:
        """Return where a message from this queue is to be passed on to; None: it stays."""
        # In the queue of a worker that is back it must not go behind what stands there: its reader takes it anew.
        stays = self.here(slot, mine) or self.placement.slot == slot
        return None if stays else self.placement.slot
