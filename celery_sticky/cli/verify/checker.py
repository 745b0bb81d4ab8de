"""The checker: finds broken promises in the history of a run, and the cause of each repeated run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from celery_sticky.cli.verify.app import ATTEMPTS
from celery_sticky.cli.verify.job_checker import JobFindings, reach_of_jobs
from celery_sticky.cli.verify.load import apart
from celery_sticky.cli.verify.outcome import VerifyRun
from celery_sticky.cli.verify.placement_checker import PlacementFindings, Sent, reach_of_placed
from celery_sticky.cli.verify.site import Mode, short
from celery_sticky.cli.verify.timeline import Done, Timeline
from celery_sticky.testing.history import Event, Execution, Kind, pair
from celery_sticky.testing.judge import Inversion, Judgement, Overlap, StaleStart, judge

ACKNOWLEDGED = 1_000_000_000
"""Nanoseconds after the end of a run within which a fault may have lost its acknowledgement."""
POISON = "poison"
UNPINNED = "is pinned by no live worker"
"""Text in the reason of messages that are buried because their key is not pinned (see `NotPinned`)."""
UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings of a run."""

    judged: Judgement
    lost: tuple[Event, ...]
    forgotten: tuple[Event, ...]
    """Tasks that the broker accepted just before it returned to older data. The broker lost them, not celery-sticky."""
    stuck: tuple[Event, ...]
    overlaps: tuple[Overlap, ...]
    inversions: tuple[Inversion, ...]
    zombies: tuple[Overlap, ...]
    """Overlaps with a run whose process was paused during it. The later run has a higher epoch, so a token fences the
    earlier one."""
    zombie_starts: tuple[StaleStart, ...]
    """Starts under a stale epoch by a process that was paused just before the task."""
    stale: tuple[StaleStart, ...]
    duplicates: Mapping[str, int]
    """Cause -> number of repeated runs."""
    unexplained: tuple[tuple[Execution, Execution], ...]
    """Repeated runs without a cause, each as a pair of the run before it and the run."""
    not_buried: tuple[str, ...]
    """Keys whose poison message was not buried."""
    hasty: frozenset[str]
    """Ids of tasks that were buried although the history has too few starts of them. They count as lost."""
    crashes: tuple[str, ...]
    unburied: tuple[str, ...]
    """Malformed messages that were not buried with a reason."""
    jobs: JobFindings | None
    placed: PlacementFindings | None

    @property
    def ok(self) -> bool:
        """Whether every promise held."""
        broken = (self.lost, self.stuck, self.overlaps, self.inversions, self.stale, self.judged.shared)
        well = all(part is None or part.ok for part in (self.jobs, self.placed))
        return well and not any((*broken, self.unexplained, self.not_buried, self.unburied, self.crashes))

    def figures(self) -> dict[str, Any]:
        """Return the findings as they appear in the JSON."""
        return {
            "tasks": self.judged.published,
            "lost": len(self.lost),
            "forgotten": len(self.forgotten),
            "overlaps": len(self.overlaps),
            "zombie_overlaps": len(self.zombies),
            "zombie_starts": len(self.zombie_starts),
            "out_of_order": len(self.inversions),
            "stale_epoch": len(self.stale) + len(self.judged.shared),
            "stuck": len(self.stuck),
            "duplicates": dict(self.duplicates),
            "jobs": None if self.jobs is None else self.jobs.findings(),
            "placed": None if self.placed is None else self.placed.findings(),
        }

    def accusations(self, limit: int = 5) -> list[str]:
        """Return the first `limit` cases of each broken promise, one per line."""
        return [
            *(f"lost: {_task(event)}{self._why(event)}" for event in self.lost[:limit]),
            *(f"stuck: {_task(event)}" for event in self.stuck[:limit]),
            *(f"overlap: {_pair(overlap)}" for overlap in self.overlaps[:limit]),
            *(f"out of order: {_start(i.late)} after {_start(i.early)}" for i in self.inversions[:limit]),
            *(f"stale epoch: {_stale(s)}" for s in self.stale[:limit]),
            *(f"shared epoch: {s.slot}, epoch {s.epoch}: {s.workers}" for s in self.judged.shared[:limit]),
            *(f"unexplained: {_run(one)}, and again {_run(two)}" for one, two in self.unexplained[:limit]),
            *(f"not buried: the poison message of {key}" for key in self.not_buried[:limit]),
            *(f"not buried: a malformed message, {wrong}" for wrong in self.unburied[:limit]),
            *(f"worker {text}" for text in self.crashes[:limit]),
            *(line for part in (self.placed, self.jobs) if part is not None for line in part.accusations(limit)),
        ]

    def _why(self, event: Event) -> str:
        return " was buried without enough starts" if event.task_id in self.hasty else ""

    def zombie_lines(self) -> list[str]:
        """Return each zombie overlap and zombie start, with the epochs that distinguish the runs."""
        of_jobs = self.jobs.zombie_lines() if self.jobs is not None else ()
        return [*map(_pair, self.zombies), *map(_stale, self.zombie_starts), *of_jobs]


def reach(outcome: VerifyRun) -> Findings:
    """Check the outcome of a run and return the findings."""
    timeline = outcome.timeline
    sent = Sent.of(outcome)
    nowhere = _nowhere(outcome, sent)
    hasty = _hasty(outcome) - nowhere
    judged = judge(outcome.events, outcome.deaths, buried=set(outcome.buried) - hasty, unordered=apart())
    thawed = {start for spell in timeline.frozen for start in spell.first_starts(outcome.events)}
    zombie_starts = tuple(stale for stale in judged.stale if stale.start in thawed)
    late = {stale.start for stale in zombie_starts}
    zombies = tuple(
        overlap
        for overlap in judged.overlaps
        if any(spell.explains(overlap) for spell in timeline.frozen)
        or not late.isdisjoint((overlap.first.start, overlap.second.start))
    )
    ordered = sorted(outcome.events, key=lambda event: event.at)
    again = list(_again(pair(ordered, outcome.deaths)))
    causes = Counter(_cause(before, run, timeline) for before, run in again)
    nowhere_left = [event for event in judged.lost if event.task_id not in outcome.stuck]
    forgotten = tuple(event for event in nowhere_left if any(done.forgot(event) for done in timeline.done))
    return Findings(
        judged=judged,
        lost=tuple(event for event in nowhere_left if event not in forgotten),
        forgotten=forgotten,
        stuck=tuple(event for event in judged.lost if event.task_id in outcome.stuck),
        inversions=tuple(one for one in judged.inversions if sent is None or not sent.moved(one)),
        overlaps=tuple(overlap for overlap in judged.overlaps if overlap not in zombies),
        zombies=zombies,
        zombie_starts=zombie_starts,
        stale=tuple(stale for stale in judged.stale if stale not in zombie_starts),
        duplicates=causes,
        unexplained=tuple(runs for runs in again if _cause(*runs, timeline) == UNEXPLAINED),
        not_buried=tuple(_not_buried(outcome, {event.key for event in forgotten})),
        hasty=hasty,
        crashes=tuple(timeline.crashes),
        unburied=tuple(outcome.unburied),
        jobs=reach_of_jobs(outcome),
        placed=None if sent is None else reach_of_placed(outcome, sent, judged.inversions, nowhere),
    )


def _nowhere(outcome: VerifyRun, sent: Sent | None) -> frozenset[str]:
    """Return the tasks that were buried as unpinned and whose key may indeed have had no place."""
    said = [event for event in outcome.events if event.kind is Kind.PUBLISHED and event.task_id in outcome.buried]
    pinned_by_nobody = [event for event in said if UNPINNED in outcome.buried[event.task_id]]
    return frozenset(event.task_id for event in pinned_by_nobody if sent is not None and sent.unpinned(event))


def _hasty(outcome: VerifyRun) -> frozenset[str]:
    """Return the buried tasks with too few recorded starts. One start may die before it is recorded."""
    starts = Counter(event.task_id for event in outcome.events if event.kind is Kind.START)
    return frozenset(task_id for task_id in outcome.buried if starts[task_id] < ATTEMPTS - 1)


def _again(runs: Iterable[Execution]) -> Iterable[tuple[Execution, Execution]]:
    """Yield each repeated run of a task, with the run before it. A retry that the task requested does not count."""
    groups: dict[tuple[str, str, int], list[Execution]] = defaultdict(list)
    for run in runs:
        groups[run.start.task].append(run)
    for group in groups.values():
        for before, run in pairwise(group):
            if not (before.start.key.startswith("retry") and before.ended and not before.finished):
                yield before, run


def _cause(before: Execution, run: Execution, timeline: Timeline) -> str:
    if before.start.key.startswith("oom") and not before.ended:
        return POISON
    worker = short(before.start.worker)
    until = min(before.until + ACKNOWLEDGED, run.start.at) if before.ended else run.start.at
    faults: Iterable[Done] = (*timeline.done, *timeline.restarts)
    return next((d.fault.name for d in faults if d.excuses(worker, before.start.at, until)), UNEXPLAINED)


def _not_buried(outcome: VerifyRun, forgotten: Collection[str]) -> Iterable[str]:
    """Yield the keys whose poison message was neither buried nor lost by the broker."""
    if outcome.run_options.mode is not Mode.STICKY:
        return
    dead = {e.key for e in outcome.events if e.kind is Kind.PUBLISHED and e.task_id in outcome.buried}
    poisoned = {e.key for e in outcome.events if e.kind is Kind.PUBLISHED and e.key.startswith("oom")}
    yield from sorted(poisoned - dead - set(forgotten))


def _task(event: Event) -> str:
    return f"{event.key} #{event.n} ({event.task_id})"


def _start(event: Event) -> str:
    return f"{_task(event)} on {short(event.worker) or '?'} pid {event.pid} epoch {event.epoch} at {event.at / 1e9:.3f}"


def _stale(stale: StaleStart) -> str:
    return f"{_start(stale.start)}, after epoch {stale.newest}"


def _run(run: Execution) -> str:
    how = "finished" if run.finished else "aborted" if run.ended else "last seen"
    return f"{_start(run.start)}, {how} at {run.until / 1e9:.3f}"


def _pair(overlap: Overlap) -> str:
    return f"{_start(overlap.first.start)} until {overlap.first.until / 1e9:.3f}, and {_start(overlap.second.start)}"
