"""Reports the changes of owners of a worker's slots: from whom they come, where they go, and who was evicted.

A slot opens some time after the document has assigned it, so its former owner is remembered from then on. Slots open
one by one, and are reported together. Nothing is remembered or computed for a report that nobody wants.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from celery_sticky.instrumentation.facts import EvictedHere, SlotsGained, SlotsLost, SlotsTakenOver, WorkerEvicted
from celery_sticky.instrumentation.registry import Instruments
from celery_sticky.ownership.events import Evicted, WasEvicted
from celery_sticky.ownership.view import View

LONGEST = 3.0
"""Seconds after which a batch of opened slots is reported although others are still opening."""


class OwnerChanges:
    """The reports of one member."""

    def __init__(self, instruments: Instruments, worker: str, keyspace: str) -> None:
        self._instruments, self._worker, self._keyspace = instruments, worker, keyspace
        self._former: dict[int, tuple[str, bool]] = {}
        """Slot that is not open yet → its former owner, and whether that was declared dead."""
        self._opened: dict[tuple[str, bool], set[int]] = {}
        """Former owner, and whether it was declared dead → its slots that are open but not reported yet."""
        self._since = 0.0
        """When the first of them opened."""

    def adopted(self, old: View | None, new: View, dead: Collection[str]) -> None:
        """Remember the former owners of the slots that a new view assigns to this worker."""
        if not self._instruments.wants(SlotsGained, SlotsTakenOver):
            return
        me = self._worker
        mine = new.owned_by(me)
        self._former = {slot: former for slot, former in self._former.items() if slot in mine}
        if old is None or old.generation != new.generation:
            return
        for slot in mine:
            owner = old.owner[slot]
            if owner is not None and (owner != me or me in dead):
                self._former[slot] = owner, owner in dead

    def gained(self, slots: Iterable[int], now: float) -> None:
        """Note that these slots are open."""
        if not self._instruments.wants(SlotsGained, SlotsTakenOver):
            return
        self._since = self._since if self._opened else now
        for slot in slots:
            self._opened.setdefault(self._former.pop(slot, ("", False)), set()).add(slot)

    def tell_gains(self, now: float, *, opening: Callable[[], bool]) -> None:
        """Report the slots that have opened, when the last one has, or after `LONGEST` seconds."""
        if self._opened and (now >= self._since + LONGEST or not opening()):
            self._tell_gains()

    def _tell_gains(self) -> None:
        opened, self._opened = sorted(self._opened.items()), {}
        for (owner, dead), slots in opened:
            if dead:
                self._instruments.tell(SlotsTakenOver(self._worker, self._keyspace, owner, frozenset(slots)))
        if given := {owner: frozenset(slots) for (owner, dead), slots in opened if not dead}:
            self._instruments.tell(SlotsGained(self._worker, self._keyspace, given))

    def lost(self, slots: frozenset[int], view: View | None, *, given: bool) -> None:
        """Report that these slots are lost; their next owners are in the view if it is new enough."""
        if self._opened:
            self._tell_gains()
        if not self._instruments.wants(SlotsLost):
            return
        owners: dict[str, set[int]] = {}
        for slot in slots:
            owner = (view.target if given else view.owner)[slot] if view is not None else None
            owners.setdefault("" if owner in (None, self._worker) else str(owner), set()).add(slot)
        next_owners = {owner: frozenset(taken) for owner, taken in sorted(owners.items())}
        self._instruments.tell(SlotsLost(self._worker, self._keyspace, slots, next_owners, given))

    def evicted(self, effect: Evicted) -> None:
        """Report that this worker has evicted another one."""
        if self._instruments.wants(WorkerEvicted):
            fact = WorkerEvicted(self._worker, self._keyspace, effect.name, effect.silence, effect.slots)
            self._instruments.tell(fact)

    def was_evicted(self, effect: WasEvicted, slots: int) -> None:
        """Report that this worker was evicted while it had this many slots open."""
        if self._instruments.wants(EvictedHere):
            fact = EvictedHere(self._worker, self._keyspace, effect.incarnation, effect.silence, slots)
            self._instruments.tell(fact)
