"""A real job host with a test in the place of its worker: the test sends its messages and grants trust."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from celery_sticky.execution.job_host import host_command
from celery_sticky.jobs.keeper.process import HostProcess
from celery_sticky.jobs.wire import (
    Call,
    Calls,
    Ended,
    Failed,
    Message,
    Noted,
    Notify,
    OfRun,
    Ready,
    Start,
    Started,
    Stop,
    Taken,
)
from celery_sticky.membership.lease import Lease, boottime
from celery_sticky.testing.waiting import wait_until

THREADS = 3 * 16
"""As many as a host has by default."""
KEYSPACES = {"default": 64, "second": 8}
MEMBERSHIP = 1


class TestHost:
    """A running job host and the messages that it has sent. If the tests are killed, its reaper kills it."""

    __test__ = False

    def __init__(self, log: Path, app: str = "harness.host_app", *, trust: float = 600.0) -> None:
        self._log = log
        os.environ["STICKY_JOB_LOG"] = str(log)
        self.lease = Lease(KEYSPACES)
        self.grant(trust)
        self.events: list[Message | int] = []
        """All messages of the host, and its exit status as the last item."""
        self.called: list[int] = []
        """The runs whose start was called. `events` is without these messages, and without `Taken`."""
        self.by_ref: dict[int, list[Message]] = defaultdict(list)
        self._refs = itertools.count(1)
        command = host_command(SimpleNamespace(hostname="w1@here"), app, KEYSPACES)
        self.process = HostProcess(command, self.lease.descriptor, THREADS, self._on_message, self.events.append)
        self.process.listen()

    def _on_message(self, message: Message) -> None:
        if isinstance(message, Calls) and message.call is Call.START:
            self.called.append(message.ref)
            return
        if isinstance(message, Taken):
            return
        self.events.append(message)
        if isinstance(message, OfRun):
            self.by_ref[message.ref].append(message)

    def __repr__(self) -> str:
        return f"<host {self.process.pid}: {self.events[-20:]}>"

    # -- messages to the host -------------------------------------------------------------------

    def grant(self, seconds: float) -> None:
        """Grant trust for this many seconds from now."""
        self.lease.grant("default", boottime() + seconds, MEMBERSHIP)

    def start(self, name: str, key: str = "k", payload: Any = None, **fields: Any) -> int:
        """Start a job; return its ref."""
        start = self.order(name, key, payload, **fields)
        self.process.send([start])
        return start.ref

    def order(self, name: str, key: str = "k", payload: Any = None, **fields: Any) -> Start:
        """Return the message that starts a job."""
        values = {
            "keyspace": "default",
            "id": "id",
            "epoch": 1,
            "attempt": 1,
            "payload": payload,
            "membership": MEMBERSHIP,
        }
        return Start(ref=next(self._refs), name=name, key=key, **{**values, **fields})

    def started(self, name: str, key: str = "k", payload: Any = None) -> int:
        """Start a job and wait until it has started; return its ref."""
        ref = self.start(name, key, payload)
        self.wait(ref, Started(ref))
        return ref

    def stop(self, *refs: int) -> None:
        """Stop runs."""
        self.process.send([Stop(ref) for ref in refs])

    def notify(self, ref: int, *payloads: Any) -> None:
        """Send notifications to a run; the id of each is its payload as a string."""
        self.process.send([Notify(ref, str(payload), payload) for payload in payloads])

    # -- messages from the host -----------------------------------------------------------------

    def count(self, kind: type[Message]) -> int:
        """Return how many messages of a kind the host has sent."""
        return sum(isinstance(event, kind) for event in list(self.events))

    def wait(self, ref: int, *messages: Message) -> None:
        """Wait until these are the last messages about a run."""
        wait_until(lambda: tuple(self.by_ref[ref][-len(messages) :]) == messages, 30, f"{ref}: {messages} in {self}")

    def noted(self, ref: int) -> list[str]:
        """Return the notifications that the job has received."""
        return [message.note for message in self.by_ref[ref] if isinstance(message, Noted)]

    def wait_over(self, ref: int) -> Failed | Ended:
        """Wait for the end of a run, and return the message about it."""

        def over() -> Failed | Ended | None:
            last = self.by_ref[ref][-1:]
            return last[0] if last and isinstance(last[0], Failed | Ended) else None

        found = wait_until(over, 30, f"{ref} is over: {self}")
        assert found is not None
        return found

    def wait_ready(self) -> Ready:
        """Wait until the host can run jobs; return its first message."""
        wait_until(lambda: self.events, 60, f"ready: {self}")
        assert isinstance(self.events[0], Ready), self
        return self.events[0]

    def wait_exit(self, timeout: float = 30.0) -> int:
        """Wait until the host has exited, and return its exit status."""
        wait_until(lambda: isinstance(self.events[-1:][0] if self.events else None, int), timeout, f"exit: {self}")
        status = self.events[-1]
        assert isinstance(status, int)
        return status

    # -- the log of its jobs --------------------------------------------------------------------

    def log(self) -> list[str]:
        """Return the lines that jobs wrote."""
        return read_log(self._log)

    def wait_log(self, pattern: str) -> re.Match[str]:
        """Wait for a line that matches the whole pattern."""
        return wait_log(self._log, pattern)

    @property
    def rss(self) -> int:
        """The resident memory of the host, in bytes."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def read_log(log: Path) -> list[str]:
    """Return the lines that jobs wrote."""
    return log.read_text().splitlines() if log.exists() else []


def wait_log(log: Path, pattern: str) -> re.Match[str]:
    """Wait for a line that matches the whole pattern."""
    found = wait_until(
        lambda: next((match for line in read_log(log) if (match := re.fullmatch(pattern, line))), None),
        30,
        f"{pattern} is written in {log}",
    )
    assert found is not None
    return found


def settle(seconds: float = 0.3) -> None:
    """Wait for something that must not happen: there is no condition to poll for."""
    time.sleep(seconds)
