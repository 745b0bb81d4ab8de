"""What happens to runs, as facts for logs, signals and metrics. Pure: somebody else tells them."""

from __future__ import annotations

from celery_sticky.instrumentation.facts import Fact, JobFailed, JobStarted, JobStopped
from celery_sticky.jobs.keeper.held import HeldSlot, JobRun, RunStage
from celery_sticky.stores.jobs import JobRecord, JobState

BY_ITSELF = "it ended by itself"
HOST_ENDED = "its process ended"
YIELDS = "the lease of its worker ends"
BACK = "it has run well in a process of its own, and goes back to the others"


class History:
    """The facts about runs of one keyspace in one worker, until they are taken. `now` is in seconds on one clock."""

    def __init__(self, worker: str, keyspace: str) -> None:
        self._worker, self._keyspace = worker, keyspace
        self._facts: list[Fact] = []

    def started(self, run: JobRun, now: float) -> None:
        """Note that its start has completed; call this before its stage changes."""
        run.started_at = now
        self._facts.append(JobStarted(*self._about(run), now - run.since))

    def ended(self, run: JobRun, now: float, error: str) -> None:
        """Note that nothing of it is left. `error`: why it failed, or what its stop raised, or empty."""
        if run.late or (error and run.stage is not RunStage.STOPPING):
            self._facts.append(JobFailed(*self._about(run), now - (run.started_at or run.ordered_at), error))
            return
        if run.stage is not RunStage.STOPPING:
            run.why = BY_ITSELF
        self.stopped(run, now, error)

    def stopped(self, run: JobRun, now: float, error: str) -> None:
        """Note that it was stopped or ended by itself, for its reason. `error`: what its stop raised, or empty."""
        why = run.why + (f"; its stop raised {error}" if error else "")
        until = run.since if run.stage is RunStage.STOPPING else now
        ran = until - run.started_at if run.started_at else 0.0
        self._facts.append(JobStopped(*self._about(run), now - until, why, ran))

    def lost(self, run: JobRun, now: float, error: str) -> None:
        """Note that it ended with its process. `error`: what it did, if it is to blame, or empty."""
        if error:
            self._facts.append(JobFailed(*self._about(run), now - (run.started_at or run.ordered_at), error))
            return
        ran = now - run.started_at if run.started_at else 0.0
        self._facts.append(JobStopped(*self._about(run), 0.0, HOST_ENDED, ran))

    def take(self) -> list[Fact]:
        """Return, once, the facts."""
        facts, self._facts = self._facts, []
        return facts

    def _about(self, run: JobRun) -> tuple[str, str, str, str, str, int, int]:
        record = run.record
        return self._worker, self._keyspace, record.name, record.key, record.id, record.attempt, run.epoch


def why_stopped(held: HeldSlot, run: JobRun, record: JobRecord | None, *, timed_out: bool) -> str:
    """Return why a run is to stop, given the record of its job, for people."""
    if timed_out:
        return "its start took too long" if run.late else "its job host did not call its start"
    if held.stopping or held.epoch != run.epoch:
        return "its key moves"
    if record is None or record.id != run.record.id or record.state is JobState.STOPPING:
        return "it was stopped"
    return "it was restarted" if run.record.generation != record.generation else "it was paused"
