"""A real worker process, in a session of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from celery_sticky.testing import processes
from celery_sticky.testing.guard import Guard
from celery_sticky.testing.waiting import wait_until


class WorkerProcess:
    """`celery -A … worker`, from start to teardown. After its end it can be started again under the same name."""

    def __init__(
        self,
        guard: Guard,
        directory: Path,
        *,
        app: str,
        name: str = "w1",
        host: str = "%h",
        pool: str = "prefork",
        concurrency: int = 2,
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
        log_level: str = "INFO",
    ) -> None:
        self._guard, self._host = guard, host
        self.name, self.app, self.pool, self.concurrency, self.log_level = name, app, pool, concurrency, log_level
        self.env, self.args = dict(env or {}), tuple(args)
        self.log_path = directory / f"{name}.log"
        self.deaths: dict[int, int] = {}
        """Process id -> when it was seen gone after `kill(SIGKILL)` or `kill_all`; the `deaths` of `judge`."""
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0
        self._log_start = 0

    def __repr__(self) -> str:
        state = "not started" if self._process is None else f"pid {self.pid}, {'alive' if self.alive else 'ended'}"
        return f"<worker {self.name}: {state}>"

    # -- Life ----------------------------------------------------------------------------------

    def start(self) -> WorkerProcess:
        """Start the process; do not wait until it is ready."""
        assert not self.alive, f"{self!r} runs already"
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.log_path.parent,
                env=self._environment(),
                start_new_session=True,
            )
        self._started = self._guard.watch(self.pid)
        return self

    def wait_ready(self, timeout: float = 60.0) -> WorkerProcess:
        """Wait until the worker logs that it is ready."""
        self.wait_for_log(r"\S+@\S+ ready\.", timeout)
        return self

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the worker's main process only. After SIGKILL, wait until it is gone."""
        os.kill(self.pid, number)
        if number == signal.SIGKILL:
            self._reap(timeout=10.0)

    def kill_all(self) -> None:
        """SIGKILL the main process and every process of its session, as if the machine died."""
        pids = processes.in_session(self.pid)
        processes.kill_session(self.pid, self._started)
        self._reap(timeout=10.0)
        self.deaths.update(processes.wait_gone(pids, timeout=10.0))

    def wait_gone(self, timeout: float = 10.0) -> None:
        """Wait until the main process and all its children are gone, and record the times in `deaths`."""
        pids = processes.in_session(self.pid)
        self.deaths.update(processes.wait_gone(pids, timeout))  # first, so that each death is seen on time
        wait_until(lambda: self.returncode is not None, timeout, f"{self!r} ends")
        left = processes.in_session(self.pid)
        assert not left, f"{self!r} left processes behind: {left}"

    def freeze(self) -> None:
        """SIGSTOP the main process and every process of its session."""
        for pid in processes.in_session(self.pid):
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT the main process and every process of its session."""
        for pid in processes.in_session(self.pid):
            with suppress(ProcessLookupError):  # a process that continues first may end others
                os.kill(pid, signal.SIGCONT)

    def wait(self, timeout: float = 30.0) -> int:
        """Wait until the main process ends and return its exit status (negative: the signal that ended it)."""
        assert self._process is not None, f"{self!r}"
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self!r} did not end within {timeout:g} s; its log ends:\n{self.tail()}") from None

    def wait_ended(self, timeout: float) -> bool:
        """Wait until the main process ends; return whether it has."""
        assert self._process is not None, f"{self!r}"
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self, timeout: float = 30.0) -> int:
        """SIGTERM (warm shutdown), then wait for the end."""
        self.kill(signal.SIGTERM)
        return self.wait(timeout)

    def teardown(self) -> None:
        """End every process. May be called twice."""
        if self._process is not None:
            processes.kill_session(self.pid, self._started)
            self._process.wait(timeout=10)
            self._guard.forget(self.pid)

    # -- What can be seen of it ----------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The id of the main process."""
        assert self._process is not None, f"worker {self.name} was never started"
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the main process runs; a frozen one does."""
        return self.returncode is None and self._process is not None

    @property
    def returncode(self) -> int | None:
        """The exit status of the main process, or None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def children(self) -> list[int]:
        """The main process's direct children: with prefork, the pool."""
        return processes.children(self.pid)

    @property
    def processes(self) -> list[int]:
        """Every running process of the worker, including orphaned children."""
        return processes.in_session(self.pid)

    @property
    def log(self) -> str:
        """The worker's log since its last start."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def tail(self, lines: int = 40) -> str:
        """Return the last lines of the log."""
        return "\n".join(self.log.splitlines()[-lines:])

    def wait_for_log(self, pattern: str, timeout: float = 30.0) -> re.Match[str]:
        """Wait until the log has a match for the regular expression `pattern`; fail at once if the worker ends."""
        regex, deadline = re.compile(pattern), time.monotonic() + timeout
        while True:
            ended = self.returncode is not None
            if (match := regex.search(self.log)) is not None:
                return match
            if ended or time.monotonic() >= deadline:
                what = f"ended with {self.returncode} before it" if ended else f"has not within {timeout:g} s"
                raise AssertionError(f"{self!r} {what} logged {pattern!r}; its log ends:\n{self.tail()}")
            time.sleep(0.02)

    # -- Inside --------------------------------------------------------------------------------

    def _reap(self, timeout: float) -> None:
        assert self._process is not None
        self._process.wait(timeout)
        self.deaths[self.pid] = time.monotonic_ns()

    def _command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "celery", "-A", self.app, "worker"),
            *("-n", f"{self.name}@{self._host}", "-P", self.pool, "-c", str(self.concurrency), "-l", self.log_level),
            *("--without-gossip", "--without-mingle", *self.args),
        ]

    def _environment(self) -> dict[str, str]:
        # CELERY_BROKER_URL and similar variables would override the app's settings.
        own = {name: value for name, value in os.environ.items() if not name.startswith("CELERY_")}
        return {**own, "PYTHONUNBUFFERED": "1", "C_FORCE_ROOT": "1", **self.env}
