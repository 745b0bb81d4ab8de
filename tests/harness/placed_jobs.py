"""An eye on the jobs of a placed fleet: what ran where, and what it was told."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from celery_sticky import Sticky
from celery_sticky.jobs.client import JobInfo
from celery_sticky.testing.history import Execution, Kind, pair
from celery_sticky.testing.recorder import Recorder
from celery_sticky.testing.waiting import wait_until
from harness.keyed_fleet import node
from harness.placed_fleet import PlacedFleet


class PlacedJobs:
    """The jobs `sync` of the keyspace of a fleet."""

    def __init__(self, fleet: PlacedFleet) -> None:
        self.fleet, self.keyspace = fleet, fleet.keyspace
        self.jobs = Sticky.of(fleet.app).jobs
        self._history = Recorder(fleet.config.history.with_name("jobs.jsonl"))

    def dispatch(self, *keys: str, timeout: float = 20.0, **payload: Any) -> None:
        """Want a job of each key, and wait until they have started."""
        for key in keys:
            self.jobs.dispatch("sync", key, payload, keyspace=self.keyspace, timeout=timeout)

    def notify(self, key: str, payload: Any) -> None:
        """Tell the job of a key something."""
        self.jobs.notify("sync", key, payload, keyspace=self.keyspace)

    def stop(self, key: str, timeout: float = 20.0) -> None:
        """Want the job of a key no more, and wait until nothing is left of it."""
        self.jobs.stop("sync", key, keyspace=self.keyspace, timeout=timeout)

    def info(self, key: str) -> JobInfo | None:
        """Return what is known of the job of a key."""
        return self.jobs.get("sync", key, keyspace=self.keyspace)

    def where(self) -> dict[str, str]:
        """Return the short name of the worker that runs the job of a key now, as the store says it."""
        infos = self.jobs.list("sync", keyspace=self.keyspace)
        return {info.key: info.worker.partition("@")[0] for info in infos if info.state == "running"}

    def wait_at(self, wanted: Mapping[str, str], timeout: float = 30.0) -> None:
        """Wait until these jobs, and no others, run at these workers."""

        def there() -> bool:
            return self.where() == dict(wanted) == self.running()

        wait_until(there, timeout, f"{wanted}, not {self.where()}, {self.running()}\n{self.fleet}", 0.05)

    def running(self) -> dict[str, str]:
        """Return the short name of the worker in which the job of a key runs, as the jobs have written it down."""
        last, deaths = {run.start.key: run for run in self.runs()}, self.fleet.deaths
        going = [run.start for run in last.values() if not run.ended and run.start.pid not in deaths]
        return {start.key: start.worker.partition("@")[0] for start in going}

    def runs(self, *keys: str) -> list[Execution]:
        """Return the runs, in the order of their starts; those of dead processes end with these."""
        ordered = sorted(self._history.events(), key=lambda event: event.at)
        return [run for run in pair(ordered, self.fleet.deaths) if not keys or run.start.key in keys]

    def ran(self, key: str) -> list[str]:
        """Return the short names of the workers that ran the job of a key, one for each start, in order."""
        return [run.start.worker.partition("@")[0] for run in self.runs(key)]

    def notes(self, key: str) -> list[Any]:
        """Return what the job of a key was told, in order."""
        return [e.n for e in self._history.events() if e.kind is Kind.PUBLISHED and e.key == key]

    def check(self, *, keys: Collection[str] = ()) -> None:
        """See that no job ran twice at a time, and none under a lower token than before."""
        last: dict[str, Execution] = {}
        for run in self.runs(*keys):
            before = last.get(run.start.key)
            if before is not None:
                assert before.until <= run.start.at, f"two at a time: {before} and {run}"
                assert (before.start.epoch or 0) < (run.start.epoch or 0), f"not a higher token: {before}, {run}"
            last[run.start.key] = run


__all__ = ["PlacedJobs", "node"]
