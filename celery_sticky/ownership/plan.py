"""The target of each slot: balanced by weight to within one slot, with the fewest changes of target.

`_quotas` first decides how many slots each member should have. Slots whose target is none of these members, or has too
many, are loose; exactly as many as necessary change target. The order of preference: back to the live owner (nothing
has moved yet), then home, then slots that are moving anyway, then slots that are away from home.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from celery_sticky.ownership.view import View


def plan(view: View) -> tuple[str | None, ...]:
    """Return the target of each slot; all None if no active member takes slots."""
    quotas = _quotas(view)
    if not quotas:
        return (None,) * view.slots
    draft = _Draft(view.target, quotas)
    draft.send(draft.loose, view.owner)
    moving, settled = _by_movement(view, quotas, draft.loose)
    draft.send(moving, view.home)
    draft.shed(moving)
    draft.send(settled, view.home)
    draft.shed(slot for slot in settled if view.home[slot] != view.target[slot])
    draft.shed(settled)
    draft.fill()
    return tuple(draft.target)


def _quotas(view: View) -> dict[str, int]:
    """Return how many slots each active member should have: its exact share, rounded down or up.

    Rounding up favours members that hold more than the lower number, because each of them is one slot that need not
    move; then those with more homes than that, so that a returning fleet gets back the shares it had.
    """
    weights = {member.name: member.weight for member in view.active}
    total = sum(weights.values())
    if not total:
        return {}
    quotas = {name: view.slots * weight // total for name, weight in weights.items()}
    remainders = {name: view.slots * weight % total for name, weight in weights.items()}
    held, homes = Counter(view.target), Counter(view.home)

    def precedence(name: str) -> tuple[bool, bool, int, str]:
        low = quotas[name]
        return held[name] <= low, homes[name] <= low, -remainders[name], name

    spare = view.slots - sum(quotas.values())
    for name in sorted((name for name in quotas if remainders[name]), key=precedence)[:spare]:
        quotas[name] += 1
    return quotas


def _by_movement(view: View, quotas: Mapping[str, int], slots: Iterable[int]) -> tuple[list[int], list[int]]:
    """Divide slots into moving ones (in handover, or without a target that can hold them) and settled ones."""
    moving: list[int] = []
    settled: list[int] = []
    for slot in slots:
        target = view.target[slot]
        (settled if target == view.owner[slot] and target in quotas else moving).append(slot)
    return moving, settled


class _Draft:
    """A draft of the targets. A member never takes more than it has room for, nor gives up more than its surplus."""

    def __init__(self, target: Sequence[str | None], quotas: Mapping[str, int]) -> None:
        held = Counter(target)
        self.target = list(target)
        self.room: dict[str | None, int] = {name: quota - held[name] for name, quota in quotas.items()}
        """Slots that a member still lacks; below zero: its surplus."""
        self.loose = [slot for slot in range(len(target)) if self._is_loose(slot)]

    def _is_loose(self, slot: int) -> bool:
        return self.room.get(self.target[slot], -1) < 0

    def _take_away(self, slot: int) -> None:
        name = self.target[slot]
        if name in self.room:
            self.room[name] += 1
        self.target[slot] = None

    def send(self, slots: Iterable[int], wish: Sequence[str | None]) -> None:
        """Give loose slots to the members in `wish`, as far as these have room."""
        for slot in slots:
            name = wish[slot]
            if self.room.get(name, 0) > 0 and self._is_loose(slot):
                self._take_away(slot)
                self.target[slot] = name
                self.room[name] -= 1

    def shed(self, slots: Iterable[int]) -> None:
        """Take loose slots from members with a surplus."""
        for slot in slots:
            if self._is_loose(slot):
                self._take_away(slot)

    def fill(self) -> None:
        """Give slots without a target to the members with room, in their order."""
        takers = (name for name, room in self.room.items() for _ in range(room))
        for slot in self.loose:
            if self.target[slot] not in self.room:
                self.target[slot] = next(takers)
