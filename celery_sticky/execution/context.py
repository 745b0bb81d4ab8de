"""What a Celery worker has of celery-sticky, shared by its steps as `worker.sticky`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from celery_sticky.delivery.courier import Courier
from celery_sticky.execution.results import Results
from celery_sticky.keyed import KeyedTasks
from celery_sticky.membership.lease import Lease, boottime
from celery_sticky.membership.loop_watch import LoopWatch
from celery_sticky.membership.member import Member
from celery_sticky.placement.placer import Placer
from celery_sticky.platform.reaper import Leaders
from celery_sticky.settings import Settings


@dataclass(slots=True)
class WorkerContext:
    """A worker's part in its keyspaces."""

    hostname: str
    settings: Settings
    tasks: KeyedTasks
    keyspaces: Mapping[str, int]
    """Name -> slots."""
    lease: Lease
    has_processes: bool
    """Whether tasks run in processes of their own, which can be killed."""
    courier: Courier
    members: dict[str, Member] = field(default_factory=dict)
    jobs: Any = None
    """The jobs' side of the slots (`execution.jobs.WorkerJobs`); None where the app declares none."""
    placers: dict[str, Placer] = field(default_factory=dict)
    """Of the keyspaces that direct keys to workers."""
    refusals: Any = None
    """`execution.refusals.Refusals`: tells whoever waits for what was buried unstarted."""
    results: Results = field(default_factory=Results)
    """Writes results that a worker's loop must not wait for."""
    loop_watch: LoopWatch | None = None
    """Asks Celery's loop for signs of life; None where it is not watched."""
    runs: dict[int, Any] = field(default_factory=dict)
    """The runs whose start is reserved and that have not ended."""
    store_url: str = ""
    """Where the store is, without passwords."""
    servers: Mapping[str, Any] = field(default_factory=dict)
    """What it is → the Kombu connection that leads there; nothing is sent over it."""
    leaders: Leaders = field(default_factory=Leaders)
    """The processes of the pool that have run keyed tasks."""
    ending: bool = False
    """A cold shutdown gives up on the running tasks: they run again elsewhere, and are not to blame."""

    def give_up(self) -> None:
        """End the running tasks: Celery kills processes, elsewhere the end of trust interrupts them."""
        self.ending = True
        if not self.has_processes:
            self.lease.close()

    def describe(self) -> dict[str, Any]:
        """Return what `inspect stats`, `inspect sticky` and the command line show: plain JSON."""
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
        }
