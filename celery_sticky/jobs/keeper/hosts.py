"""The job hosts of a worker, and which job runs in which.

Most jobs share the lasting hosts. Schedules and tickers have one of their own, because their functions may be slow and
cannot be stopped. A job that was to blame for the end of a process runs apart, in a process of its own, so that its
neighbours do not notice the next time. So do jobs that are declared isolated, from the start. If nobody knows which job
it was, half of those that were there are tried in another process. No thread, no clock, no process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import count
from typing import Protocol
from zlib import crc32

from celery_sticky.jobs.keeper.home import Home
from celery_sticky.jobs.keeper.host_flow import RETRY_FIRST, RETRY_LAST, Blame, Flow, HostFlow
from celery_sticky.jobs.keeper.strikes import Strikes, Who
from celery_sticky.jobs.wire import Message, Over, Start
from celery_sticky.membership.deadline import Trust, TrustWatches
from celery_sticky.platform.native import Section

IDLE = 60.0
"""Seconds after which a process that was started for one job, and does not run it, is ended."""
LOADING = 20.0
"""Seconds for which a process that loads the app delays the next one."""


class Listener(Protocol):
    """A keeper whose jobs run in the hosts. No method waits."""

    def hosts_up(self, *, up: bool) -> None:
        """Take in whether there is a host for jobs."""

    def host_started(self) -> None:
        """Take in that a host can take jobs, or has room for them."""

    def host_ended(self, number: int, blame: Blame) -> None:
        """Take in that the `number`th process is gone, and which runs are to blame."""

    def heard(self, message: Message) -> None:
        """Take in a message about a run, perhaps of another keyspace."""


class JobHosts:
    """The hosts of one worker. Any thread may call its methods; they do not wait."""

    def __init__(
        self,
        lease: Trust,
        clock: Callable[[], float],
        launch: Callable[[HostFlow, Flow], None],
        *,
        hosts: int = 1,
        quarantine: int = 1,
        watchdog: float = 0.0,
        grace: float = 0.0,
    ) -> None:
        """`launch` runs a flow of a host. `quarantine`: how many jobs may run apart at a time.

        For `hosts`, `watchdog` and `grace` (seconds) see the settings.
        """
        self._lease, self._clock, self._launch = lease, clock, launch
        self._watchdog, self._grace = watchdog, grace
        self._quarantine = quarantine
        self._numbers = count(1)
        self._lock = Section()
        self._strikes = Strikes()
        self.listeners: Collection[Listener] = ()
        """The keepers; set before the first process starts."""
        names = ["the job host"] if hosts == 1 else [f"job host {n} of {hosts}" for n in range(1, hosts + 1)]
        self.shared = [self._host(name) for name in names]
        """The hosts that most jobs share."""
        self._schedules: HostFlow | None = None
        self._trial: HostFlow | None = None
        self._alone: dict[Home, dict[Who, HostFlow]] = {home: {} for home in Home if home.alone}
        self._loading: HostFlow | None = None
        """The process for single jobs that loads the app now. One at a time: loading keeps a processor busy, and
        hundreds may be due at once. The jobs that run need the processors too."""
        self._loads_until = 0.0
        self.trust = TrustWatches(lambda: [host.watch for host in self._all()])
        """Kills processes that do not end themselves when the trust ends."""
        self._unloaded = 0
        """How many processes for one job have ended, one after the other, before they had loaded the app."""

    @property
    def answered(self) -> bool:
        """True once a process of each shared host has loaded the app or failed to."""
        return all(host.answered for host in self.shared)

    @property
    def any_single(self) -> bool:
        """Whether there are processes for single jobs or for trials, or one is about to start."""
        return bool(self._trial or any(self._alone.values()))

    # -- for the keepers -----------------------------------------------------------------------

    def place(self, who: Who, label: str, home: Home) -> int:
        """See `jobs.keeper.flow.Hosting`."""
        with self._lock:
            host = self._place(who, label, home)
            return host.up if host is not None else 0

    def _place(self, who: Who, label: str, home: Home) -> HostFlow | None:
        if home.alone:
            return self._process_of(who, label, home)
        if home is Home.BUILT_IN:
            if self._schedules is None:
                self._schedules = self._open("the job host of schedules and tickers", lasting=True)
            return self._schedules
        if self._strikes.apart(who, self._clock()):
            if self._trial is None:
                self._trial = self._open("the job host for trials", lasting=False)
            return self._trial
        return self.shared[crc32(who[1].encode()) % len(self.shared)]

    def _process_of(self, who: Who, label: str, home: Home) -> HostFlow | None:
        processes = self._alone[home]
        if who not in processes:
            full = home is Home.QUARANTINE and len(processes) >= self._quarantine
            if full or self._loading is not None:
                return None
            processes[who] = self._open(f"the process of {label}", lasting=False)
        return processes[who]

    def say(self, number: int, messages: Sequence[Message]) -> None:
        """See `jobs.keeper.flow.Hosting`."""
        for host in self._all():
            host.say(number, messages)

    def kill(self, number: int, reason: str, blame: Blame) -> None:
        """See `jobs.keeper.flow.Hosting`."""
        for host in self._all():
            host.kill(number, reason, blame)
        for listener in self.listeners:
            self._tell_if_down(listener)  # not only when its end is seen: see `Keeper.close`

    # -- for their threads ---------------------------------------------------------------------

    def look(self) -> None:
        """Look after all processes; call once in `host_watch.STEP` seconds."""
        for host in self._all():
            host.look()
            if not (host.lasting or host.runs) and self._clock() > host.ready_at + IDLE:
                self._end(host)
        if self._loading is not None and self._clock() > self._loads_until:
            self._loaded(self._loading)
            self._tell_of_room()

    def finish(self, timeout: Callable[[], float]) -> None:
        """End all processes: nothing should run any more. `timeout` returns the seconds left for that."""
        for host in self._all():
            host.finish(timeout())

    # -- from the hosts ------------------------------------------------------------------------

    def number(self) -> int:
        """See `host_flow.Owner`."""
        return next(self._numbers)

    def host_started(self, host: HostFlow) -> None:
        """See `host_flow.Owner`."""
        self._unloaded = 0
        self._loaded(host)
        for listener in self.listeners:
            if host in self.shared:
                listener.hosts_up(up=True)
            listener.host_started()

    def host_ended(self, host: HostFlow, number: int, runs: Collection[Start], blame: Blame | None) -> None:
        """See `host_flow.Owner`."""
        with self._lock:
            if blame is None:
                blame = self._suspected(host, runs)
            if not (host.lasting or host.loaded):
                self._unloaded += 1
            self._forget(host)
        for listener in self.listeners:
            if host in self.shared:
                self._tell_if_down(listener)
            listener.host_ended(number, blame)

    def heard(self, host: HostFlow, message: Message) -> None:
        """See `host_flow.Owner`."""
        for listener in self.listeners:
            listener.heard(message)
        if isinstance(message, Over) and not (host.lasting or host.runs):
            self._end(host)

    # -- inside --------------------------------------------------------------------------------

    def _tell_if_down(self, listener: Listener) -> None:
        if not any(host.up for host in self.shared):
            listener.hosts_up(up=False)

    def _suspected(self, host: HostFlow, runs: Collection[Start]) -> Blame:
        """Return whom to blame for an end of which nobody knows who did it."""
        if any(host in processes.values() for processes in self._alone.values()):
            return {run.ref: "its process ended" for run in runs}
        who = self._strikes.host_ended([_who(run) for run in runs], self._clock()) if runs else None
        return {run.ref: "its process ended each time it was there" for run in runs if _who(run) == who}

    def _host(self, name: str, *, lasting: bool = True) -> HostFlow:
        options = {"watchdog": self._watchdog, "grace": self._grace}
        return HostFlow(name, self, self._lease, self._clock, lasting=lasting, **options)

    def _open(self, name: str, *, lasting: bool) -> HostFlow:
        host = self._host(name, lasting=lasting)
        pause = min(RETRY_FIRST * 2.0 ** min(self._unloaded, 10), RETRY_LAST) if self._unloaded else 0.0
        if not lasting:
            self._loading, self._loads_until = host, self._clock() + pause + LOADING
        self._launch(host, host.attend(pause))
        return host

    def _end(self, host: HostFlow) -> None:
        """End a process that is not lasting; the next job that needs one gets another."""
        with self._lock:
            self._forget(host)
        host.finish(0.0)
        self._tell_of_room()

    def _tell_of_room(self) -> None:
        for listener in self.listeners:
            listener.host_started()

    def _loaded(self, host: HostFlow) -> None:
        if self._loading is host:
            self._loading = None

    def _forget(self, host: HostFlow) -> None:
        self._loaded(host)
        if self._trial is host and not host.lasting:
            self._trial = None
        for home, processes in self._alone.items():
            self._alone[home] = {who: one for who, one in processes.items() if one is not host}

    def _all(self) -> list[HostFlow]:
        with self._lock:
            alone = [one for processes in self._alone.values() for one in processes.values()]
            return [one for one in (*self.shared, self._schedules, self._trial, *alone) if one]


def _who(start: Start) -> Who:
    return start.keyspace, start.id
