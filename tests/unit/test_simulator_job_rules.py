"""Each rule of jobs that the simulator can judge is taken away in turn; it then names the promise that breaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from harness.rules import Rule, broken_without, rule
from simulator.invariants import Invariant
from simulator.job_host import SimulatedHost
from simulator.scenario import Kind
from simulator.supervisor import SteppedSupervisor

from celery_sticky.jobs.keeper.flow import KeeperFlow
from celery_sticky.jobs.keeper.held import NEVER, DrainedSlot, HeldSlot, JobRun, RunStage, job_key
from celery_sticky.jobs.keeper.host_flow import Blame, HostFlow
from celery_sticky.jobs.keeper.host_flow import Flow as HostRequests
from celery_sticky.jobs.keeper.host_watch import HostWatch
from celery_sticky.jobs.keeper.reconciler import JobReconciler
from celery_sticky.jobs.keeper.runs import Runs
from celery_sticky.jobs.keeper.settling import Settling
from celery_sticky.jobs.keeper.slots import SharedSlots
from celery_sticky.jobs.keeper.starts import Starts
from celery_sticky.jobs.wire import Message
from celery_sticky.keys import SlotId
from celery_sticky.membership.deadline import STEP, TrustWatch
from celery_sticky.placement.job_keys import Changes, JobKeys, KeyStage
from celery_sticky.placement.placed_jobs import PlacedJobs
from celery_sticky.placement.rules import Duty
from celery_sticky.slots import Slot
from celery_sticky.stores.flow import Flow
from celery_sticky.stores.jobs import STOPPED, JobRecord, JobState, JobStore, Report, Reserved, RunResult
from celery_sticky.stores.memory.job_records import Keyspace
from celery_sticky.stores.memory.jobs import MemoryJobs
from celery_sticky.stores.notes import FailedDelivery, Note

on_started = Runs._on_started
reconcile, look_after, may_start = JobReconciler.reconcile, JobReconciler._look_after, Starts._may_start
change, drained, without_tasks = JobKeys._change, JobKeys.drained, JobKeys.without_tasks
stop = SharedSlots.stop
to_notify, on_ended, numbers = Settling.to_notify, Runs._on_ended, JobReconciler.numbers

# -- The keeper without … ----------------------------------------------------------------------


def reserve_nothing(self: KeeperFlow, slot: Slot, ids: list[str]) -> Flow[JobStore, Reserved]:
    yield from ()
    return Reserved(dict.fromkeys(ids, 1))


def start_whenever(self: JobReconciler, now: float, may_start: Any) -> dict[Slot, list[str]]:
    return reconcile(self, now, lambda _: True)


def end_although_it_runs(self: JobReconciler, slot: Slot, held: HeldSlot) -> None:
    if (held.given or held.vacant) and not (held.opened and held.has_news):
        del self._held[slot]
        self._drained.append(DrainedSlot(slot, held.epoch, held.vacant))


def note_as_had_when_sent(self: Settling) -> list[tuple[JobRun, Note]]:
    found = to_notify(self)
    for run, note in found:
        self.noted(run.slot, note.id)
    return found


def notify_backwards(self: Settling) -> list[tuple[JobRun, Note]]:
    return to_notify(self)[::-1]


def bury_at_once(self: Runs, run: JobRun, note: str, delivery: int, error: str) -> None:
    self._settling.failed(run.slot, FailedDelivery(note, delivery, error, dead=True))


def notify_what_starts(self: Settling) -> list[tuple[JobRun, Note]]:
    for held in self._held.values():
        for note in held.notes:
            run = held.runs.get((note.name, note.key))
            if run is not None and run.stage is RunStage.STARTING:
                run.sent.add(note.id)
    return to_notify(self)


def keep_the_runs_of_a_host_that_ended(self: Runs, number: int, blame: Blame, now: float) -> None:
    return None


def only_while_it_starts(self: Runs, run: JobRun, now: float) -> None:
    if run.stage is RunStage.STARTING:
        on_started(self, run, now)
    else:
        self.clocks.started(run, now)


def stop_only_what_is_unwanted(
    self: JobReconciler, held: HeldSlot, run: JobRun, record: JobRecord | None, now: float, *, leaves: bool
) -> None:
    here = record is not None and record.state is not JobState.STOPPING
    look_after(self, held, run, run.record if here else record, now, leaves=leaves)


def never_overdue(
    self: JobReconciler, held: HeldSlot, run: JobRun, record: JobRecord | None, now: float, *, leaves: bool
) -> None:
    look_after(self, held, run, record, now, leaves=leaves)
    self._overdue.clear()


def wait_for_any_start(
    self: JobReconciler, held: HeldSlot, run: JobRun, record: JobRecord | None, now: float, *, leaves: bool
) -> None:
    if run.stage is RunStage.STARTING:
        run.due = NEVER
    look_after(self, held, run, record, now, leaves=leaves)


def leave_what_is_to_stop(self: Starts, slot: Slot, held: HeldSlot, record: JobRecord, now: float) -> bool:
    return record.state is not JobState.STOPPING and may_start(self, slot, held, record, now)


def report_a_moved_run_as_ended(self: Runs, run: JobRun, error: str, now: float) -> None:
    held = self._held[run.slot]
    if run.stage is not RunStage.STOPPING or run.late:
        on_ended(self, run, error, now)
        return
    del self._runs[run.ref], held.runs[job_key(run.record)]
    self._agenda.add(run.slot)
    self.report(run, Report(run.record.id, RunResult.ENDED, "" if run.started else STOPPED))


def fail_all_that_are_blamed(self: Runs, held: HeldSlot, run: JobRun, error: str, now: float) -> None:
    self._on_failed(held, run, error, now)


def look_at_nothing_unasked(self: JobReconciler) -> list[Slot]:
    return []


# -- The supervisor without … -------------------------------------------------------------------


def leave_it_dead(self: HostFlow, status: int) -> HostRequests:
    self._take_in_end(status)
    yield from ()


def say_to_any_host(self: HostFlow, number: int, messages: Sequence[Message]) -> None:
    if self._host is not None:
        self._host.send(messages)


def stop_jobs_at_once(self: SharedSlots, slot: SlotId) -> None:
    stop(self, slot)
    reconciler = self._keeper._reconciler
    if slot[1] in reconciler.numbers():
        reconciler.refused(slot[1])  # stops them, and reports nothing
        self._keeper.wake()


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
        first=520,
    ),
    rule(
        "the host ends with trust",
        SimulatedHost,
        "look_at_the_lease",
        lambda self: None,
        TrustWatch,
        "look",
        lambda self: STEP,
        breaks={Invariant.TWO_RUNS},
    ),
    rule(
        "the host dies with its worker",
        SteppedSupervisor,
        "die_with_parent",
        lambda self: None,
        breaks={Invariant.TWO_RUNS},
    ),
    rule("a host that has died is replaced", HostFlow, "replace", leave_it_dead, breaks={Invariant.NOT_SETTLED}),
    rule(
        "an order reaches only the host that it is for",
        HostFlow,
        "say",
        say_to_any_host,
        breaks={Invariant.TWO_RUNS},
        first=940,
    ),
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
        "a notification is delivered as often as it may be",
        Runs,
        "_on_unhandled",
        bury_at_once,
        breaks={Invariant.NOTE_LOST},
    ),
    rule(
        "failed deliveries are stored",
        Settling,
        "failed",
        lambda self, slot, failed: None,
        breaks={Invariant.NOTE_LOST, Invariant.NOT_RUNNING},
    ),
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
        "a host that does nothing is replaced",
        HostWatch,
        "overdue",
        lambda self, now: "",
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
        "jobs of a slot stop last",
        SharedSlots,
        "stop",
        stop_jobs_at_once,
        breaks={Invariant.STOOD_STILL},
        first=25,
    ),
    rule(
        "a first start that others may have ended is tried apart and does not count",
        Runs,
        "_on_blamed",
        fail_all_that_are_blamed,
        breaks={Invariant.INNOCENT_GIVEN_UP},
        first=330,
    ),
    rule(
        "a job whose first start completes while it is to stop has started",
        Runs,
        "_on_started",
        only_while_it_starts,
        breaks={Invariant.JOB_LOST},
        first=577937433,
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
        "jobs of a key stop last",
        JobKeys,
        "without_tasks",
        lambda self, busy: without_tasks(self, ()),
        breaks={Invariant.STOOD_STILL},
        first=44,
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
