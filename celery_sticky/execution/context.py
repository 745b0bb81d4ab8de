"""The worker context: the state of celery-sticky in a Celery worker, shared by its boot steps as `worker.sticky`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from celery_sticky.delivery.courier import Courier
from celery_sticky.execution.results import Results
from celery_sticky.instrumentation.registry import Instruments
from celery_sticky.keyed import KeyedTasks
from celery_sticky.membership.lease import Lease, boottime
from celery_sticky.membership.loop_watch import LoopWatch
from celery_sticky.membership.member import Member
from celery_sticky.placement.placer import Placer
from celery_sticky.platform.reaper import Leaders
from celery_sticky.settings import Settings


@dataclass(slots=True)
class WorkerContext:
    """A worker's context in its keyspaces."""

    hostname: str
    settings: Settings
    tasks: KeyedTasks
    keyspaces: Mapping[str, int]
    """Name -> slots."""
    lease: Lease
    has_processes: bool
    """Whether tasks run in their own processes, which can be killed."""
    courier: Courier
    instruments: Instruments = field(default_factory=Instruments)
    """Who hears what has happened in this worker."""
    members: dict[str, Member] = field(default_factory=dict)
    jobs: Any = None
    """The worker's jobs (`execution.jobs.WorkerJobs`); None if the app declares none."""
    placers: dict[str, Placer] = field(default_factory=dict)
    """The placers of the placed keyspaces."""
    refusals: Any = None
    """`execution.refusals.Refusals`: fails the tasks of messages that were buried before they started."""
    results: Results = field(default_factory=Results)
    """Writes results that a worker's loop must not wait for."""
    loop_watch: LoopWatch | None = None
    """Checks that Celery's loop responds; None if the loop is not watched."""
    runs: dict[int, Any] = field(default_factory=dict)
    """The runs whose start is reserved and that have not ended."""
    store_url: str = ""
    """The URL of the store, without passwords."""
    servers: Mapping[str, Any] = field(default_factory=dict)
    """Role → the Kombu connection to the server; nothing is sent over it."""
    watch: Any = None
    """Ends tasks when the trust that they rely on ends (`Children` or `Interrupts`)."""
    leaders: Leaders = field(default_factory=Leaders)
    """The processes of the pool that have run keyed tasks."""
    ending: bool = False
    """A cold shutdown ends the running tasks: they run again elsewhere, and the deaths are not their fault."""

    def give_up(self) -> None:
        """End the running tasks: Celery kills processes; in other pools the end of trust interrupts the tasks."""
        self.ending = True
        if not self.has_processes:
            self.lease.close()

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
        }
