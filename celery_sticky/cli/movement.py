"""The number of slots that a change moves, and the minimum that any plan could move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from celery_sticky.ownership.view import View

Owners = Sequence[str | None]


def moved(before: Owners, after: Owners) -> list[int]:
    """Return the slots whose owner differs between `before` and `after`."""
    return [slot for slot, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]


def fewest(before: Owners, weights: Mapping[str, int]) -> int:
    """Return the least number of slots that must change owner so that members share them by weight within one slot.

    A member must give away the slots above its share rounded up, and get the slots it lacks up to its share rounded
    down. Owners that are not members must give away all their slots.
    """
    total = sum(weights.values())
    if not total:
        return sum(owner is not None for owner in before)
    held, slots = Counter(before), len(before)
    comes = sum(max(0, slots * weight // total - held[name]) for name, weight in weights.items())
    leaves = sum(max(0, count - -(-slots * weights.get(name or "", 0) // total)) for name, count in held.items())
    return max(comes, leaves)


def weights_of(view: View) -> dict[str, int]:
    """Return the weights of the members that can be given slots."""
    return {member.name: member.weight for member in view.active}
