"""Figures from a history, the observed views and the log of slots."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from celery_sticky.ownership.view import View
from celery_sticky.testing.history import Event, Kind
from celery_sticky.testing.slot_log import SlotEvent

SECOND = 1_000_000_000


def quantile(values: Iterable[float], q: float) -> float:
    """Return the value that a share `q` of the values does not exceed."""
    ordered = sorted(values)
    assert ordered, "nothing was measured"
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def figures(values: Iterable[float]) -> str:
    """Return median, p99 and maximum in milliseconds, and the number of values."""
    ordered = list(values)
    p50, p99 = quantile(ordered, 0.5), quantile(ordered, 0.99)
    return f"p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms, max {max(ordered) * 1000:.0f} ms, N = {len(ordered)}"


def opened_after(events: Iterable[SlotEvent], since: int, slots: Collection[int]) -> dict[int, float]:
    """Return the seconds from `since` until each of the slots was first opened by some worker."""
    opened: dict[int, float] = {}
    for event in sorted(events, key=lambda e: e.at):
        if event.what == "gained" and event.at >= since and event.slot in slots:
            opened.setdefault(event.slot, (event.at - since) / SECOND)
    return opened


def handovers(events: Iterable[SlotEvent]) -> list[float]:
    """Return the seconds that each slot that changed hands was with nobody: from lost here to gained there."""
    lost: dict[int, SlotEvent] = {}
    gaps = []
    for event in sorted(events, key=lambda e: e.at):
        if event.what == "lost":
            lost[event.slot] = event
        elif (before := lost.pop(event.slot, None)) is not None and before.worker != event.worker:
            gaps.append((event.at - before.at) / SECOND)
    return gaps


def changed_owner(views: Sequence[View]) -> set[int]:
    """Return the slots whose owner in some later view differs from the first view."""
    first = views[0]
    return {slot for view in views[1:] for slot in range(view.slots) if view.owner[slot] != first.owner[slot]}


def longest_pause(events: Iterable[Event], slots: Collection[int], since: int, until: int) -> float:
    """Return the longest time in seconds in which no task of all these slots was running."""
    moments = [
        (e.at, 1 if e.kind is Kind.START else -1) for e in events if e.slot in slots and e.kind is not Kind.PUBLISHED
    ]
    running, idle_since, longest = 0, since, 0
    for at, change in sorted(moments):
        if running == 0 and change == 1 and at > since:
            longest = max(longest, min(at, until) - max(idle_since, since))
        running += change
        if running == 0:
            idle_since = at
        if at >= until:
            break
    return max(longest, 0) / SECOND


def steps_back(events: Iterable[Event]) -> list[Event]:
    """Return the starts of tasks after a later task of the same key had started: `m1 m2 m1`."""
    newest: dict[str, int] = {}
    back = []
    for event in sorted((e for e in events if e.kind is Kind.START), key=lambda e: e.at):
        if event.n < newest.get(event.key, 0):
            back.append(event)
        newest[event.key] = max(event.n, newest.get(event.key, 0))
    return back
