"""Checker for jobs: those that ran twice at a time, did not run for too long, or were started without need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from celery_sticky.cli.verify.figures import spread
from celery_sticky.cli.verify.moves import Moves
from celery_sticky.cli.verify.outcome import VerifyRun
from celery_sticky.cli.verify.site import short
from celery_sticky.cli.verify.timeline import EVERYBODY, Done, Frozen, Timeline
from celery_sticky.testing.history import Event, Execution, Kind, pair
from celery_sticky.testing.judge import Overlap, SharedEpoch, StaleStart, judge
from celery_sticky.testing.measure import SECOND
from celery_sticky.testing.slot_log import SlotEvent

SLACK = SECOND // 2
"""Nanoseconds by which a run's last sign of life may precede the fault that ended it."""
DISPATCH, PIN, UNEXPLAINED = "dispatch", "pin", "unexplained"
STOPPING = 3 * SECOND
"""Nanoseconds within which a job leaves its worker after its key belongs elsewhere."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A period in which a dispatched job did not run."""

    wish: Event
    since: int
    until: int
    cause: str
    allowed: int
    """Start of the allowed time: the last pin, the end of the last server fault, or the beginning of the gap."""
    open: bool
    """Whether the gap has not ended."""

    @property
    def seconds(self) -> float:
        """Length of the gap."""
        return (self.until - self.since) / SECOND


@dataclass(frozen=True, slots=True)
class JobFindings:
    """The findings about jobs."""

    wanted: int
    starts: int
    limit: float
    """Longest allowed gap in seconds."""
    gaps: tuple[Gap, ...]
    overlaps: tuple[Overlap, ...]
    zombies: tuple[Overlap, ...]
    stale: tuple[StaleStart, ...]
    shared: tuple[SharedEpoch, ...]
    needless: tuple[tuple[Execution, Execution], ...]
    """Pairs of a run and the next run, where the first was in the right worker and met no fault."""

    @property
    def lost(self) -> list[Gap]:
        """Dispatched jobs that do not run at the end."""
        return [gap for gap in self.gaps if gap.open]

    @property
    def late(self) -> list[Gap]:
        """Jobs that did not run for too long."""
        return [gap for gap in self.gaps if not gap.open and gap.until - gap.allowed > self.limit * SECOND]

    @property
    def ok(self) -> bool:
        """Whether every promise held."""
        return not any((self.lost, self.late, self.overlaps, self.stale, self.shared, self.needless))

    def findings(self) -> dict[str, int]:
        """Return the findings as they appear in the JSON."""
        return {
            "wanted": self.wanted,
            "overlaps": len(self.overlaps),
            "zombie_overlaps": len(self.zombies),
            "stale_epoch": len(self.stale) + len(self.shared),
            "late": len(self.late),
            "lost": len(self.lost),
            "needless_starts": len(self.needless),
        }

    def figures(self) -> dict[str, Any]:
        """Return the figures as they appear in the JSON."""
        by_cause: dict[str, list[float]] = defaultdict(list)
        for gap in self.gaps:
            by_cause[gap.cause].append(gap.seconds)
        return {
            "starts": self.starts,
            "starts_minimum": self.starts - len(self.needless),
            "limit_seconds": round(self.limit, 2),
            "not_running_seconds": {
                cause: {"count": len(gaps), **spread(gaps, "max")} for cause, gaps in sorted(by_cause.items())
            },
        }

    def accusations(self, limit: int = 5) -> list[str]:
        """Return the first `limit` cases of each broken promise, one per line."""
        return [
            *(f"job lost: {_gap(gap)}" for gap in self.lost[:limit]),
            *(f"job late: {_gap(gap)}; at most {self.limit:g} s are allowed" for gap in self.late[:limit]),
            *(f"job overlap: {_pair(o.first, o.second)}" for o in self.overlaps[:limit]),
            *(f"job with a stale epoch: {_start(s.start)}, after epoch {s.newest}" for s in self.stale[:limit]),
            *(f"jobs share an epoch: {s.slot}, epoch {s.epoch}: {s.workers}" for s in self.shared[:limit]),
            *(f"job started without need: {_pair(*runs)}" for runs in self.needless[:limit]),
        ]

    def zombie_lines(self) -> list[str]:
        """Return each zombie overlap, with the epochs that distinguish its two runs."""
        return [f"job {_pair(overlap.first, overlap.second)}" for overlap in self.zombies]


def reach_of_jobs(outcome: VerifyRun) -> JobFindings | None:
    """Check the jobs of a run and return the findings; None if there were no jobs."""
    ordered = sorted(outcome.job_events, key=lambda event: event.at)
    if not ordered:
        return None
    judged = judge(ordered, outcome.deaths)
    frozen = outcome.timeline.frozen
    zombies = tuple(one for one in judged.overlaps if any(spell.explains(one) for spell in frozen))
    runs: dict[str, list[Execution]] = defaultdict(list)
    for run in pair(ordered, outcome.deaths):
        if run.start.at <= outcome.jobs_seen:  # after that the workers stop one by one, and jobs move between them
            runs[run.start.task_id].append(run)
    job_workload = [event for event in ordered if event.kind is Kind.PUBLISHED]
    ends = {event.task_id: event.at for event in ordered if event.kind is Kind.WITHDRAWN}
    return JobFindings(
        wanted=len(job_workload),
        starts=sum(map(len, runs.values())),
        limit=outcome.job_limit,
        gaps=tuple(gap for wish in job_workload for gap in _gaps(wish, ends, runs[wish.task_id], outcome)),
        overlaps=tuple(overlap for overlap in judged.overlaps if overlap not in zombies),
        zombies=zombies,
        stale=judged.stale,
        shared=judged.shared,
        needless=tuple(needless for one in runs.values() for needless in _needless(one, outcome)),
    )


def _gaps(wish: Event, ends: Mapping[str, int], runs: Sequence[Execution], outcome: VerifyRun) -> Iterable[Gap]:
    last = ends.get(wish.task_id)
    end, at = last or outcome.jobs_seen, wish.at
    spells = sorted(spell for run in runs for spell in _spells(run, outcome.timeline.frozen))
    for since, until in [*spells, (end, end)]:
        if (gap_end := min(since, end)) > at:
            cause, allowed = _cause(at, gap_end, outcome.timeline)
            if (pinned := _pinned(wish.key, at, gap_end, outcome.moves)) is not None:
                cause, allowed = PIN if cause == UNEXPLAINED else cause, max(allowed, pinned)
            missing = last is None and gap_end == outcome.jobs_seen
            if missing and _nowhere(wish.key, gap_end, outcome.moves):
                continue  # it waits until a worker pins its key
            yield Gap(wish, at, gap_end, DISPATCH if at == wish.at else cause, allowed, missing)
        at = max(at, until)


def _spells(run: Execution, frozen: Sequence[Frozen]) -> Iterable[tuple[int, int]]:
    """Yield the periods in which a run made progress, without those in which its process was paused."""
    at = run.start.at
    for spell in frozen:
        if run.start.pid in spell.pids and at < spell.until and spell.since < run.until:
            yield at, max(at, spell.since)
            at = spell.until
    if at < run.until:
        yield at, run.until


def _cause(since: int, until: int, timeline: Timeline) -> tuple[str, int]:
    """Return the fault that explains a gap, and the time from which the gap counts."""
    meanwhile = [one for one in _faults(timeline) if one.since - SLACK <= until and since <= one.until]
    whole = [one.until for one in meanwhile if EVERYBODY in one.hit]
    return meanwhile[0].fault.name if meanwhile else UNEXPLAINED, max([since, *whole])


def _pinned(key: str, since: int, until: int, moves: Moves | None) -> int | None:
    return moves.pinned(key, since - STOPPING, until) if moves is not None else None


def _nowhere(key: str, at: int, moves: Moves | None) -> bool:
    """Return True if the key may have belonged to no worker at that time."""
    return moves is not None and None in moves.workers(key, at, at)


def _needless(runs: Sequence[Execution], outcome: VerifyRun) -> Iterable[tuple[Execution, Execution]]:
    """Yield each needlessly started run of one dispatch, with the run before it.

    A start is needed if a fault has hit the previous run's worker. It is also needed if a fault has changed the members
    so that the slot went to another worker, even briefly, or if a placed key has belonged to another worker.
    """
    for before, run in pairwise(runs):
        since = min(before.until, run.start.at) - SLACK
        hit = any(one.excuses(short(before.start.worker), since, run.start.at) for one in _faults(outcome.timeline))
        if not hit and not _moved(before, run, since, outcome):
            yield before, run


def _moved(before: Execution, run: Execution, since: int, outcome: VerifyRun) -> bool:
    if outcome.moves is not None:
        return outcome.moves.workers(run.start.key, since - STOPPING, run.start.at) != {before.start.worker}
    change = any(one.since <= run.start.at and since <= one.until for one in _faults(outcome.timeline))
    return change and (
        _owner_changed_twice(before.start, run.start) or _slot_moved(before.start, run.start, outcome.slot_events)
    )


def _owner_changed_twice(before: Event, start: Event) -> bool:
    """Return True if another worker had the slot in between. It may have left before it opened the slot."""
    return before.epoch is not None and start.epoch is not None and start.epoch > before.epoch + 1


def _slot_moved(before: Event, start: Event, log: Sequence[SlotEvent]) -> bool:
    return before.worker != start.worker or any(
        event.what == "gained"
        and event.slot == start.slot
        and event.worker != start.worker
        and before.at < event.at <= start.at
        for event in log
    )


def _faults(timeline: Timeline) -> Sequence[Done]:
    return [*timeline.done, *timeline.restarts]


def _gap(gap: Gap) -> str:
    when = f"from {gap.since / SECOND:.3f} to {gap.until / SECOND:.3f}"
    return f"{gap.wish.key} ({gap.wish.task_id}) did not run for {gap.seconds:.2f} s, {when}: {gap.cause}"


def _start(event: Event) -> str:
    where = f"on {short(event.worker)} pid {event.pid} epoch {event.epoch} at {event.at / SECOND:.3f}"
    return f"{event.key} ({event.task_id}) {where}"


def _pair(first: Execution, second: Execution) -> str:
    return f"{_start(first.start)} until {first.until / SECOND:.3f}, and {_start(second.start)}"
