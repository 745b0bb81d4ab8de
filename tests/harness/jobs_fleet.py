"""Workers with jobs, and queries for what runs where."""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from celery_sticky.jobs.client import Jobs
from celery_sticky.jobs.info import JobInfo
from celery_sticky.testing.guard import Guard
from celery_sticky.testing.history import Event, Execution, Kind, pair
from celery_sticky.testing.waiting import wait_until
from celery_sticky.testing.worker import WorkerProcess
from harness import jobs_app
from harness.app import AppConfig
from harness.keyed_fleet import KeyedFleet, node

JOB_CONF = {"sticky_job_poll": 1.0, "sticky_job_stop_timeout": 3.0}


SCHEDULES = "the job host of schedules and tickers"


class JobsFleet(KeyedFleet):
    """Workers with the jobs of `jobs_app`."""

    def __init__(self, guard: Guard, directory: Path, config: AppConfig, *, document: bool = True) -> None:
        super().__init__(guard, directory, config, document=document)
        self.jobs: Jobs = jobs_app.register(self.app, config.history).jobs

    def worker(self, name: str = "w1", *, ready: bool = True, **options: Any) -> WorkerProcess:
        """Start a worker that has the jobs; for the options see `Fleet.worker`."""
        options.setdefault("pool", "threads")
        options.setdefault("concurrency", 2)
        return super().worker(name, ready=ready, app="harness.jobs_app", **options)

    def job_events(self, kind: Kind) -> list[Event]:
        """Return the starts or ends of jobs so far."""
        return [event for event in self.events() if event.kind is kind and event.worker]

    def runs(self) -> list[Execution]:
        """Return the runs of all jobs in the order of their starts. A run ends when its process dies."""
        return pair(sorted(self.events(), key=lambda event: event.at), self.deaths)

    def running(self) -> dict[str, str]:
        """Return key → worker of each job with a start but no end, including the jobs of hosts that died."""
        events = self.events()
        ended = {event.run for event in events if event.kind is Kind.END}
        return {e.key: e.worker for e in events if e.kind is Kind.START and e.run not in ended}

    def infos(self) -> dict[str, JobInfo]:
        """Return the information that the store has about each job, by key."""
        return {info.key: info for info in self.jobs.list(keyspace="default")}

    def wait_running(self, keys: Collection[str], *names: str, timeout: float = 30.0) -> dict[str, JobInfo]:
        """Wait until exactly these jobs run, each on the owner of its slot, and all on these workers."""
        workers = {node(name) for name in names or self.workers}

        def all_run() -> dict[str, JobInfo] | None:
            infos, view = self.infos(), self.view()
            right = view is not None and all(
                info.state == "running" and info.worker in workers and view.owner[info.slot] == info.worker
                for info in infos.values()
            )
            return infos if right and infos.keys() == set(keys) else None

        found = wait_until(all_run, timeout, f"{len(keys)} jobs run at {workers}\n{self}", 0.05)
        assert found is not None
        return found

    def notes(self, key: str) -> list[int]:
        """Return the numbers of the notifications that this key's job received."""
        return [event.n for event in self.events() if event.key == f"note:{key}"]

    def overlaps(self) -> list[tuple[Execution, Execution]]:
        """Return the pairs of runs of one key that overlapped."""
        found, last = [], dict[str, Execution]()
        for run in self.runs():
            before = last.get(run.start.key)
            if before is not None and run.start.at < before.until:
                found.append((before, run))
            if before is None or run.until > before.until:
                last[run.start.key] = run
        return found

    def teardown(self) -> None:
        """End all workers and close all connections."""
        self.jobs.close()
        super().teardown()


def hosts_of(fleet: JobsFleet, name: str, called: str = "the job host") -> list[int]:
    """Return the processes that run a worker's jobs and are called that."""
    mark = json.dumps({"name": called})[1:-1].encode()
    return [pid for pid in fleet.workers[name].children if mark in _command_line(pid)]


def host_of(fleet: JobsFleet, name: str) -> int:
    """Return the process that runs a worker's jobs, except those apart and schedules."""
    (host,) = hosts_of(fleet, name)
    return host


def _command_line(pid: int) -> bytes:
    with suppress(OSError):  # it has just ended
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
