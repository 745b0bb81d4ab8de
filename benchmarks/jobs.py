"""Ten thousand no-op jobs: how fast they start, move and stop, and the memory of one.

Three workers run them; a fourth one joins and leaves. Bad jobs may be among them.
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
from celery_sticky.cli.verify.bad_jobs import Bad
from celery_sticky.jobs.client import Jobs
from celery_sticky.jobs.info import JobInfo
from celery_sticky.testing.measure import SECOND, figures
from celery_sticky.testing.waiting import wait_until

WORKERS = 3
JOBS = 10_000
DISPATCHES = 200
TIMEOUT = 300.0
KINDS = (Bad.RAISE, Bad.EXIT, Bad.HANG_START, Bad.BLOCK, Bad.SWALLOW)
BY_JOB = {kind.job: kind for kind in KINDS}
LIMIT = 10.0
"""Seconds: start timeout and watchdog of the workers; with the defaults, bad jobs would take minutes to be known."""

Rows = list[Sequence[str]]


def run(server: Server, report: Report, *, quick: bool, count: int = JOBS, bad: int = 0) -> None:
    """Measure the life of `count` jobs, from their dispatch to their end, among `bad` bad ones."""
    count = count // 10 if quick else count
    among = f", among {bad:,} bad jobs" if bad else ""
    table = Table(f"{count:,} jobs that do nothing, on {WORKERS} workers ({SOLO.name}){among}", ["", "figure"])
    with tempfile.TemporaryDirectory() as folder, prepared(server, "sticky"):
        app = make_app(server.url, "sticky")
        app.conf.sticky_job_max_queued = max(count, bad)
        jobs, log = declare(app).jobs, Log(Path(folder, "jobs"))
        with crew(server, log) as workers:
            table.rows += start_bad(jobs, bad) if bad else []
            size = sizes(server, workers)
            table.rows += start(jobs, log, count)
            table.rows += costs(server, workers, size, count, report)
            table.rows += [] if bad else [idle_cpu(workers)]  # the time of children that have ended is not counted
            table.rows += latency(jobs)
            table.rows += moves(server, log, count)
            begun = time.monotonic()
            jobs.shutdown(timeout=TIMEOUT)
            table.rows.append(["shutdown: all stopped after, s", f"{time.monotonic() - begun:.2f}"])
            table.rows += [["jobs whose process a bad job has ended", f"{log.lost:,}"]] if bad else []
        jobs.close()
        app.close()
    table.notes.append(
        "Memory: by how much the resident memory of all workers has grown, over the jobs. Not running: from a job's "
        "end at one worker to its start at another."
    )
    if bad:
        table.notes.append(
            "The bad jobs come first. A fifth each raises, ends its process, hangs in its start, blocks the event "
            "loop, and swallows cancellations. They go on until the shutdown. `sticky_job_start_timeout` and "
            f"`sticky_job_watchdog` are {LIMIT:g} s."
        )
    report.tables.append(table)


class Log:
    """The lines that the job hosts write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read, self._runs = 0, set[bytes]()
        self.lost = 0
        """How many runs were started again without an end."""

    def lines(self, since: int = 0) -> list[tuple[str, int]]:
        """Return sign, key and time of each line from a moment on."""
        if not self.path.exists():
            return []
        pairs = (line.split() for line in self.path.read_text().splitlines())
        return [(what, int(at)) for what, at in pairs if int(at) >= since]

    def running(self) -> int:
        """Read what is new; return how many jobs run. A run whose process was killed counts until the next begins."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._read)
                said = file.read()
            said = said[: said.rfind(b"\n") + 1]
            self._read += len(said)
            for what, _ in (line.split() for line in said.splitlines()):
                began, key = what[:1] == b"+", what[1:]
                self.lost += began and key in self._runs
                (self._runs.add if began else self._runs.discard)(key)
        return len(self._runs)

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
    conf = {"sticky_job_start_timeout": LIMIT, "sticky_job_watchdog": LIMIT}
    return running(server, "sticky", SOLO, app="benchmarks.jobs_app", name=name, log=log.path, conf=conf)


def settle(server: Server, size: int) -> None:
    """Wait until this many workers share the slots."""
    crowd = Crowd(server)
    crowd.wait_settled(size)
    crowd.close()


def start_bad(jobs: Jobs, count: int) -> Rows:
    """Dispatch bad jobs, and wait until each has failed and those that cost a process run apart."""
    begun = time.monotonic()
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        jobs.admit(kind.job, kind.key(number))
    wait_until(lambda: sum(map(is_known, jobs.list())) == count, TIMEOUT, "all are known to be bad", 0.5)
    return [["bad jobs: all known to be bad after, s", f"{time.monotonic() - begun:.2f}"]]


def is_known(info: JobInfo) -> bool:
    """Return whether this is a bad job that has shown what it does."""
    if (kind := BY_JOB.get(info.name)) is None:
        return False
    if kind.offends_when_stopped:
        return info.state == "running"
    return info.failures > 0 and info.quarantined == kind.offends


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
    after = sizes(server, workers)
    host, main, redis = ((b - a) / count for a, b in zip(before, after, strict=True))
    report.ratio("job_kib", host + main)
    return [
        ["memory of a job host with its jobs, MiB", f"{after[0] / 1024 / WORKERS:.1f}"],
        ["memory of a worker with its jobs, MiB", f"{after[1] / 1024 / WORKERS:.1f}"],
        ["memory of a job in its host, KiB", f"{host:.1f}"],
        ["memory of a job in its worker, KiB", f"{main:.1f}"],
        ["memory of a job at the server, KiB", f"{redis:.1f}"],
    ]


def idle_cpu(workers: Sequence[Worker]) -> Sequence[str]:
    """Return the processor time of workers whose jobs are all idle."""
    cpu, begun = sum(worker.cpu() for worker in workers), time.monotonic()
    time.sleep(4 * BREATH)
    cpu = (sum(worker.cpu() for worker in workers) - cpu) / (time.monotonic() - begun) / len(workers)
    return ["CPU of a worker with its host, all jobs idle, %", f"{cpu * 100:.2f}"]


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
        elif (end := ended.pop(what[1:], None)) is not None:  # else its process was killed
            gaps.append((at - end) / SECOND)
    span = (max(at for _, at in lines) - min(at for _, at in lines)) / SECOND
    return [
        [f"{event}: jobs moved", f"{len(gaps):,}"],
        [f"{event}: first ended to all started, s", f"{span:.2f}"],
        [f"{event}: moves a second", f"{len(gaps) / span:,.0f}"],
        [f"{event}: a job not running", figures(gaps)],
    ]
