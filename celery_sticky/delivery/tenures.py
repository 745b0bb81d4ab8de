"""The tenures of a worker: the slots that it should open at the broker, has open, or is giving away.

Each opening has a tenure of its own, with the next open count. So the broker refuses a late request of an earlier one.
"""

from __future__ import annotations

from celery_sticky.keys import SlotId
from celery_sticky.queues.base import Tenure


class Tenures:
    """Guarded by the courier's lock. `now` is in seconds since the epoch."""

    def __init__(self) -> None:
        self.to_open: dict[SlotId, Tenure] = {}
        """The slots to open now, and the tenure under which to open each."""
        self.held: dict[SlotId, Tenure] = {}
        """The slots that are open here, also while they are given away."""
        self.fences: dict[SlotId, Tenure] = {}
        """The last opening of each slot, also of those that are no longer ours: the fence, until the next owner's."""
        self.stopping: set[SlotId] = set()
        """The slots that are being given away: nothing more of them starts."""
        self.to_release: dict[SlotId, tuple[Tenure, bool]] = {}
        """The slots to give back at the broker: the tenure of each, and whether it is `Drained` then."""
        self._postponed: dict[SlotId, tuple[float, Tenure]] = {}
        self._counts: dict[SlotId, int] = {}

    def want(self, slot: SlotId, epoch: int, incarnation: str) -> None:
        """Request that a slot be opened."""
        self.stopping.discard(slot)
        self._postponed.pop(slot, None)
        self.to_open[slot] = self._next(slot, epoch, incarnation)

    def reopen(self, slot: SlotId) -> None:
        """Request that a slot be opened again, if it is held; one that was postponed waits for its time."""
        if slot not in self._postponed and (tenure := self.held.get(slot)):
            self._want_again(slot, tenure)

    def reopen_all(self) -> None:
        """Request that every slot be opened again that is held, wanted or postponed."""
        postponed = {slot: tenure for slot, (_, tenure) in self._postponed.items()}
        self._postponed.clear()
        for slot, tenure in (self.held | postponed | self.to_open).items():
            self._want_again(slot, tenure)

    def opened(self, slot: SlotId, tenure: Tenure) -> bool:
        """Note an opening; return whether messages of the slot may start. If it is stopping, they are only settled."""
        self.fences[slot] = tenure
        wanted = self._no_longer_wanted(slot, tenure)  # False if it was stopped, closed or reopened meanwhile
        if wanted or slot in self.stopping:
            self.held[slot] = tenure
        return wanted and slot not in self.stopping

    def refused(self, slot: SlotId, tenure: Tenure) -> None:
        """Note that the broker refused an opening: the slot has another owner."""
        self._no_longer_wanted(slot, tenure)
        self.held.pop(slot, None)

    def postpone(self, slot: SlotId, tenure: Tenure, until: float) -> bool:
        """Request a slot again that could not be opened, but later; False if it is no longer wanted like this."""
        if not self._no_longer_wanted(slot, tenure):
            return False
        self._postponed[slot] = (until, tenure)
        return True

    def open_again(self, now: float) -> None:
        """Request the slots again whose retry time has come."""
        for slot, (at, tenure) in list(self._postponed.items()):
            if at <= now:
                del self._postponed[slot]
                self._want_again(slot, tenure)

    @property
    def opens_at(self) -> float | None:
        """The time of the next attempt to open a slot that could not be opened, or None."""
        return min(at for at, _ in self._postponed.values()) if self._postponed else None

    def waits(self, slot: SlotId) -> bool:
        """Return whether the slot is to be opened, now or later."""
        return slot in self.to_open or slot in self._postponed

    def stop(self, slot: SlotId) -> None:
        """Note that a slot is being given away."""
        self._forget_opening(slot)
        self.stopping.add(slot)

    def close(self, slot: SlotId) -> None:
        """Forget a slot that another worker owns already."""
        self._forget_opening(slot)
        self.stopping.discard(slot)
        self.held.pop(slot, None)

    def drained(self, slot: SlotId) -> bool:
        """Let a slot go, if it is being given away; return whether it is."""
        if slot not in self.stopping:
            return False
        self.stopping.discard(slot)
        self.held.pop(slot, None)
        self.to_open.pop(slot, None)  # requested by a new connection, to settle the messages that are now done
        return True

    def _no_longer_wanted(self, slot: SlotId, tenure: Tenure) -> bool:
        """Take back the request to open a slot under this tenure; False if there is none."""
        if self.to_open.get(slot) is not tenure:
            return False
        del self.to_open[slot]
        return True

    def _forget_opening(self, slot: SlotId) -> None:
        self.to_open.pop(slot, None)
        self._postponed.pop(slot, None)

    def _want_again(self, slot: SlotId, tenure: Tenure) -> None:
        self.to_open[slot] = self._next(slot, tenure.epoch, tenure.incarnation)

    def _next(self, slot: SlotId, epoch: int, incarnation: str) -> Tenure:
        count = self._counts[slot] = self._counts.get(slot, 0) + 1
        return Tenure(slot[0], slot[1], epoch, incarnation, count)
