"""The jobs of a placed fleet: where each one ran, and which notifications it received."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from celery_sticky import Sticky
from celery_sticky.jobs.info import JobInfo
from celery_sticky.testing.history import Execution, Kind, pair
from celery_sticky.testing.recorder import Recorder
from celery_sticky.testing.waiting import wait_until
from harness.keyed_fleet import node
from harness.placed_fleet import PlacedFleet


class PlacedJobs:
    """The jobs `sync` of a fleet's keyspace."""

    def __init__(self, fleet: PlacedFleet) -> None:
        self.fleet, self.keyspace = fleet, fleet.keyspace
        self.jobs = Sticky.of(fleet.app).jobs
        self._history = Recorder(fleet.config.history.with_name("jobs.jsonl"))

    def dispatch(self, *keys: str, timeout: float = 20.0, **payload: Any) -> None:
        """Dispatch a job for each key, and wait until it has started."""
        for key in keys:
            self.jobs.dispatch("sync", key, payload, keyspace=self.keyspace, timeout=timeout)

    def notify(self, key: str, payload: Any) -> None:
        """Send a notification to the job of a key."""
        self.jobs.notify("sync", key, payload, keyspace=self.keyspace)

    def stop(self, key: str, timeout: float = 20.0) -> None:
        """Stop the job of a key, and wait until nothing is left of it."""
        self.jobs.stop("sync", key, keyspace=self.keyspace, timeout=timeout)

    def info(self, key: str) -> JobInfo | None:
        """Return the information that the store has about the job of a key."""
        return self.jobs.get("sync", key, keyspace=self.keyspace)

    def where(self) -> dict[str, str]:
        """Return key → short name of the worker that runs its job, according to the store."""
        infos = self.jobs.list("sync", keyspace=self.keyspace)
        return {info.key: info.worker.partition("@")[0] for info in infos if info.state == "running"}

    def wait_at(self, wanted: Mapping[str, str], timeout: float = 30.0) -> None:
        """Wait until exactly these jobs run, each on its worker."""

        def there() -> bool:
            return self.where() == dict(wanted) == self.running()

        wait_until(there, timeout, f"{wanted}, not {self.where()}, {self.running()}\n{self.fleet}", 0.05)

    def running(self) -> dict[str, str]:
        """Return key → short name of the worker that runs its job, according to the records of the jobs."""
        last, deaths = {run.start.key: run for run in self.runs()}, self.fleet.deaths
        going = [run.start for run in last.values() if not run.ended and run.start.pid not in deaths]
        return {start.key: start.worker.partition("@")[0] for start in going}

    def runs(self, *keys: str) -> list[Execution]:
        """Return the runs in the order of their starts. A run ends when its process dies."""
        ordered = sorted(self._history.events(), key=lambda event: event.at)
        return [run for run in pair(ordered, self.fleet.deaths) if not keys or run.start.key in keys]

    def ran(self, key: str) -> list[str]:
        """Return the short name of the worker of each start of the job of a key, in order."""
        return [run.start.worker.partition("@")[0] for run in self.runs(key)]

    def notes(self, key: str) -> list[Any]:
        """Return the notifications that the job of a key received, in order."""
        return [e.n for e in self._history.events() if e.kind is Kind.PUBLISHED and e.key == key]

    def check(self, *, keys: Collection[str] = ()) -> None:
        """Check that no two runs of a job overlapped, and that each run had a higher token than the one before."""
        last: dict[str, Execution] = {}
        for run in self.runs(*keys):
            before = last.get(run.start.key)
            if before is not None:
                assert before.until <= run.start.at, f"two runs overlap: {before} and {run}"
                assert (before.start.epoch or 0) < (run.start.epoch or 0), f"not a higher token: {before}, {run}"
            last[run.start.key] = run


__all__ = ["PlacedJobs", "node"]
