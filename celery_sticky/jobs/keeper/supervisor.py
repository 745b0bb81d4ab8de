"""The supervisor of a worker's job hosts: performs what they decide, in the threads of the process."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial

from celery_sticky.flows import run_flow
from celery_sticky.jobs.keeper.home import Home
from celery_sticky.jobs.keeper.host_flow import Begin, Blame, Flow, Host, HostFlow, Request
from celery_sticky.jobs.keeper.host_watch import STEP
from celery_sticky.jobs.keeper.hosts import JobHosts, Listener
from celery_sticky.jobs.keeper.strikes import Who
from celery_sticky.jobs.wire import Message
from celery_sticky.membership.deadline import Deadline
from celery_sticky.membership.lease import Lease, boottime
from celery_sticky.platform.native import start_native_thread
from celery_sticky.platform.repeated import Repeated

logger = logging.getLogger("celery_sticky.jobs")

Spawn = Callable[[str, Callable[[Message], None], Callable[[int], None]], Host]
"""Starts the process of a host of this name.

Takes the callbacks for its messages and for its exit status; each is called in its own thread.
"""


class Supervisor:
    """Keeps the hosts alive, and tells the keepers when their processes start and end."""

    def __init__(
        self,
        spawn: Spawn,
        lease: Lease,
        *,
        hosts: int = 1,
        quarantine: int = 1,
        watchdog: float = 0.0,
        grace: float = 0.0,
    ) -> None:
        """See `JobHosts`."""
        self._spawn = spawn
        self._hosts = JobHosts(
            lease, boottime, self._launch, hosts=hosts, quarantine=quarantine, watchdog=watchdog, grace=grace
        )
        self._deadline = Deadline(self._hosts.trust)
        self._looks = Repeated(self._hosts.look, STEP, logger, "jobs: the watch over the job hosts")

    def start(self, keepers: Collection[Listener]) -> None:
        """Start the hosts.

        Raises:
            OSError: a process cannot be started.
        """
        self._hosts.listeners = keepers
        self._deadline.start()
        self._looks.start()
        for host in self._hosts.shared:
            self._run(host, host.begin())

    def await_host(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the hosts to load the app or to fail; return whether that has happened."""
        deadline = time.monotonic() + timeout
        while not self._hosts.answered and time.monotonic() < deadline:
            time.sleep(0.005)
        return self._hosts.answered

    def place(self, who: Who, label: str, home: Home) -> int:
        """See `jobs.keeper.flow.Hosting`."""
        return self._hosts.place(who, label, home)

    def say(self, number: int, messages: Sequence[Message]) -> None:
        """See `jobs.keeper.flow.Hosting`."""
        self._hosts.say(number, messages)

    def kill(self, number: int, reason: str, blame: Blame) -> None:
        """See `jobs.keeper.flow.Hosting`."""
        self._hosts.kill(number, reason, blame)

    def finish(self, timeout: float) -> None:
        """End the hosts within so many seconds: nothing should run in them any more."""
        self._deadline.stop()
        self._looks.stop()
        deadline = time.monotonic() + timeout
        self._hosts.finish(lambda: max(0.1, deadline - time.monotonic()))

    def _launch(self, host: HostFlow, flow: Flow) -> None:
        start_native_thread(partial(self._run, host, flow))

    def _run(self, host: HostFlow, flow: Flow) -> None:
        run_flow(flow, partial(self._perform, host))

    def _perform(self, host: HostFlow, request: Request) -> Host | None:
        if isinstance(request, Begin):
            # The thread that sees the end of a process starts the next one.
            return self._spawn(host.name, host.heard, lambda status: self._run(host, host.replace(status)))
        time.sleep(request.seconds)
        return None
