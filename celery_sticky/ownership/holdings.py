"""The state of each slot at this member: the transition table `SLOTS`, and the states by slot."""

from __future__ import annotations

from enum import StrEnum

from celery_sticky.ownership.events import CloseSlot, Effect, OpenSlot, StopJobs, StopSlot
from celery_sticky.ownership.view import View


class SlotState(StrEnum):
    """The state of a slot at this member."""

    CLOSED = "closed"
    OPENING = "opening"
    OPEN = "open"
    STOPPING = "stopping"
    """Its tasks are ending, and its jobs run on."""
    JOBS_LEFT = "jobs left"
    """Its tasks have ended, and its jobs run on."""
    STOPPING_JOBS = "stopping jobs"
    DRAINED = "drained"


class Wish(StrEnum):
    """The role of this member for a slot, by the view."""

    HOLD = "hold"
    """Owner and target."""
    GIVE = "give"
    """Owner, not target."""
    NONE = "none"
    """Not owner."""


class Do(StrEnum):
    """A request to courier or keeper that follows from a change of state."""

    OPEN = "open"
    STOP = "stop"
    STOP_JOBS = "stop jobs"
    CLOSE = "close"


_S, _W = SlotState, Wish
SLOTS: dict[tuple[SlotState, Wish], tuple[SlotState, Do | None]] = {
    (_S.CLOSED, _W.HOLD): (_S.OPENING, Do.OPEN),
    (_S.CLOSED, _W.GIVE): (_S.DRAINED, None),
    (_S.CLOSED, _W.NONE): (_S.CLOSED, None),
    (_S.OPENING, _W.HOLD): (_S.OPENING, None),
    (_S.OPENING, _W.GIVE): (_S.STOPPING, Do.STOP),
    (_S.OPENING, _W.NONE): (_S.CLOSED, Do.CLOSE),
    (_S.OPEN, _W.HOLD): (_S.OPEN, None),
    (_S.OPEN, _W.GIVE): (_S.STOPPING, Do.STOP),
    (_S.OPEN, _W.NONE): (_S.CLOSED, Do.CLOSE),
    # A stopped slot has forgotten its messages: even if the plan gives it back, it drains and is opened again.
    (_S.STOPPING, _W.HOLD): (_S.STOPPING, None),
    (_S.STOPPING, _W.GIVE): (_S.STOPPING, None),
    (_S.STOPPING, _W.NONE): (_S.CLOSED, Do.CLOSE),
    # Jobs stop last, and not at all if the plan has given the slot back meanwhile.
    (_S.JOBS_LEFT, _W.HOLD): (_S.OPENING, Do.OPEN),
    (_S.JOBS_LEFT, _W.GIVE): (_S.STOPPING_JOBS, Do.STOP_JOBS),
    (_S.JOBS_LEFT, _W.NONE): (_S.CLOSED, Do.CLOSE),
    (_S.STOPPING_JOBS, _W.HOLD): (_S.STOPPING_JOBS, None),
    (_S.STOPPING_JOBS, _W.GIVE): (_S.STOPPING_JOBS, None),
    (_S.STOPPING_JOBS, _W.NONE): (_S.CLOSED, Do.CLOSE),
    (_S.DRAINED, _W.HOLD): (_S.OPENING, Do.OPEN),
    (_S.DRAINED, _W.GIVE): (_S.DRAINED, None),
    (_S.DRAINED, _W.NONE): (_S.CLOSED, None),
}


class Holdings:
    """The states of one member's slots, and the epoch under which each was opened."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.states: dict[int, SlotState] = {}
        self._epochs: dict[int, int] = {}
        self._fences: dict[int, int] = {}
        self._drained: set[int] = set()
        self._told: set[int] = set()

    # -- from the view -------------------------------------------------------------------------

    def reconcile(self, view: View | None, incarnation: str, effects: list[Effect]) -> None:
        """Move every slot towards its role in the view; None: this member is not in it."""
        owned = view.owned_by(self._name) if view is not None else frozenset()
        for slot in sorted(owned | self.states.keys()):
            self._reconcile_slot(slot, view, incarnation, effects)

    def _reconcile_slot(self, slot: int, view: View | None, incarnation: str, effects: list[Effect]) -> None:
        wish = self._wish(slot, view)
        epoch = view.epoch[slot] if view is not None else 0
        state = self.states.get(slot, SlotState.CLOSED)
        live = state in (SlotState.OPENING, SlotState.OPEN)
        if live and wish is Wish.HOLD and self._epochs[slot] != epoch:
            state = SlotState.CLOSED  # the epoch was raised: open the slot again under it
        new, do = SLOTS[state, wish]
        self._put(slot, new)
        match do:
            case Do.OPEN:
                self._epochs[slot] = epoch
                self._told.discard(slot)
                effects.append(OpenSlot(slot, epoch, incarnation))
            case Do.STOP:
                effects.append(StopSlot(slot))
            case Do.STOP_JOBS:
                effects.append(StopJobs(slot))
            case Do.CLOSE:
                effects.append(CloseSlot(slot))

    def _wish(self, slot: int, view: View | None) -> Wish:
        if view is None or view.owner[slot] != self._name:
            return Wish.NONE
        return Wish.HOLD if view.target[slot] == self._name else Wish.GIVE

    # -- from courier and keeper ----------------------------------------------------------------------

    def opened(self, slot: int, epoch: int) -> None:
        """Note that the slot is open, if we still want it under this epoch."""
        if self.states.get(slot) is SlotState.OPENING and self._epochs.get(slot) == epoch:
            self._put(slot, SlotState.OPEN)

    def refused(self, slot: int, fence: int) -> bool:
        """Note the epoch at which the fence stands; False if the slot is no longer wanted here."""
        if self.states.get(slot) not in (SlotState.OPENING, SlotState.OPEN):
            return False
        self._fences[slot] = max(fence, self._fences.get(slot, 0))
        return True

    def tasks_drained(self, slot: int, view: View | None, incarnation: str, effects: list[Effect]) -> None:
        """Note that no task of a stopped slot is left here."""
        if self.states.get(slot) is SlotState.STOPPING:
            self._put(slot, SlotState.JOBS_LEFT)
            self._reconcile_slot(slot, view, incarnation, effects)

    def drained(self, slot: int, view: View | None, incarnation: str, effects: list[Effect]) -> None:
        """Note that nothing of a stopped slot is left here."""
        if self.states.get(slot) in (SlotState.STOPPING, SlotState.STOPPING_JOBS):
            self._put(slot, SlotState.DRAINED)
            self._reconcile_slot(slot, view, incarnation, effects)

    # -- changes for the view ------------------------------------------------------------------

    def outbid(self, view: View) -> dict[int, int]:
        """Return our slots whose fence is not below their epoch: slot -> fence."""
        return {s: fence for s, fence in self._fences.items() if view.owner[s] == self._name and view.epoch[s] <= fence}

    def given(self, view: View) -> frozenset[int]:
        """Return the drained slots that this view assigns to another member."""
        name = self._name
        return frozenset(s for s in self._drained if view.owner[s] == name and view.target[s] != name)

    def tell(self, slots: frozenset[int]) -> frozenset[int]:
        """Return which of these lost slots the application has not heard of yet, and note that it now has."""
        untold = slots - self._told
        self._told |= untold
        return untold

    def _put(self, slot: int, state: SlotState) -> None:
        if state is SlotState.DRAINED:
            self._drained.add(slot)
        else:
            self._drained.discard(slot)
        if state is SlotState.CLOSED:
            for kept in (self.states, self._epochs, self._fences):
                kept.pop(slot, None)
            self._told.discard(slot)
        else:
            self.states[slot] = state
