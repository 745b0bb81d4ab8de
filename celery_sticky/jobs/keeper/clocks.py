"""When the handler calls of runs take too long. A timeout runs from the call, not from the order. Pure.

Before the call, the order is timed in the same way, unless the host says that the call has to wait: then the clock
stands still. So a host that says nothing, because its loop is blocked, is not waited for longer than a call.
"""

from __future__ import annotations

from celery_sticky.jobs.keeper.agenda import Agenda
from celery_sticky.jobs.keeper.held import NEVER, JobRun, JobTimeouts, RunStage
from celery_sticky.jobs.wire import Call


class Clocks:
    """The clocks of the runs of one keyspace. `now` is in seconds on one clock."""

    def __init__(self, timeouts: JobTimeouts, agenda: Agenda) -> None:
        self._timeouts, self._agenda = timeouts, agenda

    def start_ordered(self, run: JobRun, now: float) -> None:
        """Note that the host was told to start it."""
        run.ordered_at, run.start_due = now, now + self._timeouts.start_timeout
        self._set(run, run.start_due)

    def stop_ordered(self, run: JobRun, now: float) -> None:
        """Note that the host was told to stop it."""
        run.stage, run.since = RunStage.STOPPING, now
        self._set(run, now + self._timeouts.stop_timeout)

    def waits(self, run: JobRun, call: Call, now: float) -> None:
        """Note that a call has to wait: it may take as long as it must, once it begins."""
        if call is Call.START:
            run.start_due = NEVER
            if run.stage is RunStage.STARTING:
                self._set(run, NEVER)
        elif run.stage is RunStage.STOPPING:
            # It waits for a thread, or for the start under way, which has its own timeout.
            self._set(run, max(now, run.start_due) + self._timeouts.stop_timeout)

    def called(self, run: JobRun, call: Call, now: float) -> None:
        """Note that a call begins."""
        if call is Call.START:
            run.called = True
            run.start_due = now + self._timeouts.start_timeout
            if run.stage is RunStage.STARTING:
                self._set(run, run.start_due)
        elif run.stage is RunStage.STOPPING:
            self._set(run, now + self._timeouts.stop_timeout)

    def started(self, run: JobRun, now: float) -> None:
        """Note that its start has completed."""
        run.start_due = NEVER
        if run.stage is RunStage.STARTING:
            run.stage, run.since, run.due = RunStage.RUNNING, now, NEVER

    def _set(self, run: JobRun, due: float) -> None:
        run.due = due
        if due < NEVER:
            self._agenda.add_at(due, run.slot)
