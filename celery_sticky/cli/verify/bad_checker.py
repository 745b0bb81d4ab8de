"""Checker for bad jobs: which starts of good jobs their first offences explain, and whether they are seen.

A bad job may cost the process that it shares with good jobs once. From then on it runs apart. One that is declared
isolated never shares a process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from celery_sticky.cli.verify.bad_jobs import kind_of
from celery_sticky.cli.verify.outcome import ROLLBACK, VerifyRun
from celery_sticky.cli.verify.site import short
from celery_sticky.cli.verify.timeline import Timeline
from celery_sticky.jobs.info import JobInfo
from celery_sticky.testing.history import Execution
from celery_sticky.testing.measure import SECOND

SLACK = SECOND // 2
"""Nanoseconds by which a run's last sign of life may precede the fault that ended it."""
Offender = tuple[str, int]
"""The id of a bad job, and how often the store had forgotten its offences."""
Present = Mapping[int, Sequence[Offender]]
"""Process id -> the bad jobs that were in the process when it ended."""
Pair = tuple[Execution, Execution]
"""A run of a good job and its next one."""


@dataclass(frozen=True, slots=True)
class BadFindings:
    """The findings about bad jobs."""

    jobs: int
    """Number of bad jobs that ran."""
    starts: int
    offences: Mapping[int, Offender]
    """Process id -> the bad job whose first offence ended the process, with good jobs in it."""
    firsts: Sequence[Execution]
    """The runs of bad jobs up to their first offences that ended with their process."""
    unseen: Sequence[JobInfo]
    """Bad jobs of which neither failures nor quarantine tell."""
    left: Sequence[str]
    """Keys of bad jobs that did not stop in the end."""

    def explains(self, before: Execution) -> bool:
        """Return whether a first offence has ended this run of a good job."""
        return not before.ended and before.start.pid in self.offences

    def first_offences(self, worker: str, since: int, until: int) -> Sequence[tuple[int, int]]:
        """Return the runs that may have ended a process there in that period by a first offence: begin and end."""
        runs = (run for run in self.firsts if run.start.worker == worker)
        return [(run.start.at, run.until) for run in runs if since <= run.until <= until]


def reach_of_bad(outcome: VerifyRun, runs: Iterable[Execution], needless: Collection[Pair]) -> BadFindings:
    """Return the findings about the bad jobs.

    Args:
        outcome: the outcome of the run.
        runs: the runs of bad jobs, in the order of their starts.
        needless: the starts of good jobs that nothing else explains, each with the run before it.
    """
    by_job: dict[str, list[Execution]] = defaultdict(list)
    by_offender: dict[Offender, list[Execution]] = defaultdict(list)
    for run in runs:
        by_job[run.start.task_id].append(run)
        if kind_of(run.start.key).offends and not run.ended:
            by_offender[run.start.task_id, _forgotten(run, outcome.timeline)].append(run)
    present = _present(by_offender)
    isolated = outcome.run_options.isolated
    ends = {before.start.pid: before.until for before, _ in needless if not (before.ended or isolated)}
    charged = _charge(ends, present)
    return BadFindings(
        jobs=len(by_job),
        starts=sum(map(len, by_job.values())),
        offences={pid: offender for offender, pid in charged.items()},
        firsts=[]
        if isolated
        else [run for who, ended in by_offender.items() for run in _until_charged(ended, charged.get(who))],
        unseen=tuple(
            info
            for info in outcome.bad_jobs
            if not _is_seen(info, isolated=isolated) and _was_bad(by_job[info.id][:-1], present, outcome.timeline)
        ),
        left=tuple(outcome.bad_left),
    )


def _forgotten(run: Execution, timeline: Timeline) -> int:
    return sum(done.fault.name == ROLLBACK and done.since <= run.start.at for done in timeline.done)


def _is_seen(info: JobInfo, *, isolated: bool) -> bool:
    kind = kind_of(info.key)
    if kind.offends and not isolated:
        return info.quarantined
    return info.failures > 0 or not (kind.offends or kind.fails)


def _was_bad(runs: Iterable[Execution], present: Present, timeline: Timeline) -> bool:
    """Return whether one of these runs surely did harm, or failed, and the store cannot have forgotten that."""
    rolled_back = max((done.until for done in timeline.done if done.fault.name == ROLLBACK), default=0)
    return any(
        run.start.at > rolled_back
        and (len(present[run.start.pid]) == 1 and not run.ended if kind_of(run.start.key).offends else run.ended)
        and not _excused(run, timeline)
        for run in runs
    )


def _excused(run: Execution, timeline: Timeline) -> bool:
    worker, end = short(run.start.worker), run.until
    return any(done.excuses(worker, end - SLACK, end + SLACK) for done in (*timeline.done, *timeline.restarts))


def _until_charged(runs: Sequence[Execution], pid: int | None) -> Sequence[Execution]:
    at = next((index for index, run in enumerate(runs) if run.start.pid == pid), 0)
    return runs[: at + 1]


def _present(runs: Mapping[Offender, Sequence[Execution]]) -> Present:
    found: dict[int, list[Offender]] = defaultdict(list)
    for who, ended in runs.items():
        for pid in dict.fromkeys(run.start.pid for run in ended):
            found[pid].append(who)
    return found


@dataclass(slots=True)
class _Charges:
    """A matching of ended processes with bad jobs that were in them, each of which can be charged with one."""

    present: Present
    charged: dict[Offender, int] = field(default_factory=dict)

    def charge(self, pid: int, tried: set[Offender]) -> bool:
        """Charge somebody with the end of the process, if need be by charging others differently than before."""
        for who in self.present.get(pid, ()):
            if who in tried:
                continue
            tried.add(who)
            if who not in self.charged or self.charge(self.charged[who], tried):
                self.charged[who] = pid
                return True
        return False


def _charge(ends: Mapping[int, int], present: Present) -> dict[Offender, int]:
    """Return which bad job is charged with the end of which process. `ends`: process id -> when it ended."""
    charges = _Charges(present)
    for pid in sorted(ends, key=ends.__getitem__):
        charges.charge(pid, set())
    return charges.charged
