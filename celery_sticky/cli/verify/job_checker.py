"""What the history of a run's jobs proves: where one ran twice, was missing for too long, or was started in vain."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from celery_sticky.cli.verify.figures import spread
from celery_sticky.cli.verify.moves import Moves
from celery_sticky.cli.verify.run import VerifyRun
from celery_sticky.cli.verify.site import short
from celery_sticky.cli.verify.timeline import EVERYBODY, Done, Frozen, Timeline
from celery_sticky.testing.history import Event, Execution, Kind, pair
from celery_sticky.testing.judge import Overlap, SharedEpoch, StaleStart, judge
from celery_sticky.testing.measure import SECOND
from celery_sticky.testing.slot_log import SlotEvent

SLACK = SECOND // 2
"""Nanoseconds by which a run's last sign of life may come before the fault that ended it."""
DISPATCH, PIN, UNEXPLAINED = "dispatch", "pin", "unexplained"
STOPPING = 3 * SECOND
"""Nanoseconds that a job's place may take to be left, from when its key belongs elsewhere."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which a wanted job did not run."""

    wish: Event
    since: int
    until: int
    cause: str
    allowed: int
    """From when on the time counts that it may take at most: the last pin or fault of everybody, or its beginning."""
    open: bool
    """It has not ended."""

    @property
    def seconds(self) -> float:
        """How long it was."""
        return (self.until - self.since) / SECOND


@dataclass(frozen=True, slots=True)
class JobFindings:
    """What was found of the jobs."""

    wanted: int
    starts: int
    limit: float
    """Seconds a job may be missing at most."""
    gaps: tuple[Gap, ...]
    overlaps: tuple[Overlap, ...]
    zombies: tuple[Overlap, ...]
    stale: tuple[StaleStart, ...]
    shared: tuple[SharedEpoch, ...]
    needless: tuple[tuple[Execution, Execution], ...]
    """Runs started though the one before was in its right place and met no fault, each with that one."""

    @property
    def lost(self) -> list[Gap]:
        """Jobs that are wanted and do not run at the end."""
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
        """Return it as it stands in the JSON."""
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
        """Return the figures as they stand in the JSON."""
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
        """Return the first `limit` of each broken promise, one a line."""
        return [
            *(f"job lost: {_gap(gap)}" for gap in self.lost[:limit]),
            *(f"job late: {_gap(gap)}, {self.limit:g} s are allowed" for gap in self.late[:limit]),
            *(f"job overlap: {_pair(o.first, o.second)}" for o in self.overlaps[:limit]),
            *(f"job under a stale epoch: {_start(s.start)}, {s.newest} was seen" for s in self.stale[:limit]),
            *(f"jobs of one epoch: {s.slot}, epoch {s.epoch}: {s.workers}" for s in self.shared[:limit]),
            *(f"job started without need: {_pair(*runs)}" for runs in self.needless[:limit]),
        ]

    def zombie_lines(self) -> list[str]:
        """Return each overlap of a zombie, with the epochs that tell its runs apart."""
        return [f"job {_pair(overlap.first, overlap.second)}" for overlap in self.zombies]


def reach_of_jobs(outcome: VerifyRun) -> JobFindings | None:
    """Return what the outcome of a run proves of its jobs; None where there were none."""
    ordered = sorted(outcome.job_events, key=lambda event: event.at)
    if not ordered:
        return None
    judged = judge(ordered, outcome.deaths)
    frozen = outcome.timeline.frozen
    zombies = tuple(one for one in judged.overlaps if any(spell.explains(one) for spell in frozen))
    runs: dict[str, list[Execution]] = defaultdict(list)
    for run in pair(ordered, outcome.deaths):
        if run.start.at <= outcome.jobs_seen:  # then the workers end, and their jobs move from one to the next
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
                continue  # it waits until somebody pins its key
            yield Gap(wish, at, gap_end, DISPATCH if at == wish.at else cause, allowed, missing)
        at = max(at, until)


def _spells(run: Execution, frozen: Sequence[Frozen]) -> Iterable[tuple[int, int]]:
    """Yield when a run really went on: not while its process stood still."""
    at = run.start.at
    for spell in frozen:
        if run.start.pid in spell.pids and at < spell.until and spell.since < run.until:
            yield at, max(at, spell.since)
            at = spell.until
    if at < run.until:
        yield at, run.until


def _cause(since: int, until: int, timeline: Timeline) -> tuple[str, int]:
    """Return the fault that goes on meanwhile, and from when on a job may be missed."""
    meanwhile = [one for one in _faults(timeline) if one.since - SLACK <= until and since <= one.until]
    whole = [one.until for one in meanwhile if EVERYBODY in one.hit]
    return meanwhile[0].step.fault if meanwhile else UNEXPLAINED, max([since, *whole])


def _pinned(key: str, since: int, until: int, moves: Moves | None) -> int | None:
    return moves.pinned(key, since - STOPPING, until) if moves is not None else None


def _nowhere(key: str, at: int, moves: Moves | None) -> bool:
    """Whether the key belonged to nobody."""
    return moves is not None and None in moves.workers(key, at, at)


def _needless(runs: Sequence[Execution], outcome: VerifyRun) -> Iterable[tuple[Execution, Execution]]:
    """Yield each run of one dispatch that need not have been started, with the run before it.

    There is need where a fault has hit the worker of the run before, or has changed the members, so that the slot has
    gone to another worker, if only for a moment; or where the key, if placed, has belonged to another one.
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
    """Whether the slot was given to another one meanwhile, which may have left before it opened it."""
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
