"""Who should own what: balance by weight within one slot, reached with the fewest changes of target.

How many slots a member should have is settled first (`_quotas`); the slots nobody of these holds, and those a member
holds too many of, are then loose and change target, exactly as many as must. Which ones is a matter of courtesy:
back to the live owner (nothing has moved yet), then home, then what is on the move anyway, then what was borrowed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from celery_sticky.ownership.view import View


def plan(view: View) -> tuple[str | None, ...]:
    """Return the target of each slot; all None where no active member takes any."""
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

    Rounding up goes first to members that hold more than the lower number, for each of them is one slot that need not
    move; then to those that have more homes than that, so that a fleet that comes back finds the shares it had.
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
    """Part slots into those on the move (in handover, or without a target that can hold them) and settled ones."""
    moving: list[int] = []
    settled: list[int] = []
    for slot in slots:
        target = view.target[slot]
        (settled if target == view.owner[slot] and target in quotas else moving).append(slot)
    return moving, settled


class _Draft:
    """Targets under work. A member never takes more than it has room for, nor sheds more than it has too many."""

    def __init__(self, target: Sequence[str | None], quotas: Mapping[str, int]) -> None:
        held = Counter(target)
        self.target = list(target)
        self.room: dict[str | None, int] = {name: quota - held[name] for name, quota in quotas.items()}
        """Slots a member still lacks; below zero: has too many."""
        self.loose = [slot for slot in range(len(target)) if self._is_loose(slot)]

    def _is_loose(self, slot: int) -> bool:
        return self.room.get(self.target[slot], -1) < 0

    def _take_away(self, slot: int) -> None:
        name = self.target[slot]
        if name in self.room:
            self.room[name] += 1
        self.target[slot] = None

    def send(self, slots: Iterable[int], wish: Sequence[str | None]) -> None:
        """Give loose slots to the members wished for, as far as these have room."""
        for slot in slots:
            name = wish[slot]
            if self.room.get(name, 0) > 0 and self._is_loose(slot):
                self._take_away(slot)
                self.target[slot] = name
                self.room[name] -= 1

    def shed(self, slots: Iterable[int]) -> None:
        """Take loose slots from members that have too many."""
        for slot in slots:
            if self._is_loose(slot):
                self._take_away(slot)

    def fill(self) -> None:
        """Give the slots nobody has to the members that lack some, in their order."""
        takers = (name for name, room in self.room.items() for _ in range(room))
        for slot in self.loose:
            if self.target[slot] not in self.room:
                self.target[slot] = next(takers)
