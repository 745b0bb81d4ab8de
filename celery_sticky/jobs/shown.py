"""The state of a job as it is shown: what its record says, as long as its worker is alive and still has it. Pure.

A record keeps what a worker wrote last. When that worker is gone, nobody corrects it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from celery_sticky.errors import AssignmentFailed, NotPinned, NoWorker
from celery_sticky.keyspace import Keyspace, Worker, placement_of, workers_of
from celery_sticky.ownership.view import View
from celery_sticky.slots import WorkerQueue
from celery_sticky.stores.base import Reading
from celery_sticky.stores.jobs import REPEATED, JobGroup, JobRecord, JobState

WAITING = "waiting"
"""The state of a job that should run, and that no live worker has begun to start."""
NO_WORKER = "no worker is alive"
MISPLACED = "it was dispatched for a placed keyspace, and this is none: see `celery sticky doctor`"
NOT_STARTED = "no live worker has started it"


@dataclass(frozen=True, slots=True)
class Place:
    """Who may run the jobs of a slot or of a key."""

    what: str = "slot"
    """`slot` or `key`."""
    owner: str = ""
    """The live worker that may run them; empty: see `obstacle`."""
    target: str = ""
    """The worker that is to own it; empty: nobody."""
    epoch: int | None = None
    """The owner's epoch; None: unknown."""
    obstacle: str = ""
    """Why no worker can run them now."""

    def has(self, job: JobRecord | JobGroup) -> bool:
        """Return whether the worker that a record names is the owner, and has started the job as the owner."""
        return bool(job.worker) and job.worker == self.owner and self.epoch in (None, job.epoch)

    @property
    def reason(self) -> str:
        """Why a job waits that the owner has not begun to start."""
        if self.obstacle:
            return self.obstacle
        if not self.target:
            return f"its {self.what} leaves {self.owner}, and no worker can take it"
        if self.target != self.owner:
            still = f": {self.owner} still has tasks or jobs of this slot" if self.what == "slot" else ""
            return f"its {self.what} moves from {self.owner} to {self.target}{still}"
        return f"{self.owner} has its {self.what} and has not started it yet"


@dataclass(frozen=True, slots=True)
class Owners:
    """The live workers of a keyspace, and what they own."""

    view: View | None
    alive: frozenset[str]
    """The names of the members that live."""
    placed: Keyspace | None = None
    """The keyspace, if it is a placed one."""
    pins: Mapping[str, str] | None = None
    """Key -> incarnation that pinned it; None: unknown, so each job is taken to be with its worker if that lives."""
    workers: tuple[Worker, ...] = ()

    @classmethod
    def read(
        cls, reading: Reading, lease_ttl: float, placed: Keyspace | None = None, pins: Mapping[str, str] | None = None
    ) -> Owners:
        """Take those members for alive that have sent a heartbeat in the last `lease_ttl` seconds.

        A member without a heartbeat for so long has lost its lease, and its jobs have ended.
        """
        members = reading.view.members.values() if reading.view is not None else ()
        alive = {one.name for one in members if reading.silent.get(one.incarnation, 0.0) <= lease_ttl}
        workers = workers_of(reading.view) if reading.view is not None else ()
        return cls(reading.view, frozenset(alive), placed, pins, workers)

    def of(self, job: JobRecord | JobGroup) -> Place:
        """Return who may run a job."""
        if self.view is None or not self.alive:
            return Place(obstacle=NO_WORKER)
        if isinstance(job.slot, int):
            return self._of_slot(self.view, job.slot)
        if self.placed is None:
            return Place("key", obstacle=MISPLACED)
        if self.pins is None:
            lives = job.worker in self.alive
            return Place("key", job.worker, job.worker) if lives else Place("key", obstacle=NOT_STARTED)
        return self._of_key(self.view, self.placed, self.pins, job)

    def _of_slot(self, view: View, slot: int) -> Place:
        if slot >= view.slots:
            return Place(obstacle=f"the keyspace has {view.slots} slots: no worker reads its slot {slot}")
        owner, target = view.owner[slot], view.target[slot]
        if owner is None:
            return Place(obstacle="its slot has no owner yet")
        if owner not in self.alive:
            return Place(obstacle=f"{owner} has its slot and sends no heartbeats: another worker will take it")
        return Place("slot", owner, target or "", view.epoch[slot])

    def _of_key(self, view: View, placed: Keyspace, pins: Mapping[str, str], job: JobRecord | JobGroup) -> Place:
        try:
            where = placement_of(placed, job.key, view.slots, view, self.workers, pins.get(job.key))
        except (NoWorker, NotPinned, AssignmentFailed) as error:
            return Place("key", obstacle=str(error))
        worker = where.worker if isinstance(where, WorkerQueue) else view.owner[where]
        if worker is None:
            return Place("key", obstacle="its slot has no owner yet")
        if worker not in self.alive:
            return Place("key", obstacle=f"{worker} has its key and sends no heartbeats")
        moves = job.worker in self.alive and job.worker != worker
        return Place("key", job.worker if moves else worker, worker)


def shown(job: JobRecord | JobGroup, place: Place, now: float = 0.0, retry_at: float = 0.0) -> tuple[str, str]:
    """Return the state of a job and the reason for it; `now` and `retry_at` are by the store's clock."""
    state = job.state
    if state in (JobState.PAUSED, JobState.FAILED):
        return state.value, ""
    if state in (JobState.STOPPING, JobState.PAUSING):
        return state.value, place.obstacle
    if state is JobState.QUEUED or not place.has(job):
        return WAITING, place.reason
    if state is JobState.FAILING and not job.failures:  # it did not fail: its worker says why it does not start it
        return WAITING, job.error if isinstance(job, JobRecord) else place.reason
    if state is JobState.FAILING:
        return state.value, _why_not_yet(job, retry_at - now)
    if job.failures >= REPEATED:
        verb = "runs" if state is JobState.RUNNING else "starts"
        return JobState.FAILING.value, f"it {verb} again after {job.failures} failures"
    return state.value, ""


def _why_not_yet(job: JobRecord | JobGroup, left: float) -> str:
    if left > 0:
        return f"it backs off for {left:.0f} s more"
    if job.apart:
        return "it waits for a process of its own: see sticky_job_quarantine"
    return "its next start is due"
