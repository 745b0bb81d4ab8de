"""The clocks of handler calls, the watch over the host, and the wait for the last runs: pure decisions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_sticky.jobs.keeper.ending import GRACE, Ending
from celery_sticky.jobs.keeper.held import NEVER, JobRun, JobTimeouts
from celery_sticky.jobs.keeper.host_watch import STEP, HostWatch
from celery_sticky.jobs.keeper.reconciler import JobReconciler
from celery_sticky.jobs.wire import Blocked, Call, Calls, Ended, Message, Pong, Started, Stop, Waits
from celery_sticky.stores.jobs import JobRecord, JobState, Report, Reserved, RunResult, SlotJobs

START, STOP = 40.0, 10.0
RECORD = JobRecord("job", "k", 0, "id", b"1", JobState.QUEUED, True, 0, 0, "", "", 0.0, 0)
BLOCKED = Blocked(1, "job", "k", 30.4)


class Slot:
    """A reconciler with one job, whose start was ordered at 0."""

    def __init__(self, record: JobRecord = RECORD) -> None:
        self.now = 0.0
        self.reconciler = JobReconciler(JobTimeouts(START, STOP, 5), place=lambda record, home: 1)
        self.reconciler.open(0, 1, 1)
        self.reconciler.fenced(0)
        self.see(record)
        ((run, _),) = self.reconciler.reserved(0, Reserved({"id": 1}, 2), self.now)
        self.run = run

    def see(self, record: JobRecord) -> None:
        self.reconciler.seen(0, SlotJobs(1, (record,), ()))
        self.said(0.0)

    def hear(self, message: Message) -> None:
        self.reconciler.runs.heard(message, self.now)

    def said(self, seconds: float) -> list[Message]:
        """Return what the host is told after so much time."""
        self.now += seconds
        self.reconciler.reconcile(self.now, lambda _: True)
        return [message for _, message in self.reconciler.take_says()]

    def stop(self) -> None:
        """A client stops the job."""
        self.see(replace(RECORD, state=JobState.STOPPING))

    def killed_after(self, seconds: float) -> bool:
        """Return whether the host is to be killed at this time, and is not a second before."""
        assert not (self.said(seconds - 1.0) or self.reconciler.take_overdue()), "too soon"
        wake_at = self.reconciler.wake_at()
        assert wake_at is not None and wake_at <= self.now + 1.0, "the keeper would sleep"
        self.said(1.0)
        return bool(self.reconciler.take_overdue())

    def reports(self) -> list[Report]:
        return [report for _, news in self.reconciler.settling.to_settle() for report in news.reports]


def test_the_time_of_a_start_that_waits_for_a_thread_begins_with_its_call() -> None:
    slot = Slot()
    slot.hear(Waits(1, Call.START))
    assert slot.said(1000.0) == []
    slot.hear(Calls(1, Call.START))
    assert slot.said(START - 1.0) == []
    assert slot.said(1.0) == [Stop(1)]
    assert slot.killed_after(STOP)
    slot.reconciler.host_ended(1, {}, slot.now)
    assert [(report.result, report.error) for report in slot.reports()] == [
        (RunResult.FAILED, "its start took longer than 40 s")
    ]


def test_the_time_of_a_start_of_which_nothing_is_heard_begins_with_the_order() -> None:
    slot = Slot()
    assert slot.said(START - 1.0) == []
    assert slot.said(1.0) == [Stop(1)]
    assert slot.killed_after(STOP)


@pytest.mark.parametrize("host", ["dies", "goes on"])
def test_a_start_that_was_never_called_has_not_failed(host: str) -> None:
    slot = Slot(replace(RECORD, fresh=False))
    slot.said(START)
    if host == "dies":
        slot.reconciler.host_ended(1, {}, slot.now)
    else:
        slot.hear(Ended(1))
    assert slot.reports() == []
    assert slot.reconciler.reconcile(slot.now, lambda _: True) == {0: ["id"]}, "it starts again"


def test_a_start_that_is_late_because_another_job_ended_its_process_has_not_failed() -> None:
    """Guards: a job that started beside one that blocked the loop was accused too, and waited for its own process."""
    slot = Slot(replace(RECORD, fresh=False))
    slot.hear(Calls(1, Call.START))
    assert slot.said(START) == [Stop(1)]
    slot.reconciler.host_ended(1, {7: "it blocked the event loop of its job host for 30 s"}, slot.now)
    assert slot.reports() == []
    assert slot.reconciler.reconcile(slot.now, lambda _: True) == {0: ["id"]}, "it starts again"


def test_the_time_of_a_stop_that_waits_for_a_thread_begins_with_its_call() -> None:
    slot = Slot()
    slot.hear(Started(1))
    assert slot.said(1000.0) == []
    slot.stop()
    slot.hear(Waits(1, Call.STOP))
    assert slot.said(1000.0) == [] and not slot.reconciler.take_overdue()
    slot.hear(Calls(1, Call.STOP))
    assert slot.killed_after(STOP)


def test_a_stop_of_which_nothing_is_heard_ends_the_host_in_time() -> None:
    slot = Slot()
    slot.hear(Started(1))
    slot.stop()
    assert slot.killed_after(STOP)


def test_a_stop_that_waits_for_the_start_under_way_has_its_own_time_after_that_of_the_start() -> None:
    slot = Slot()
    slot.said(5.0)
    slot.stop()
    slot.hear(Waits(1, Call.STOP))
    assert slot.killed_after(START - 5.0 + STOP)


def test_a_start_that_ends_while_its_stop_waits_gives_the_stop_its_own_time() -> None:
    slot = Slot()
    slot.stop()
    slot.hear(Waits(1, Call.STOP))
    slot.said(20.0)
    slot.hear(Started(1))
    slot.hear(Waits(1, Call.STOP))  # for a thread
    assert slot.said(1000.0) == [] and not slot.reconciler.take_overdue()
    slot.hear(Calls(1, Call.STOP))
    assert slot.killed_after(STOP)


def test_a_stop_of_a_start_that_waits_for_a_thread_is_not_waited_for_longer_than_a_stop() -> None:
    slot = Slot()
    slot.hear(Waits(1, Call.START))
    slot.stop()
    assert slot.killed_after(STOP)


def test_what_crosses_a_stop_about_the_start_does_not_change_the_time_of_the_stop() -> None:
    slot = Slot()
    slot.stop()
    slot.hear(Waits(1, Call.START))
    slot.hear(Calls(1, Call.START))
    assert slot.killed_after(STOP)


def test_a_withdrawn_start_leaves_a_job_that_never_ran() -> None:
    slot = Slot()
    slot.hear(Waits(1, Call.START))
    slot.stop()
    slot.hear(Ended(1))
    assert [report.result for report in slot.reports()] == [RunResult.ENDED]


# -- those to blame --------------------------------------------------------------------------------

BLAME = {1: "it blocked the event loop"}


@pytest.mark.parametrize("started", [True, False])
@pytest.mark.parametrize("moves", [True, False])
def test_a_job_that_was_to_blame_has_failed_with_that_also_if_it_was_to_move(started: bool, moves: bool) -> None:
    slot = Slot(replace(RECORD, fresh=False))
    if started:
        slot.hear(Started(1))
        slot.reports()
    if moves:
        slot.reconciler.stop(0)
        slot.said(0.0)
    slot.reconciler.host_ended(1, BLAME, slot.now)
    failed = slot.reports()[-1]
    assert (failed.result, failed.error) == (RunResult.FAILED, "it blocked the event loop")
    assert (failed.failures, failed.strikes, failed.apart) == (1, 1, True)
    assert slot.reconciler._held[0].failures["id"] == (1, slot.now + 1.0)


def test_what_did_not_stop_in_time_is_to_blame_and_nothing_else_in_its_process() -> None:
    slot = Slot()
    slot.hear(Started(1))
    slot.stop()
    slot.said(STOP)
    assert slot.reconciler.take_overdue() == {1: {1: "its stop took longer than 10 s"}}


def test_a_first_start_that_completes_while_its_slot_moves_is_no_failed_start_if_the_stop_then_fails() -> None:
    """Guards: a job that had started was removed, because its stop took too long when its slot moved at that moment."""
    slot = Slot()
    slot.hear(Calls(1, Call.START))
    slot.reconciler.stop(0)
    assert slot.said(0.0) == [Stop(1)]
    slot.hear(Started(1))
    slot.reconciler.host_ended(1, {1: "its stop took longer than 10 s"}, slot.now)
    assert [report.result for report in slot.reports()] == [RunResult.STARTED, RunResult.FAILED]


@pytest.mark.parametrize("lost", [False, True])
def test_jobs_in_processes_of_their_own_stop_first_unless_the_slot_is_lost(lost: bool) -> None:
    """Guards: all jobs of a slot stood still for as long as one bad job among them took to stop."""
    bad = replace(RECORD, key="bad", id="bad", apart=True)
    reconciler = JobReconciler(JobTimeouts(START, STOP, 5), place=lambda record, home: 2 if home.alone else 1)
    reconciler.open(0, 1, 1)
    reconciler.fenced(0)
    reconciler.seen(0, SlotJobs(1, (RECORD, bad), ()))
    runs = {run.record.id: run.ref for run, _ in reconciler.reserved(0, Reserved({"id": 1, "bad": 1}, 2), 0.0)}
    for ref in runs.values():
        reconciler.runs.heard(Started(ref), 0.0)
    reconciler.stop(0)
    if lost:
        reconciler.refused(0)
    reconciler.reconcile(1.0, lambda _: True)
    both, first = [(1, Stop(runs["id"])), (2, Stop(runs["bad"]))], [(2, Stop(runs["bad"]))]
    assert reconciler.take_says() == (both if lost else first)
    reconciler.runs.heard(Ended(runs["bad"]), 2.0)
    reconciler.reconcile(2.0, lambda _: True)
    assert reconciler.take_says() == ([] if lost else both[:1])


# -- the host --------------------------------------------------------------------------------------


def silent(watch: HostWatch, now: float, seconds: float) -> Blocked | str:
    """Return what is found when nothing is heard for so long, asked in steps; each before the last finds nothing."""
    for step in range(1, int(seconds / STEP)):
        assert not watch.overdue(now + step * STEP)
    return watch.overdue(now + seconds)


def test_a_host_that_does_not_answer_is_overdue_after_its_time() -> None:
    assert silent(HostWatch(30.0, 0.0), 0.0, 30.0) == "the job host has not answered for 30 s"


def test_a_host_that_answers_is_not() -> None:
    watch = HostWatch(30.0, 0.0)
    for now in range(1, 200, 20):
        watch.heard(Pong())
        assert not silent(watch, now, 20.0)


def test_of_a_host_whose_loop_is_blocked_the_job_is_known() -> None:
    watch = HostWatch(30.0, 0.0)
    watch.heard(BLOCKED)
    assert silent(watch, 0.0, 30.0) == BLOCKED
    watch = HostWatch(30.0, 0.0)
    watch.heard(BLOCKED)
    watch.heard(Pong())
    assert not watch.overdue(1.0)
    assert isinstance(silent(watch, 1.0, 30.0), str), "that one has gone on"


def test_a_host_may_be_silent_for_any_time_if_so_set() -> None:
    assert not silent(HostWatch(0.0, 0.0), 0.0, 500.0)


def test_the_time_for_which_the_worker_stood_still_does_not_count() -> None:
    watch = HostWatch(30.0, 0.0)
    watch.overdue(1.0)
    assert not watch.overdue(3600.0)


# -- the last runs ---------------------------------------------------------------------------------


def runs(count: int, due: float = NEVER) -> list[JobRun]:
    return [JobRun(ref, 0, RECORD, 1, 1, 0.0, due=due) for ref in range(count)]


def test_a_leaving_worker_waits_as_long_as_runs_end() -> None:
    ending = Ending(STOP, 0.0)
    for left in range(200, 0, -1):
        assert ending.goes_on(runs(left), (200 - left) * 5.0)
    assert not ending.goes_on([], 1000.0)


def test_a_leaving_worker_does_not_wait_for_runs_of_which_none_ends() -> None:
    ending = Ending(STOP, 0.0)
    assert ending.goes_on(runs(3), STOP + GRACE - 1)
    assert not ending.goes_on(runs(3), STOP + GRACE)


def test_a_leaving_worker_waits_for_a_call_as_long_as_it_may_take() -> None:
    ending = Ending(STOP, 0.0)
    assert ending.goes_on(runs(3, due=START + STOP), START + STOP)
    assert not ending.goes_on(runs(3, due=START + STOP), START + STOP + GRACE)


def test_in_a_cold_shutdown_it_waits_no_longer_than_for_one_stop() -> None:
    ending = Ending(STOP, 0.0, cold=True)
    assert ending.goes_on(runs(2, due=START), STOP + GRACE - 1)
    assert not ending.goes_on(runs(1, due=START), STOP + GRACE)
    assert not Ending(STOP, 0.0, cold=True).goes_on([], 1.0)
