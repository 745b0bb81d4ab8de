"""The supervisor of a worker's job host: starts it, watches it from outside, and restarts it when it dies."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from celery_sticky.jobs.keeper.keeper import Keeper
from celery_sticky.jobs.keeper.suspects import Suspects
from celery_sticky.jobs.wire import Message, Ready, Unready
from celery_sticky.membership.deadline import Deadline, Reliance
from celery_sticky.membership.lease import Lease, boottime

logger = logging.getLogger("celery_sticky.jobs")

RETRY_FIRST, RETRY_LAST = 0.2, 30.0
"""Seconds until a host that died is replaced: first and maximum; the pause doubles."""
LOADED_LAST = 2.0
"""Maximum pause in seconds for a host that had loaded the app: a job that kills it is itself made to wait."""
REMEDY = (
    "Until a host loads it, this worker stays out of keyspaces that have jobs: fix the error, set sticky_job_app to "
    "where the app is, or leave these keyspaces out (--sticky-keyspaces)"
)
"""What to do about a host that cannot load the app."""
STEADY = 60.0
"""Seconds after which a host counts as working."""
GRACE = 0.5
"""Seconds a host gets to end itself when the trust ends."""


class Host(Protocol):
    """A running host; see `jobs.process.HostProcess`."""

    pid: int

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages without waiting."""

    def kill(self) -> None:
        """Kill the host and everything its jobs started."""

    def close(self, timeout: float) -> None:
        """Let the host end once nothing runs in it; kill it after `timeout` seconds."""


Spawn = Callable[[Callable[[Message], None], Callable[[int], None]], Host]
"""Starts a host. Takes the callbacks for its messages and for its exit status; each is called in its own thread."""


class Supervisor:
    """Keeps one host alive, and tells the keepers when it starts and ends."""

    def __init__(self, spawn: Spawn, lease: Lease, suspects: Suspects) -> None:
        self._spawn, self._lease, self._suspects = spawn, lease, suspects
        self._keepers: Collection[Keeper] = ()
        self._host: Host | None = None
        self._number = 0
        self._started_at = 0.0
        self._failures = 0
        self._killed = 0
        """The number of the last host that this supervisor killed."""
        self._loaded = False
        self._error = ""
        """Why the host cannot load the app."""
        self._answered = False
        self._running = True
        self._watch = Deadline(lease, self._relied_on, self._trust_ended, grace=GRACE)

    def start(self, keepers: Collection[Keeper]) -> None:
        """Start the host."""
        self._keepers = keepers
        self._watch.start()
        self._begin()

    def await_host(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the host to load the app or to fail; return whether either happened."""
        deadline = time.monotonic() + timeout
        while not self._answered and time.monotonic() < deadline:
            time.sleep(0.005)
        return self._answered

    def say(self, number: int, messages: Sequence[Message]) -> None:
        """See `jobs.keeper.Hosting`."""
        host = self._host
        if messages and host is not None and number == self._number:
            host.send(messages)

    def kill(self, number: int, reason: str) -> None:
        """See `jobs.keeper.Hosting`."""
        host = self._host
        if host is not None and number == self._number:
            logger.error("jobs: %s; killing the job host, process %d", reason, host.pid)
            self._killed = number
            host.kill()

    def finish(self, timeout: float) -> None:
        """End the host: nothing should run in it any more."""
        self._running = False
        self._watch.stop()
        if (host := self._host) is not None:
            host.close(timeout)

    def _begin(self) -> None:
        self._number += 1
        self._started_at, self._loaded, self._error = time.monotonic(), False, ""
        self._host = self._spawn(self._on_message, self._on_exit)

    def _on_message(self, message: Message) -> None:
        if isinstance(message, Ready):
            logger.info("jobs: the job host runs %s", ", ".join(message.names) or "nothing")
            self._loaded = True
            for keeper in self._keepers:
                keeper.host_started(self._number)
            self._answered = True
        elif isinstance(message, Unready):
            self._error = message.error
        else:
            for keeper in self._keepers:
                keeper.heard(message)

    def _on_exit(self, status: int) -> None:
        self._host = None
        self._answered = True
        # When the trust ends, the host also kills itself.
        killed = self._killed == self._number or not all(
            self._lease.trusted(*reliance) for reliance in self._relied_on()
        )
        self._suspects.host_ended(boottime(), killed=killed)
        for keeper in self._keepers:
            keeper.host_ended()
        if not self._running:
            return
        self._failures = 1 if time.monotonic() - self._started_at > STEADY else self._failures + 1
        most = LOADED_LAST if self._loaded else RETRY_LAST
        pause = min(RETRY_FIRST * 2.0 ** min(self._failures - 1, 10), most)
        if self._loaded:
            logger.error("jobs: the job host has died (exit status %d); the next one starts in %.1f s", status, pause)
        else:
            why = self._error or f"it died first (exit status {status})"
            logger.error(
                "jobs: the job host has not loaded the app: %s; the next one tries in %.1f s. %s", why, pause, REMEDY
            )
        time.sleep(pause)
        self._begin_again()

    def _begin_again(self) -> None:
        while self._running:
            try:
                self._begin()
                return
            except OSError:  # out of memory or descriptors: this may pass, and the worker holds slots
                logger.exception("jobs: the job host cannot be started; trying again in %.0f s", RETRY_LAST)
                time.sleep(RETRY_LAST)

    def _relied_on(self) -> Iterable[Reliance]:
        return {reliance for keeper in self._keepers for reliance in keeper.relied_on()}

    def _trust_ended(self, reliance: Reliance) -> None:
        self.kill(self._number, f"the lease of keyspace {reliance[0]} has ended")
