"""How many slots a change moves, and how few any plan could move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from celery_sticky.ownership.view import View

Owners = Sequence[str | None]


def moved(before: Owners, after: Owners) -> list[int]:
    """Return the slots that have another owner after than before."""
    return [slot for slot, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]


def fewest(before: Owners, weights: Mapping[str, int]) -> int:
    """Return the least number of slots that must change owner, so that members share them by weight within one slot.

    What a member has above its share rounded up must leave it, all that others have too; what it has below its share
    rounded down must come to it.
    """
    total = sum(weights.values())
    if not total:
        return sum(owner is not None for owner in before)
    held, slots = Counter(before), len(before)
    comes = sum(max(0, slots * weight // total - held[name]) for name, weight in weights.items())
    leaves = sum(max(0, count - -(-slots * weights.get(name or "", 0) // total)) for name, count in held.items())
    return max(comes, leaves)


def weights_of(view: View) -> dict[str, int]:
    """Return the weights of the members that may be given slots."""
    return {member.name: member.weight for member in view.active}
