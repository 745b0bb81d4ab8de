"""Each rule of jobs that the simulator can judge is taken away in turn; it then names the promise that breaks."""

from __future__ import annotations

from typing import Any

import pytest
from harness.rules import Rule, broken_without, rule
from simulator.invariants import Invariant
from simulator.job_host import SimulatedHost
from simulator.job_hosts import JobHosts
from simulator.scenario import Kind

from celery_sticky.jobs.keeper.flow import KeeperFlow
from celery_sticky.jobs.keeper.held import DrainedSlot, HeldSlot, JobRun, RunStage, job_key
from celery_sticky.jobs.keeper.reconciler import JobReconciler
from celery_sticky.jobs.keeper.runs import Runs
from celery_sticky.jobs.keeper.settling import Settling
from celery_sticky.jobs.keeper.starts import Starts
from celery_sticky.jobs.keeper.suspects import LONE_STARTS, Charge, Suspects
from celery_sticky.keys import Slot
from celery_sticky.placement.job_keys import Changes, JobKeys, KeyStage
from celery_sticky.placement.placed_jobs import PlacedJobs
from celery_sticky.placement.rules import Duty
from celery_sticky.stores.flow import Flow
from celery_sticky.stores.jobs import STOPPED, JobRecord, JobState, JobStore, Note, Reserved, RunResult
from celery_sticky.stores.memory.job_records import Keyspace
from celery_sticky.stores.memory.jobs import MemoryJobs

reconcile, look_after, may_start = JobReconciler.reconcile, JobReconciler._look_after, Starts._may_start
change, drained = JobKeys._change, JobKeys.drained
to_notify, on_ended, numbers = Settling.to_notify, Runs._on_ended, JobReconciler.numbers

# -- The keeper without … ----------------------------------------------------------------------


def reserve_nothing(self: KeeperFlow, slot: Slot, ids: list[str]) -> Flow[JobStore, Reserved]:
    yield from ()
    return Reserved(dict.fromkeys(ids, 1))


def start_whenever(self: JobReconciler, now: float, may_start: Any) -> dict[Slot, list[str]]:
    return reconcile(self, now, lambda _: True)


def end_although_it_runs(self: JobReconciler, slot: Slot, held: HeldSlot) -> None:
    if held.tasks_drained and not (held.opened and (held.reports or held.noted)):
        del self._held[slot]
        self._drained.append(DrainedSlot(slot, held.epoch, held.vacant))


def note_as_had_when_sent(self: Settling) -> list[tuple[JobRun, Note]]:
    found = to_notify(self)
    for run, note in found:
        self.noted(run.slot, note.id)
    return found


def notify_backwards(self: Settling) -> list[tuple[JobRun, Note]]:
    return to_notify(self)[::-1]


def notify_what_starts(self: Settling) -> list[tuple[JobRun, Note]]:
    for held in self._held.values():
        for note in held.notes:
            run = held.runs.get((note.name, note.key))
            if run is not None and run.stage is RunStage.STARTING:
                run.sent.add(note.id)
    return to_notify(self)


def keep_the_runs_of_a_host_that_ended(self: Runs, now: float) -> None:
    return None


def stop_only_what_is_unwanted(
    self: JobReconciler, held: HeldSlot, run: JobRun, record: JobRecord | None, now: float
) -> None:
    here = record is not None and record.state is not JobState.STOPPING
    look_after(self, held, run, run.record if here else record, now)


def never_overdue(self: JobReconciler, held: HeldSlot, run: JobRun, record: JobRecord | None, now: float) -> None:
    look_after(self, held, run, record, now)
    self.overdue = False


def wait_for_any_start(self: JobReconciler, held: HeldSlot, run: JobRun, record: JobRecord | None, now: float) -> None:
    if run.stage is RunStage.STARTING:
        run.since = now
    look_after(self, held, run, record, now)


def leave_what_is_to_stop(self: Starts, slot: Slot, held: HeldSlot, record: JobRecord, now: float) -> bool:
    return record.state is not JobState.STOPPING and may_start(self, slot, held, record, now)


def report_a_moved_run_as_ended(self: Runs, run: JobRun, error: str, now: float) -> None:
    held = self._held[run.slot]
    if run.stage is not RunStage.STOPPING or run.late:
        on_ended(self, run, error, now)
        return
    self._forget(run)
    del held.runs[job_key(run.record)]
    self._agenda.add(run.slot)
    self.report(run, RunResult.ENDED, "" if run.started else STOPPED)


def look_at_nothing_unasked(self: JobReconciler) -> list[Slot]:
    return []


# -- The store without … -----------------------------------------------------------------------


def anybody(self: MemoryJobs, slot: Slot, epoch: int) -> Keyspace:
    return self._space()


def open_under_any_epoch(self: MemoryJobs, slot: Slot, epoch: int) -> None:
    self._space().at(slot).epoch = epoch


RULES = [
    rule("a start is reserved", KeeperFlow, "_reserve", reserve_nothing, breaks={Invariant.NOT_RUNNING}),
    rule(
        "nothing starts without trust",
        JobReconciler,
        "reconcile",
        start_whenever,
        SimulatedHost,
        "_may_start",
        lambda self, start: True,
        breaks={Invariant.TWO_RUNS, Invariant.STALE_START, Invariant.RUN_AFTER_END},
        first=235,
    ),
    rule(
        "the host ends with trust",
        SimulatedHost,
        "look_at_the_lease",
        lambda self: None,
        JobHosts,
        "_watch",
        lambda self: None,
        breaks={Invariant.TWO_RUNS},
    ),
    rule("the host dies with its worker", JobHosts, "die_with_parent", lambda self: None, breaks={Invariant.TWO_RUNS}),
    rule(
        "an epoch that is not the fence writes nothing",
        MemoryJobs,
        "_fenced",
        anybody,
        breaks={Invariant.FORMER_TENURE},
    ),
    rule("a lower epoch does not open", MemoryJobs, "open", open_under_any_epoch, breaks={Invariant.FENCE_BACK}),
    rule(
        "drained is only what does not run",
        JobReconciler,
        "_end",
        end_although_it_runs,
        breaks={Invariant.DRAINED_EARLY},
    ),
    rule(
        "a notification is settled when the job has it",
        Settling,
        "to_notify",
        note_as_had_when_sent,
        breaks={Invariant.NOTE_LOST},
    ),
    rule(
        "notifications go in their order", Settling, "to_notify", notify_backwards, breaks={Invariant.NOTE_OUT_OF_ORDER}
    ),
    rule("only what runs is notified", Settling, "to_notify", notify_what_starts, breaks={Invariant.NOTE_LOST}),
    rule(
        "the jobs of a host that ended start again",
        Runs,
        "host_ended",
        keep_the_runs_of_a_host_that_ended,
        breaks={Invariant.NOT_RUNNING},
    ),
    rule(
        "a running job is recorded as running, whatever arrives late",
        JobReconciler,
        "_tell_again",
        lambda self, held: None,
        breaks={Invariant.NOT_RUNNING},
        kinds=(Kind.LEAVE,),
        losses=0.1,
        first=21,
    ),
    rule(
        "a run belongs to one dispatch",
        JobReconciler,
        "_look_after",
        stop_only_what_is_unwanted,
        breaks={Invariant.NOT_STOPPED, Invariant.NOTE_ELSEWHERE},
        first=38,
    ),
    rule(
        "a job that does not stop ends its host",
        JobReconciler,
        "_look_after",
        never_overdue,
        breaks={Invariant.NOT_STOPPED, Invariant.NOT_SETTLED},
    ),
    rule(
        "a start that hangs is given up",
        JobReconciler,
        "_look_after",
        wait_for_any_start,
        breaks={Invariant.NOT_RUNNING},
    ),
    rule(
        "what is to stop is removed by the next owner",
        Starts,
        "_may_start",
        leave_what_is_to_stop,
        breaks={Invariant.NOT_STOPPED},
    ),
    rule(
        "a job whose slot moves stays wanted",
        Runs,
        "_on_ended",
        report_a_moved_run_as_ended,
        breaks={Invariant.JOB_LOST},
    ),
    rule(
        "what signals have lost is looked for",
        JobReconciler,
        "numbers",
        look_at_nothing_unasked,
        breaks={Invariant.NOT_RUNNING, Invariant.NOT_STOPPED},
        deaf=True,
    ),
    rule(
        "jobs that may have ended the host are tried apart",
        Suspects,
        "ask",
        lambda self, who, now, last_chance: now,
        Suspects,
        "charged",
        lambda self, who: Charge(LONE_STARTS, LONE_STARTS, 0.0),
        breaks={Invariant.INNOCENT_GIVEN_UP},
        first=37,
    ),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_without_the_rule_its_promise_is_broken(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_without(rule, monkeypatch, placed=False, jobs=True)


# -- Where keys are placed, without … ------------------------------------------------------------


def give_back_what_runs(self: JobKeys, key: str, job: Any, duty: Duty, changes: Changes) -> None:
    if job.stage is KeyStage.OPEN and duty is not job.duty and not job.gone:
        changes.stop.append(key)
        changes.leave.append(key)
        self._set(key, job, KeyStage.OUT)
    else:
        change(self, key, job, duty, changes)


def keep_what_is_vacant(self: JobKeys, key: str, token: int, now: float, *, vacant: bool) -> bool:
    return not vacant and drained(self, key, token, now, vacant=vacant)


PLACED_RULES = [
    rule(
        "a key is given back when its jobs have stopped",
        JobKeys,
        "_change",
        give_back_what_runs,
        breaks={Invariant.TWO_RUNS},
    ),
    rule(
        "keys are reviewed when members change",
        JobKeys,
        "review",
        lambda self: None,
        breaks={Invariant.NOT_RUNNING},
    ),
    rule(
        "a key without jobs is given back",
        JobKeys,
        "drained",
        keep_what_is_vacant,
        breaks={Invariant.NOT_GIVEN_BACK},
    ),
    rule(
        "places of which no signal told are looked for",
        PlacedJobs,
        "listed",
        lambda self, places: None,
        breaks={Invariant.NOT_RUNNING},
        deaf=True,
    ),
    rule(
        "drained is only what does not run",
        JobReconciler,
        "_end",
        end_although_it_runs,
        breaks={Invariant.DRAINED_EARLY},
    ),
    rule(
        "pins are swept for changes",
        JobKeys,
        "sweep",
        lambda self, most: None,
        breaks={Invariant.NOT_RUNNING},
        deaf=True,
    ),
]


@pytest.mark.parametrize("rule", PLACED_RULES, ids=str)
def test_where_keys_are_placed_too(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_without(rule, monkeypatch, placed=True, jobs=True)
