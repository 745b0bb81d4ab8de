"""The runs of a job reconciler, and what their host says of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from celery_sticky.jobs.keeper.agenda import Agenda
from celery_sticky.jobs.keeper.clocks import Clocks
from celery_sticky.jobs.keeper.held import NEVER, HeldSlot, JobRun, JobTimeouts, RunStage, is_built_in, job_key
from celery_sticky.jobs.keeper.history import YIELDS, History
from celery_sticky.jobs.keeper.home import Home
from celery_sticky.jobs.keeper.host_flow import Blame
from celery_sticky.jobs.keeper.saving import Saving
from celery_sticky.jobs.keeper.settling import Settling
from celery_sticky.jobs.retry import Retry, settled_after
from celery_sticky.jobs.wire import (
    Calls,
    Ended,
    Failed,
    Message,
    Noted,
    Save,
    Started,
    Taken,
    Unhandled,
    Waits,
    Yielded,
)
from celery_sticky.slots import Slot
from celery_sticky.stores.jobs import STOPPED, JobRecord, Report, RunResult
from celery_sticky.stores.notes import FailedDelivery


class Runs:
    """The runs in the job hosts. `now` is in seconds on one clock."""

    def __init__(
        self,
        timeouts: JobTimeouts,
        retry_of: Callable[[str], Retry],
        refs: Iterator[int],
        held: Mapping[Slot, HeldSlot],
        settling: Settling,
        saving: Saving,
        agenda: Agenda,
        history: History,
    ) -> None:
        """`retry_of` returns the retry policy of the jobs of a name."""
        self._timeouts, self._retry_of, self._refs = timeouts, retry_of, refs
        self._held, self._settling, self._saving, self._agenda = held, settling, saving, agenda
        self.clocks, self.history = Clocks(timeouts, agenda), history
        self._runs: dict[int, JobRun] = {}

    def all(self) -> list[JobRun]:
        """Return the runs."""
        return list(self._runs.values())

    def begin(self, slot: Slot, held: HeldSlot, record: JobRecord, host: int, now: float) -> JobRun:
        """Add a run of this record, whose start was reserved, in the process of this number."""
        run = JobRun(next(self._refs), slot, record, held.epoch, held.membership, now, host)
        run.home = held.home_of(record, self._timeouts.isolated)
        held.wanted[job_key(record)] = record
        held.runs[job_key(record)] = self._runs[run.ref] = run
        self.clocks.start_ordered(run, now)
        return run

    def drop(self, held: HeldSlot) -> None:
        """Forget the runs of a slot that another worker already has."""
        for run in held.runs.values():
            del self._runs[run.ref]

    def host_ended(self, number: int, blame: Blame, now: float) -> None:
        """Take in the end of a process and of all its runs. Wanted jobs start again in another one."""
        for run in [run for run in self._runs.values() if run.host == number]:
            held = self._held[run.slot]
            del self._runs[run.ref], held.runs[job_key(run.record)]
            self._agenda.add(run.slot)
            # If another ended the process, for example by blocking its loop, that may have made this one late.
            late = run.late and (run.ref in blame or not blame)
            error = self._too_late if late else blame.get(run.ref, "")
            self.history.lost(run, now, error)
            if held.epoch == run.epoch and error:
                self._on_blamed(held, run, error, now)
            elif held.epoch == run.epoch:
                self._withdraw(run)

    def heard(self, message: Message, now: float) -> None:
        """Take in a message of a host about a run."""
        match message:
            case Waits(ref, call) if run := self._runs.get(ref):
                self.clocks.waits(run, call, now)
            case Calls(ref, call) if run := self._runs.get(ref):
                self.clocks.called(run, call, now)
            case Started(ref) if run := self._runs.get(ref):
                self._on_started(run, now)
            case Failed(ref, error) if run := self._runs.get(ref):
                self._on_ended(run, error or "its start failed", now)
            case Ended(ref, error) if run := self._runs.get(ref):
                self._on_ended(run, error, now)
            case Yielded(ref, error) if run := self._runs.get(ref):
                self._on_yielded(run, error, now)
            case Save(ref) if run := self._runs.get(ref):
                self._saving.add(run, message)
            case Taken(ref, note, delivery) if run := self._runs.get(ref):
                run.taken[note] = delivery
            case Noted(ref, note) if run := self._runs.get(ref):
                run.taken.pop(note, None)
                self._settling.noted(run.slot, note)
            case Unhandled(ref, note, delivery, error) if run := self._runs.get(ref):
                run.taken.pop(note, None)
                self._on_unhandled(run, note, delivery, error)

    def settle(self, held: HeldSlot, run: JobRun) -> None:
        """Note that a run has gone well for long enough: earlier failures of its job count no more."""
        run.settles_at = NEVER
        held.failures.pop(run.record.id, None)
        held.apart.discard(run.record.id)
        self.report(run, Report(run.record.id, RunResult.SETTLED))

    def report(self, run: JobRun, report: Report) -> None:
        """Queue the result of a run for storing."""
        if not is_built_in(run.record.id):
            self._settling.report(run.slot, report)

    def _on_unhandled(self, run: JobRun, note: str, delivery: int, error: str) -> None:
        dead = delivery >= self._timeouts.deliveries_of(run.record.name)
        self._settling.failed(run.slot, FailedDelivery(note, delivery, error, dead))
        self._agenda.add(run.slot)

    def _on_started(self, run: JobRun, now: float) -> None:
        starting = run.stage is RunStage.STARTING
        if starting:
            self.history.started(run, now)
        self.clocks.started(run, now)
        if run.late:
            return
        run.started = True  # also if it is to stop by now: how it stops says nothing about its start
        held = self._held[run.slot]
        if starting and (run.record.failures or run.home is Home.QUARANTINE or run.record.id in held.failures):
            run.settles_at = now + _settled_after(run)
            self._agenda.add_at(run.settles_at, run.slot)
        self.report(run, Report(run.record.id, RunResult.STARTED))
        self._settling.look(run.slot)
        self._agenda.add(run.slot)

    def _on_ended(self, run: JobRun, error: str, now: float) -> None:
        held = self._held[run.slot]
        del self._runs[run.ref], held.runs[job_key(run.record)]
        self._agenda.add(run.slot)
        error = self._too_late if run.late else error
        self.history.ended(run, now, error)
        if run.stage is RunStage.STOPPING and not run.late:
            if held.stopping or held.epoch != run.epoch or run.again:
                self._withdraw(run)  # the job is still wanted: elsewhere, or here again
                return
            if error:
                self.report(run, Report(run.record.id, RunResult.UNCLEAN, error))
                return
        if error:
            self._on_failed(held, run, error, now)
        else:
            self.report(run, Report(run.record.id, RunResult.ENDED, "" if run.started else STOPPED))

    def _on_yielded(self, run: JobRun, error: str, now: float) -> None:
        run.why = YIELDS
        self.history.stopped(run, now, error)
        del self._runs[run.ref], self._held[run.slot].runs[job_key(run.record)]
        self._agenda.add(run.slot)
        self._withdraw(run)

    @property
    def _too_late(self) -> str:
        return f"its start took longer than {self._timeouts.start_timeout:g} s"

    def _on_blamed(self, held: HeldSlot, run: JobRun, error: str, now: float) -> None:
        """Handle a run that has ended its process, or had to be ended with it."""
        for note, delivery in run.taken.items():
            self._on_unhandled(run, note, delivery, error)
        if run.home is not Home.ISOLATED:
            held.apart.add(run.record.id)
        if run.is_first and not run.record.durable and not (run.home.alone or run.late):
            # Its failure would remove it, but others may have been executed at the same time.
            held.failures[run.record.id] = (1, now)
            self._withdraw(run)
        elif run.stage is RunStage.STOPPING and not (run.late or run.again or held.stopping):
            self.report(run, Report(run.record.id, RunResult.UNCLEAN, error))  # nobody wants it any more
        else:
            self._on_failed(held, run, error, now, strike=run.home is not Home.ISOLATED)

    def _withdraw(self, run: JobRun) -> None:
        if run.is_first:
            self.report(run, Report(run.record.id, RunResult.WITHDRAWN))

    def _on_failed(self, held: HeldSlot, run: JobRun, error: str, now: float, *, strike: bool = False) -> None:
        record, retry = run.record, self._retry_of(run.record.name)
        long = run.stage is RunStage.RUNNING and now >= run.since + _settled_after(run)
        failures = 1 if long else held.failures.get(record.id, (record.failures, 0.0))[0] + 1
        pause = retry.pause(failures)
        at = now + pause
        held.failures[record.id] = (failures, at)
        self._agenda.add_at(at, run.slot)
        result = RunResult.GIVEN_UP if retry.gives_up(failures) else RunResult.FAILED
        strikes, apart = record.strikes + strike, record.id in held.apart or record.apart
        self.report(run, Report(record.id, result, error, failures, strikes, apart, pause))


def _settled_after(run: JobRun) -> float:
    return settled_after(run.record.strikes, apart=run.home is Home.QUARANTINE)
