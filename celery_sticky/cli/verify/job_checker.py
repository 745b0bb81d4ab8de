"""Checker for jobs: those that ran twice at a time, did not run for too long, or were started without need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from celery_sticky.cli.verify.bad_checker import SLACK, BadFindings, reach_of_bad
from celery_sticky.cli.verify.bad_jobs import is_bad
from celery_sticky.cli.verify.figures import spread
from celery_sticky.cli.verify.gaps import STOPPING, CpuWaits, Gap, GapsOf
from celery_sticky.cli.verify.notes import lost_notes
from celery_sticky.cli.verify.outcome import VerifyRun
from celery_sticky.cli.verify.site import short
from celery_sticky.jobs.info import JobInfo
from celery_sticky.testing.history import Event, Execution, Kind, pair
from celery_sticky.testing.judge import Overlap, SharedEpoch, StaleStart, judge
from celery_sticky.testing.measure import SECOND
from celery_sticky.testing.slot_log import SlotEvent


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
    """Pairs of a run and the next run, where the first was in the right worker and met no fault or first offence."""
    notes: int
    lost_notes: tuple[Event, ...]
    bad: BadFindings

    @property
    def lost(self) -> list[Gap]:
        """Dispatched jobs that do not run at the end."""
        return [gap for gap in self.gaps if gap.open]

    @property
    def late(self) -> list[Gap]:
        """Jobs that did not run for too long."""
        return [gap for gap in self.gaps if not gap.open and gap.counted > self.limit]

    @property
    def ok(self) -> bool:
        """Whether every promise held."""
        broken = (self.lost, self.late, self.overlaps, self.stale, self.shared, self.needless, self.lost_notes)
        return not any((*broken, self.bad.unseen, self.bad.left))

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
            "notes_lost": len(self.lost_notes),
            "bad_unseen": len(self.bad.unseen),
            "bad_left": len(self.bad.left),
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
            "notes": self.notes,
            "bad_jobs": self.bad.jobs,
            "bad_starts": self.bad.starts,
            "first_offences": len(self.bad.offences),
            "waited_for_cpu_seconds": round(max((gap.waited for gap in self.gaps), default=0) / SECOND, 2),
            "not_running_seconds": {
                cause: {"count": len(gaps), **spread(gaps, "max")} for cause, gaps in sorted(by_cause.items())
            },
        }

    def accusations(self, limit: int = 5) -> list[str]:
        """Return the first `limit` cases of each broken promise, one per line."""
        return [
            *(f"job lost: {_gap(gap)}" for gap in self.lost[:limit]),
            *(f"job late: {_gap(gap)}; {_counted(gap)}, {self.limit:g} s are allowed" for gap in self.late[:limit]),
            *(f"job overlap: {_pair(o.first, o.second)}" for o in self.overlaps[:limit]),
            *(f"job with a stale epoch: {_start(s.start)}, after epoch {s.newest}" for s in self.stale[:limit]),
            *(f"jobs share an epoch: {s.slot}, epoch {s.epoch}: {s.workers}" for s in self.shared[:limit]),
            *(f"job started without need: {_pair(*runs)}" for runs in self.needless[:limit]),
            *(f"note lost: {note.key} #{note.n} of {note.at / SECOND:.3f}" for note in self.lost_notes[:limit]),
            *(f"bad job not seen: {_info(info)}" for info in self.bad.unseen[:limit]),
            *(f"bad job not stopped: {key}" for key in self.bad.left[:limit]),
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
    runs, bad_runs = _by_dispatch(pair(ordered, outcome.deaths), outcome.jobs_seen)
    job_workload = [event for event in ordered if event.kind is Kind.PUBLISHED]
    ends = {event.task_id: event.at for event in ordered if event.kind is Kind.WITHDRAWN}
    needless = [pair for one in runs.values() for pair in _needless(one, outcome)]
    bad = reach_of_bad(outcome, bad_runs, needless)
    waits = CpuWaits.of(ordered)
    weighs = {wish.task_id: GapsOf(runs[wish.task_id], outcome, bad, waits) for wish in job_workload}
    return JobFindings(
        wanted=len(job_workload),
        starts=sum(map(len, runs.values())),
        limit=outcome.job_limit,
        gaps=tuple(gap for wish in job_workload for gap in weighs[wish.task_id].of(wish, ends.get(wish.task_id))),
        overlaps=tuple(overlap for overlap in judged.overlaps if overlap not in zombies),
        zombies=zombies,
        stale=judged.stale,
        shared=judged.shared,
        needless=tuple(
            (before, run)
            for before, run in needless
            if not (bad.explains(before) or _came_back(before.start, run.start, bad, outcome.slot_events))
        ),
        notes=sum(event.kind is Kind.PUBLISHED for event in outcome.note_events),
        lost_notes=tuple(lost_notes(outcome)),
        bad=bad,
    )


def _by_dispatch(runs: Iterable[Execution], seen: int) -> tuple[dict[str, list[Execution]], list[Execution]]:
    """Return the runs of good jobs by the id of their dispatch, and those of bad jobs."""
    good: dict[str, list[Execution]] = defaultdict(list)
    bad: list[Execution] = []
    for run in runs:
        if is_bad(run.start.key):
            bad.append(run)
        elif run.start.at <= seen:  # after that the workers stop one by one, and jobs move between them
            good[run.start.task_id].append(run)
    return good, bad


def _needless(runs: Sequence[Execution], outcome: VerifyRun) -> Iterable[tuple[Execution, Execution]]:
    """Yield each needlessly started run of one dispatch, with the run before it.

    A start is needed if a fault has hit the previous run's worker. It is also needed if a fault has changed the members
    so that the slot went to another worker, even briefly, or if a placed key has belonged to another worker.
    """
    for before, run in pairwise(runs):
        since = min(before.until, run.start.at) - SLACK
        hit = any(one.excuses(short(before.start.worker), since, run.start.at) for one in outcome.timeline.faults)
        if not hit and not _moved(before, run, since, outcome):
            yield before, run


def _moved(before: Execution, run: Execution, since: int, outcome: VerifyRun) -> bool:
    if outcome.moves is not None:
        return outcome.moves.workers(run.start.key, since - STOPPING, run.start.at) != {before.start.worker}
    change = any(one.since <= run.start.at and since <= one.until for one in outcome.timeline.faults)
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


def _came_back(before: Event, start: Event, bad: BadFindings, log: Sequence[SlotEvent]) -> bool:
    """Return True if the slot went to a worker that had left because a first offence had ended its job host.

    It left because the next host took long to load the app, which no fault needs to have caused.
    """
    held: set[int] = set()
    left = came = 0
    for event in sorted(log, key=lambda event: event.at):
        if event.worker != start.worker or event.at > start.at:
            continue
        if event.what == "lost":
            held.discard(event.slot)
            left = left if held else event.at
        else:
            came = came if held else event.at
            held.add(event.slot)
    return 0 < left < came and before.at < came and bool(bad.first_offences(start.worker, 0, left))


def _gap(gap: Gap) -> str:
    when = f"from {gap.since / SECOND:.3f} to {gap.until / SECOND:.3f}"
    return f"{gap.wish.key} ({gap.wish.task_id}) did not run for {gap.seconds:.2f} s, {when}: {gap.cause}"


def _counted(gap: Gap) -> str:
    waited = f" without {gap.waited / SECOND:.2f} s in which its process waited for a CPU" if gap.waited else ""
    return f"{gap.counted:.2f} s count{waited}"


def _info(info: JobInfo) -> str:
    what = "quarantined" if info.quarantined else "not quarantined"
    return f"{info.key} ({info.id}) is {info.state}, {what}, with {info.failures} failures in {info.attempt} starts"


def _start(event: Event) -> str:
    where = f"on {short(event.worker)} pid {event.pid} epoch {event.epoch} at {event.at / SECOND:.3f}"
    return f"{event.key} ({event.task_id}) {where}"


def _pair(first: Execution, second: Execution) -> str:
    return f"{_start(first.start)} until {first.until / SECOND:.3f}, and {_start(second.start)}"
