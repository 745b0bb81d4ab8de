"""The worker context: the state of celery-sticky in a Celery worker, shared by its boot steps as `worker.sticky`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kombu import Connection

from celery_sticky.delivery.courier import Courier
from celery_sticky.execution.results import Results
from celery_sticky.keyed import KeyedTasks
from celery_sticky.membership.lease import Lease, boottime
from celery_sticky.membership.loop_watch import LoopWatch
from celery_sticky.membership.member import Member
from celery_sticky.placement.placer import Placer
from celery_sticky.platform.reaper import Leaders
from celery_sticky.settings import Settings

if TYPE_CHECKING:
    from celery_sticky.execution.children import Children
    from celery_sticky.execution.interrupts import Interrupts
    from celery_sticky.execution.jobs import WorkerJobs
    from celery_sticky.execution.refusals import Refusals
    from celery_sticky.execution.run import TaskRun


@dataclass(slots=True, kw_only=True)
class WorkerContext:
    """A worker's context in its keyspaces."""

    hostname: str
    settings: Settings
    tasks: KeyedTasks
    keyspaces: Mapping[str, int]
    """Name -> slots."""
    has_processes: bool
    """Whether tasks run in their own processes, which can be killed."""
    store_url: str
    """The URL of the store, without passwords."""
    servers: Mapping[str, Connection]
    """Role → the Kombu connection to the server; nothing is sent over it."""
    lease: Lease
    courier: Courier
    members: Mapping[str, Member]
    placers: Mapping[str, Placer]
    """The placers of the placed keyspaces."""
    jobs: WorkerJobs | None
    """None if the app declares no jobs."""
    refusals: Refusals
    """Fails the tasks of messages that were buried before they started."""
    results: Results
    """Writes results that a worker's loop must not wait for."""
    loop_watch: LoopWatch | None
    """Checks that Celery's loop responds; None if the loop is not watched."""
    trust_watch: Children | Interrupts
    """Ends tasks when the trust that they rely on ends."""
    runs: dict[int, TaskRun]
    """The runs whose start is reserved and that have not ended."""
    leaders: Leaders = field(default_factory=Leaders)
    """The processes of the pool that have run keyed tasks."""
    ending: bool = False
    """A cold shutdown ends the running tasks: they run again elsewhere, and the deaths are not their fault."""

    def give_up(self) -> None:
        """End the running tasks: Celery kills processes; in other pools the end of trust interrupts the tasks."""
        self.ending = True
        if not self.has_processes:
            self.lease.close()

    def drain(self, *, undo: bool) -> None:
        """Give away everything in every keyspace, and take nothing until this is undone."""
        for member in self.members.values():
            member.drain(undo=undo)

    def describe(self) -> dict[str, Any]:
        """Return the output of `inspect stats`, `inspect sticky` and the command line, as plain JSON."""
        return {
            "worker": self.hostname,
            "store": self.store_url,
            "tasks": self.courier.counts(),
            "loop": self.loop_watch.describe() if self.loop_watch is not None else None,
            "keyspaces": {name: self._describe(member) for name, member in self.members.items()},
        }

    def _describe(self, member: Member) -> dict[str, Any]:
        snapshot, now = member.snapshot, boottime()
        view = snapshot.view
        slots, moving = member.slots()
        trusted = max(0.0, snapshot.trust_until - now)
        running = sum(n for (keyspace, _), n in self.courier.running_by_slot().items() if keyspace == member.keyspace)
        return {
            "phase": snapshot.phase.value,
            "incarnation": snapshot.incarnation,
            "version": view.version if view else None,
            "slots": slots,
            "moving": moving,
            "running": running,
            "trust_seconds": trusted,
            "lease_age": self.settings.lease_ttl - self.settings.lease_margin - trusted,
            "store_lost": snapshot.store_lost,
            "draining": member.draining,
            "drained": member.drained,
        }
