"""The job host of a worker: started, watched from outside, and started again when it dies."""

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
"""Seconds until a host that died is replaced: the first time, and at most; doubled in between."""
LOADED_LAST = 2.0
"""At most so many seconds for one that had loaded the app: what a job does to it, that job has to wait for."""
REMEDY = (
    "Until one has, this worker takes no part in keyspaces that have jobs: mend what fails, name the app's place in "
    "sticky_job_app, or leave these keyspaces out (--sticky-keyspaces)"
)
"""What to do about a host that does not load the app."""
STEADY = 60.0
"""Seconds after which a host counts as one that works."""
GRACE = 0.5
"""Seconds a host is left to end itself at the end of trust."""


class Host(Protocol):
    """A running host; see `jobs.process.HostProcess`."""

    pid: int

    def send(self, messages: Sequence[Message]) -> None:
        """Say this, without waiting."""

    def kill(self) -> None:
        """End it and whatever its jobs started."""

    def close(self, timeout: float) -> None:
        """Have it end when nothing runs in it, or kill it."""


Spawn = Callable[[Callable[[Message], None], Callable[[int], None]], Host]
"""Starts a host; is given what takes its messages and what takes its exit status, called in threads of its own."""


class Supervisor:
    """Keeps one host alive, and tells the keepers of its life."""

    def __init__(self, spawn: Spawn, lease: Lease, suspects: Suspects) -> None:
        self._spawn, self._lease, self._suspects = spawn, lease, suspects
        self._keepers: Collection[Keeper] = ()
        self._host: Host | None = None
        self._number = 0
        self._started_at = 0.0
        self._failures = 0
        self._killed = 0
        """The last host that was killed from here."""
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
        """Wait until the host has loaded the app, or has failed to, at most `timeout` seconds; False: neither."""
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
        # At the end of trust it also kills itself.
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
            why = self._error or f"it has died before (exit status {status})"
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
            except OSError:  # no memory, no descriptors: that may pass, and the worker holds slots
                logger.exception("jobs: the job host cannot be started; trying again in %.0f s", RETRY_LAST)
                time.sleep(RETRY_LAST)

    def _relied_on(self) -> Iterable[Reliance]:
        return {reliance for keeper in self._keepers for reliance in keeper.relied_on()}

    def _trust_ended(self, reliance: Reliance) -> None:
        self.kill(self._number, f"the lease of keyspace {reliance[0]} has ended")
