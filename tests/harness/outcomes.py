"""Invented runs of `verify` for tests of its checker: histories, injected faults, and what is left at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from typing import Any

from celery_sticky.cli.verify.faults import BY_NAME
from celery_sticky.cli.verify.faults.base import Fault
from celery_sticky.cli.verify.moves import Moves
from celery_sticky.cli.verify.options import RunOptions
from celery_sticky.cli.verify.outcome import VerifyRun
from celery_sticky.cli.verify.placed import Placed
from celery_sticky.cli.verify.plan import FaultPlan
from celery_sticky.cli.verify.site import Mode, node
from celery_sticky.cli.verify.timeline import Done, Frozen, Timeline
from celery_sticky.jobs.info import JobInfo
from celery_sticky.ownership.view import View
from celery_sticky.testing.history import Event, Kind
from celery_sticky.testing.slot_log import SlotEvent

SECOND = 1_000_000_000
SLOTS = 4


def sent(n: int, at: float = 0.0, *, key: str = "k1", sender: int = 0, kind: Kind = Kind.PUBLISHED) -> Event:
    moment = int(at * SECOND)
    return Event(kind=kind, key=key, n=n, task_id=f"{key}-{n}", at=moment + 1000, sent=moment, pid=1, sender=sender)


def ran(n: int, since: float, until: float | None, **options: Any) -> list[Event]:
    """Return the events of a run. Without `until` the run was cut off."""
    values = {"key": "k1", "worker": "w1", "pid": 10, "epoch": 1, "finished": True, "slot": 0, **options}
    start = Event(
        kind=Kind.START,
        key=values["key"],
        n=n,
        task_id=f"{values['key']}-{n}",
        at=int(since * SECOND),
        pid=values["pid"],
        worker=node(values["worker"]),
        run=f"{n}-{since}",
        slot=values["slot"],
        epoch=values["epoch"],
    )
    if until is None:
        return [start]
    return [start, replace(start, kind=Kind.END, at=int(until * SECOND), finished=values["finished"])]


def fault(
    name: str, since: float, until: float, *hit: str, before: View | None = None, after: View | None = None
) -> Done:
    return Done(planned(name, since, hit), int(since * SECOND), int(until * SECOND), set(hit), before, after)


def planned(name: str, at: float, workers: tuple[str, ...]) -> Fault:
    """Return an occurrence of a fault. Each value that a plan would draw is 1."""
    kind = BY_NAME[name]
    drawn: dict[str, Any] = {field.name: 1 for field in fields(kind) if field.default is MISSING}
    return kind(at=at, workers=workers, **drawn)


def outcome(
    *groups: Sequence[Event],
    done: Sequence[Done] = (),
    frozen: Sequence[Frozen] = (),
    buried: Sequence[str] = (),
    stuck: Sequence[str] = (),
    crashes: Sequence[str] = (),
    slot_events: Sequence[SlotEvent] = (),
    job_events: Sequence[Event] = (),
    jobs_seen: float = 0.0,
    mode: Mode = Mode.STICKY,
    moves: Moves | None = None,
    untold: Sequence[Event] = (),
    bad_jobs: Sequence[JobInfo] = (),
    bad_left: Sequence[str] = (),
    note_events: Sequence[Event] = (),
    isolated: bool = False,
) -> VerifyRun:
    return VerifyRun(
        run_options=RunOptions(mode=mode, placed=Placed.JUMP if moves is not None else None, isolated=isolated),
        plan=FaultPlan((), ("eta",), {"clock": "libfaketime is not installed"}),
        timeline=Timeline(0, done, frozen, (), crashes=crashes),
        events=[event for group in groups for event in group],
        job_events=list(job_events),
        slot_events=list(slot_events),
        deaths={},
        buried=dict.fromkeys(buried, "lost its process 3 times"),
        stuck=set(stuck),
        slots=SLOTS,
        eviction_timeout=3.8,
        jobs_seen=int(jobs_seen * SECOND),
        moves=moves,
        untold=untold,
        bad_jobs=bad_jobs,
        bad_left=bad_left,
        note_events=note_events,
    )
