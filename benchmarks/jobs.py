"""Ten thousand no-op jobs: how fast they start, move and stop, and the memory of one.

Three workers run them; a fourth one joins and leaves.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from benchmarks.app import make_app
from benchmarks.crowd import SOLO, Crowd
from benchmarks.idle import BREATH
from benchmarks.jobs_app import JOB, declare
from benchmarks.report import Report, Table
from benchmarks.server import Server
from benchmarks.throughput import prepared
from benchmarks.workers import Worker, running
from celery_sticky.jobs.client import Jobs
from celery_sticky.testing.measure import SECOND, figures
from celery_sticky.testing.waiting import wait_until

WORKERS = 3
JOBS = 10_000
DISPATCHES = 200
TIMEOUT = 300.0

Rows = list[list[str]]


def run(server: Server, report: Report, *, quick: bool) -> None:
    """Measure the life of all jobs, from their dispatch to their end."""
    count = JOBS // 10 if quick else JOBS
    table = Table(f"{count:,} jobs that do nothing, on {WORKERS} workers ({SOLO.name})", ["", "figure"])
    with tempfile.TemporaryDirectory() as folder, prepared(server, "sticky"):
        app = make_app(server.url, "sticky")
        app.conf.sticky_job_max_queued = count
        jobs, log = declare(app).jobs, Log(Path(folder, "jobs"))
        with crew(server, log) as workers:
            size = sizes(server, workers)
            table.rows += start(jobs, log, count)
            table.rows += costs(server, workers, size, count, report)
            table.rows += latency(jobs)
            table.rows += moves(server, log, count)
            begun = time.monotonic()
            jobs.shutdown(timeout=TIMEOUT)
            table.rows.append(["shutdown: all stopped after, s", f"{time.monotonic() - begun:.2f}"])
        jobs.close()
        app.close()
    table.notes.append(
        "Memory: by how much the resident memory of all workers has grown, over the jobs. Not running: from a job's "
        "end at one worker to its start at another."
    )
    report.tables.append(table)


class Log:
    """The lines that the job hosts write."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self, since: int = 0) -> list[tuple[str, int]]:
        """Return sign, key and time of each line from a moment on."""
        if not self.path.exists():
            return []
        pairs = (line.split() for line in self.path.read_text().splitlines())
        return [(what, int(at)) for what, at in pairs if int(at) >= since]

    def running(self) -> int:
        """Return how many jobs run."""
        said = self.path.read_bytes() if self.path.exists() else b""
        return said.count(b"+") - said.count(b"-")

    def wait_running(self, count: int) -> None:
        """Wait until this many jobs run."""
        wait_until(lambda: self.running() == count, TIMEOUT, f"{count} jobs run")


@contextmanager
def crew(server: Server, log: Log) -> Iterator[list[Worker]]:
    """Start the workers and wait until they share the slots."""
    with ExitStack() as stack:
        workers = [stack.enter_context(member(server, log, f"w{number}")) for number in range(WORKERS)]
        settle(server, WORKERS)
        yield workers


def member(server: Server, log: Log, name: str) -> AbstractContextManager[Worker]:
    """Return a worker, not yet started."""
    return running(server, "sticky", SOLO, app="benchmarks.jobs_app", name=name, log=log.path)


def settle(server: Server, size: int) -> None:
    """Wait until this many workers share the slots."""
    crowd = Crowd(server)
    crowd.wait_settled(size)
    crowd.close()


def start(jobs: Jobs, log: Log, count: int) -> Rows:
    """Dispatch all jobs."""
    begun = time.monotonic()
    for number in range(count):
        jobs.admit(JOB, f"j{number}", {"number": number})
    admitted = time.monotonic() - begun
    log.wait_running(count)
    wait_until(lambda: all(info.state == "running" for info in jobs.list(JOB)), TIMEOUT, "all are known to run")
    took = time.monotonic() - begun
    return [
        ["admitted a second, by one process", f"{count / admitted:,.0f}"],
        ["first admitted to all known to run, s", f"{took:.2f}"],
        ["started a second", f"{count / took:,.0f}"],
    ]


def sizes(server: Server, workers: Sequence[Worker]) -> tuple[float, float, float]:
    """Return the memory of job hosts, workers and server when idle, in KiB."""
    time.sleep(BREATH)
    host, main = sum(worker.host_rss() for worker in workers), sum(worker.rss() for worker in workers)
    return host * 1024, main * 1024, float(server.client.info("memory")["used_memory"]) / 1024


def costs(
    server: Server, workers: Sequence[Worker], before: tuple[float, float, float], count: int, report: Report
) -> Rows:
    """Return the cost of a no-op job."""
    host, main, redis = ((b - a) / count for a, b in zip(before, sizes(server, workers), strict=True))
    report.ratio("job_kib", host + main)
    cpu, begun = sum(worker.cpu() for worker in workers), time.monotonic()
    time.sleep(4 * BREATH)
    cpu = (sum(worker.cpu() for worker in workers) - cpu) / (time.monotonic() - begun) / len(workers)
    return [
        ["memory of a job in its host, KiB", f"{host:.1f}"],
        ["memory of a job in its worker, KiB", f"{main:.1f}"],
        ["memory of a job at the server, KiB", f"{redis:.1f}"],
        ["CPU of a worker with its host, all jobs idle, %", f"{cpu * 100:.2f}"],
    ]


def latency(jobs: Jobs) -> Rows:
    """Dispatch jobs one after the other while all others run, and stop them again."""
    took = []
    for number in range(DISPATCHES):
        begun = time.monotonic()
        jobs.dispatch(JOB, f"single{number}")
        took.append(time.monotonic() - begun)
    for number in range(DISPATCHES):
        jobs.stop(JOB, f"single{number}", timeout=TIMEOUT)
    return [["a dispatch, until the job has started", figures(took)]]


def moves(server: Server, log: Log, count: int) -> Rows:
    """Let a worker join and leave."""
    since = time.monotonic_ns()
    with member(server, log, "late") as late:
        settle(server, WORKERS + 1)
        log.wait_running(count)
        came = time.monotonic_ns()
        time.sleep(BREATH)
        gone = time.monotonic_ns()
        late.stop()
        settle(server, WORKERS)
        log.wait_running(count)
    return [*moved("one joins", log, since, came), *moved("one leaves", log, gone, time.monotonic_ns())]


def moved(event: str, log: Log, since: int, until: int) -> Rows:
    """Return how fast jobs moved to another worker."""
    ended: dict[str, int] = {}
    gaps = []
    lines = [(what, at) for what, at in log.lines(since) if at <= until]
    for what, at in sorted(lines, key=lambda line: line[1]):
        if what[0] == "-":
            ended[what[1:]] = at
        else:
            gaps.append((at - ended[what[1:]]) / SECOND)
    span = (max(at for _, at in lines) - min(at for _, at in lines)) / SECOND
    return [
        [f"{event}: jobs moved", f"{len(gaps):,}"],
        [f"{event}: first ended to all started, s", f"{span:.2f}"],
        [f"{event}: moves a second", f"{len(gaps) / span:,.0f}"],
        [f"{event}: a job not running", figures(gaps)],
    ]
