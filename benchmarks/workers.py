"""Worker processes: started, watched, and killed with their children."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.app import CONF, KEYED, LOG, STATEMENTS, URL

ROOT = Path(__file__).resolve().parent.parent
QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")


@dataclass(frozen=True, slots=True)
class Pool:
    """An execution pool and its size."""

    kind: str
    size: int

    @property
    def name(self) -> str:
        """Its name in the tables."""
        return self.kind if self.kind == "solo" else f"{self.kind} -c{self.size}"

    @property
    def slug(self) -> str:
        """Its name in the JSON."""
        return self.name.replace(" -c", "")


class Broker(Protocol):
    """What a worker reads from."""

    @property
    def url(self) -> str:
        """Its URL as Celery takes it."""


@dataclass(frozen=True, slots=True)
class Address:
    """A broker of which no more is known."""

    url: str


POOLS = (Pool("prefork", 1), Pool("prefork", 2), Pool("threads", 8), Pool("solo", 1), Pool("gevent", 100))


class Worker:
    """A running worker with all processes it has started, which form one session."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.pid = process.pid
        self._process = process
        self.log = log

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Wait until its log says that it is ready."""
        deadline = time.monotonic() + timeout
        while " ready." not in self.log.read_text(errors="replace"):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the worker did not become ready:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.05)

    @property
    def said(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-3000:]

    def check_alive(self) -> None:
        """Raise if it has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"the worker ended:\n{self.said}")

    def pids(self) -> list[int]:
        """Return the main process and its descendants."""
        found, unseen = [], [self.pid]
        while unseen:
            pid = unseen.pop()
            found.append(pid)
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                unseen += map(int, task.read_text().split())
        return found

    def cpu(self) -> float:
        """Return the seconds of processor time its living processes have spent."""
        ticks = 0
        for pid in self.pids():
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(stat[11]) + int(stat[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def rss(self) -> float:
        """Return the resident memory of the main process, in MiB."""
        return _kib(self.pid, "status", "VmRSS") / 1024

    def peak_rss(self) -> float:
        """Return the peak memory of the main process, in MiB."""
        return _kib(self.pid, "status", "VmHWM") / 1024

    def host_rss(self) -> float:
        """Return the resident memory of its job host, without the processes of single jobs, in MiB."""
        (host,) = [pid for pid in self.pids() if b'"name": "the job host"' in _command_line(pid)]
        return _kib(host, "status", "VmRSS") / 1024

    def pss(self) -> float:
        """Return the memory of all its processes in MiB; shared memory counts once."""
        return sum(_kib(pid, "smaps_rollup", "Pss") for pid in self.pids()) / 1024

    def stop(self) -> None:
        """Ask it to end, as a process manager does, without waiting."""
        os.kill(self.pid, signal.SIGTERM)

    def wait_gone(self, timeout: float = 60.0) -> None:
        """Wait until its main process has ended."""
        self._process.wait(timeout)

    def kill(self) -> None:
        """Kill all its processes, if it has not ended yet."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(timeout=10)


def _command_line(pid: int) -> bytes:
    with suppress(OSError):  # it has just ended
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _kib(pid: int, file: str, name: str) -> int:
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise RuntimeError(f"no {name} in /proc/{pid}/{file}")


@contextmanager
def running(
    server: Broker,
    side: str,
    pool: Pool,
    *,
    flags: Sequence[str] = QUIET,
    level: str = "WARNING",
    name: str = "bench",
    log: Path | None = None,
    conf: Mapping[str, Any] | None = None,
    app: str = "benchmarks.app",
    statements: bool = False,
) -> Iterator[Worker]:
    """Start a worker of one side; it is killed at the end of the block.

    Workers may share `log`, the file in which their tasks and slots are recorded; `conf` goes into `app.conf`.
    With `statements` each one for a database adds a line to the file `STATEMENTS` beside the worker's log.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "celery", "-A", app, "worker", "-n", f"{name}@{side}"]
        command += ["-P", pool.kind, "-c", str(pool.size), "-l", level, *flags]
        environ = {URL: server.url, KEYED: side, "BENCH_RUN": folder, LOG: str(log or stamps(folder))}
        if statements:
            environ[STATEMENTS] = str(Path(folder, STATEMENTS))
        with started(command, environ | {CONF: json.dumps(conf or {}), "C_FORCE_ROOT": "1"}, folder) as worker:
            yield worker


@contextmanager
def started(command: Sequence[str], environ: Mapping[str, str], folder: str | None = None) -> Iterator[Worker]:
    """Start a worker's program; it is killed at the end of the block. `folder` is for its log."""
    with tempfile.TemporaryDirectory() as own:
        said = Path(folder or own, "log")
        every = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
        with said.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT, env=every, start_new_session=True)
        worker = Worker(process, said)
        try:
            yield worker
        finally:
            worker.kill()


def stamps(folder: str | Path) -> Path:
    """Return the file to which the task `stamp` writes."""
    return Path(folder, "stamps")
