"""Figures of a run: durations of takeovers and handovers, pauses, and the share of slots that moved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from celery_sticky.cli.movement import fewest, moved, weights_of
from celery_sticky.cli.verify.faults.deaths import Cascade, Kill
from celery_sticky.cli.verify.faults.deployments import Join, Leave, Rolling, Surge, Term
from celery_sticky.cli.verify.load import apart
from celery_sticky.cli.verify.moves import Moves
from celery_sticky.cli.verify.outcome import VerifyRun
from celery_sticky.cli.verify.site import node
from celery_sticky.cli.verify.timeline import Done
from celery_sticky.ownership.view import View
from celery_sticky.testing.history import Event, Kind
from celery_sticky.testing.measure import SECOND, handovers, longest_pause, opened_after, quantile

ORDERLY = (Term, Join, Leave, Rolling, Surge)
CHANGES = (Kill, Cascade, Join, Leave)
"""Faults that change the members exactly once, so that the moved slots can be compared with the minimum."""


def measure(outcome: VerifyRun) -> dict[str, Any]:
    """Return the figures as they appear in the JSON. A figure without measurements is None."""
    throughput = _throughput(outcome.events)
    return {**_moving(outcome), "throughput": throughput, "latency_seconds": spread(_latencies(outcome.events))}


def _moving(outcome: VerifyRun) -> dict[str, Any]:
    """Return the figures about moving slots, or in a placed keyspace about moving keys."""
    if outcome.moves is not None:
        return {
            "takeover_seconds": spread(_takeovers_of_keys(outcome, outcome.moves), "max"),
            "handover_seconds": spread([]),
            "unmoved_pause_seconds": spread([], "max"),
            "moved_share": None,
            "moved_minimum": None,
        }
    done = outcome.timeline.done
    changes = [(one.before, one.after) for one in done if isinstance(one.fault, CHANGES)]
    pairs = [(before, after) for before, after in changes if before is not None and after is not None]
    slots = sum(before.slots for before, _ in pairs)
    return {
        "takeover_seconds": spread(_takeovers(outcome), "max"),
        "handover_seconds": spread(_handovers(outcome)),
        "unmoved_pause_seconds": spread(_pauses(outcome), "max"),
        "moved_share": _share(sum(_moved(before, after) for before, after in pairs), slots),
        "moved_minimum": _share(sum(fewest(before.owner, weights_of(after)) for before, after in pairs), slots),
    }


def _moved(before: View, after: View) -> int:
    return len(moved(before.owner, after.owner))


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def spread(values: Sequence[float], *more: str) -> dict[str, float | None]:
    """Return p50 and p99 of the values, and `max` if requested. All are None if there are no values."""
    names = ("p50", "p99", *more)
    if not values:
        return dict.fromkeys(names)
    found = {"p50": quantile(values, 0.5), "p99": quantile(values, 0.99), "max": max(values)}
    return {name: round(found[name], 3) for name in names}


def _takeovers(outcome: VerifyRun) -> list[float]:
    """Return, for each slot of a killed worker, the seconds from the death until the slot was open elsewhere."""
    waits: list[float] = []
    for one in outcome.timeline.done:
        if isinstance(one.fault, Kill) and one.before is not None:
            slots = one.before.owned_by(node(one.fault.workers[0]))
            events = [event for event in outcome.slot_events if event.at <= one.until]
            waits += opened_after(events, one.since, slots).values()
    return waits


def _takeovers_of_keys(outcome: VerifyRun, moves: Moves) -> list[float]:
    """Return, for each key of a killed worker with a waiting task, the seconds from the death to the next start."""
    accepted = [event for event in outcome.events if event.kind is Kind.PUBLISHED and event.key not in apart()]
    starts = sorted((event for event in outcome.events if event.kind is Kind.START), key=lambda event: event.at)
    waits: dict[tuple[int, str], float] = {}
    for one in outcome.timeline.done:
        if isinstance(one.fault, Kill):
            done = {event.task for event in starts if event.at < one.since}
            left = {event.key for event in accepted if event.at < one.since and event.task not in done}
            mine = {key for key in left if moves.workers(key, one.since, one.since) == {node(one.fault.workers[0])}}
            for start in starts:
                if start.at > one.since and start.key in mine:
                    waits.setdefault((one.since, start.key), (start.at - one.since) / SECOND)
    return list(waits.values())


def _handovers(outcome: VerifyRun) -> list[float]:
    """Return, for each graceful handover of a slot, the seconds in which no worker had it."""
    gaps: list[float] = []
    for one in outcome.timeline.done:
        if isinstance(one.fault, ORDERLY):
            gaps += handovers(event for event in outcome.slot_events if one.since <= event.at <= one.until)
    return gaps


def _pauses(outcome: VerifyRun) -> list[float]:
    """Return, for each change of members, the longest time in which no unmoved slot ran a task."""
    found = []
    for one in outcome.timeline.done:
        if isinstance(one.fault, (*CHANGES, Term)) and (stayed := _stayed(one)):
            found.append(longest_pause(outcome.events, stayed, one.since, one.until))
    return found


def _stayed(one: Done) -> set[int]:
    if one.before is None or one.after is None:
        return set()
    return set(range(one.before.slots)) - set(moved(one.before.owner, one.after.owner))


def _throughput(events: Iterable[Event]) -> float | None:
    ends = [event.at for event in events if event.kind is Kind.END and event.finished]
    spell = (max(ends) - min(ends)) / SECOND if ends else 0.0
    return round(len(ends) / spell, 1) if spell else None


def _latencies(events: Iterable[Event]) -> list[float]:
    """Return the seconds from acceptance by the broker to the first start, for each ordinary task."""
    late = apart()
    starts: dict[tuple[str, str, int], int] = {}
    accepted: dict[tuple[str, str, int], int] = {}
    for event in events:
        if event.key not in late and event.kind in (Kind.START, Kind.PUBLISHED):
            first = starts if event.kind is Kind.START else accepted
            first[event.task] = min(event.at, first.get(event.task, event.at))
    return [max(0, starts[task] - at) / SECOND for task, at in accepted.items() if task in starts]
