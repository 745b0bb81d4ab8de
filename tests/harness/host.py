"""A job host of one's own: what a worker would say to it is said by a test, which also grants the trust."""

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
from celery_sticky.jobs.wire import Ended, Failed, Message, Noted, Notify, Ready, Start, Started, Stop, Unready
from celery_sticky.membership.lease import Lease, boottime
from celery_sticky.testing.waiting import wait_until

KEYSPACES = {"default": 64, "second": 8}
MEMBERSHIP = 1


class TestHost:
    """A running host and what it has said. Its reaper kills it when the tests are killed."""

    __test__ = False

    def __init__(self, log: Path, app: str = "harness.host_app", *, trust: float = 600.0) -> None:
        self._log = log
        os.environ["STICKY_JOB_LOG"] = str(log)
        self.lease = Lease(KEYSPACES)
        self.grant(trust)
        self.events: list[Message | int] = []
        """All that was heard; the exit status at last."""
        self.by_ref: dict[int, list[Message]] = defaultdict(list)
        self._refs = itertools.count(1)
        command = host_command(SimpleNamespace(hostname="w1@here"), app, KEYSPACES)
        self.process = HostProcess(command, self.lease.descriptor, self._on_message, self.events.append)

    def _on_message(self, message: Message) -> None:
        self.events.append(message)
        if not isinstance(message, Ready | Unready):
            self.by_ref[message.ref].append(message)

    def __repr__(self) -> str:
        return f"<host {self.process.pid}: {self.events[-20:]}>"

    # -- what it is told -----------------------------------------------------------------------

    def grant(self, seconds: float) -> None:
        """Trust what runs here for so long from now."""
        self.lease.grant("default", boottime() + seconds, MEMBERSHIP)

    def start(self, name: str, key: str = "k", payload: Any = None, **fields: Any) -> int:
        """Start a job; return its ref."""
        start = self.order(name, key, payload, **fields)
        self.process.send([start])
        return start.ref

    def order(self, name: str, key: str = "k", payload: Any = None, **fields: Any) -> Start:
        """Return what starts a job."""
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
        """Hand notifications to a run; each is called as its payload."""
        self.process.send([Notify(ref, str(payload), payload) for payload in payloads])

    # -- what it says --------------------------------------------------------------------------

    def wait(self, ref: int, *messages: Message) -> None:
        """Wait for these last messages of a run."""
        wait_until(lambda: tuple(self.by_ref[ref][-len(messages) :]) == messages, 30, f"{ref}: {messages} in {self}")

    def noted(self, ref: int) -> list[str]:
        """Return the notifications that the job has."""
        return [message.note for message in self.by_ref[ref] if isinstance(message, Noted)]

    def wait_over(self, ref: int) -> Failed | Ended:
        """Wait for the end of a run, and return what is said of it."""

        def over() -> Failed | Ended | None:
            last = self.by_ref[ref][-1:]
            return last[0] if last and isinstance(last[0], Failed | Ended) else None

        found = wait_until(over, 30, f"{ref} is over: {self}")
        assert found is not None
        return found

    def wait_ready(self) -> Ready:
        """Wait until it can run jobs; return the first thing it says."""
        wait_until(lambda: self.events, 60, f"ready: {self}")
        assert isinstance(self.events[0], Ready), self
        return self.events[0]

    def wait_exit(self, timeout: float = 30.0) -> int:
        """Wait until it has died, and return its exit status."""
        wait_until(lambda: isinstance(self.events[-1:][0] if self.events else None, int), timeout, f"exit: {self}")
        status = self.events[-1]
        assert isinstance(status, int)
        return status

    # -- what its jobs have done ---------------------------------------------------------------

    def log(self) -> list[str]:
        """Return the lines that jobs wrote."""
        return read_log(self._log)

    def wait_log(self, pattern: str) -> re.Match[str]:
        """Wait for a line."""
        return wait_log(self._log, pattern)

    @property
    def rss(self) -> int:
        """The bytes of memory it has."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def read_log(log: Path) -> list[str]:
    """Return the lines that jobs wrote."""
    return log.read_text().splitlines() if log.exists() else []


def wait_log(log: Path, pattern: str) -> re.Match[str]:
    """Wait for a line that jobs write."""
    found = wait_until(
        lambda: next((match for line in read_log(log) if (match := re.fullmatch(pattern, line))), None),
        30,
        f"{pattern} is written in {log}",
    )
    assert found is not None
    return found


def settle(seconds: float = 0.3) -> None:
    """Let pass the time in which what must not happen would."""
    time.sleep(seconds)
