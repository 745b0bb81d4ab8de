"""The decisions about one job host of a worker: when its process starts, is replaced or killed, and who is to blame.

No thread, no clock, no process. The starts and the pauses between them are requests of a flow; orders go to the process
at once. A lasting host is one process after the other: when one dies, the next takes its place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from celery_sticky.jobs.keeper.host_watch import HostWatch
from celery_sticky.jobs.wire import Blocked, Message, Over, Ping, Pong, Ready, Start, Unready
from celery_sticky.membership.deadline import Reliance, Trust, TrustWatch
from celery_sticky.stores.flow import Pause

logger = logging.getLogger("celery_sticky.jobs")

RETRY_FIRST, RETRY_LAST = 0.2, 30.0
"""Seconds until a process that died is replaced: first and maximum; the pause doubles."""
LOADED_LAST = 2.0
"""Maximum pause in seconds after a process that had loaded the app: a job that kills it is itself made to wait."""
REMEDY = (
    "Until a host loads it, this worker stays out of keyspaces that have jobs: fix the error, set sticky_job_app to "
    "where the app is, or leave these keyspaces out (--sticky-keyspaces)"
)
"""What to do about a host that cannot load the app."""
STEADY = 60.0
"""Seconds after which a process counts as working."""
GRACE = 0.5
"""Seconds a process gets to end itself when the trust ends."""

Blame = Mapping[int, str]
"""The refs of the runs that are to blame for the end of a process, each with its error."""


class Host(Protocol):
    """A running host process; see `jobs.keeper.process.HostProcess`."""

    pid: int
    executed: frozenset[int]
    """The runs that it executed when it ended."""

    def listen(self) -> None:
        """Begin to report what the process says, and its end."""

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages without waiting."""

    def kill(self) -> None:
        """Kill the host and everything its jobs started."""

    def close(self, timeout: float) -> None:
        """Let the host end once nothing runs in it; kill it after `timeout` seconds."""


class Owner(Protocol):
    """Whom a host tells of itself. No method waits."""

    def number(self) -> int:
        """Return the number of the next process; no two processes of a worker have the same."""

    def host_started(self, host: HostFlow) -> None:
        """Take in that its process has loaded the app."""

    def host_ended(self, host: HostFlow, number: int, runs: Collection[Start], blame: Blame | None) -> None:
        """Take in that the process of this number is gone, with these runs. `blame` None: it is unknown who did it."""

    def heard(self, host: HostFlow, message: Message) -> None:
        """Take in a message of its process about a run."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Start a process that will report to `HostFlow.heard`, and return it as a `Host`. Raises `OSError`."""


Request = Begin | Pause
Flow = Generator[Request, Any, None]


class HostFlow:
    """One host of a worker. Any thread may call its methods; they do not wait."""

    def __init__(
        self,
        name: str,
        owner: Owner,
        lease: Trust,
        clock: Callable[[], float],
        *,
        lasting: bool = True,
        watchdog: float = 0.0,
        grace: float = 0.0,
    ) -> None:
        """`lasting`: a process that dies is replaced. `watchdog`: seconds it may do nothing; 0: any time.

        `grace`: seconds after the end of trust for which its jobs may go on stopping.
        """
        self.name, self.lasting = name, lasting
        self._owner, self._lease, self._clock, self._watchdog = owner, lease, clock, watchdog
        self.answered = False
        """True once a process has loaded the app or failed to."""
        self.up = 0
        """The number of the process, if it has loaded the app and is to live on; else 0."""
        self.runs: dict[int, Start] = {}
        """Ref -> what the process was told to start and has not ended."""
        self.ready_at = float("inf")
        """When the process had loaded the app."""
        self._host: Host | None = None
        self._number = 0
        self._started_at = 0.0
        self._failures = 0
        self._blame: Blame | None = None
        """Who is to blame, if the process was killed from here."""
        self.loaded = False
        """Whether the process has loaded the app."""
        self._error = ""
        """Why the process cannot load the app."""
        self._host_watch: HostWatch | None = None
        """Whether the process does something; None: nobody asks, or it has not loaded the app yet."""
        self._running = True
        self.watch = TrustWatch(lease, self._relied_on, self._trust_ended, clock, grace=GRACE + grace)
        """Kills a process that does not end itself when the trust ends."""

    # -- flows ---------------------------------------------------------------------------------

    def begin(self) -> Flow:
        """Start a process.

        Raises:
            OSError: it cannot be started.
        """
        self._number = self._owner.number()
        self._started_at, self.loaded, self._error = self._clock(), False, ""
        self._host = host = yield Begin()
        host.listen()  # not before: what is said in answer to its first message must reach it

    def attend(self, pause: float = 0.0) -> Flow:
        """Start a process after a pause, however often that fails."""
        while self._running:
            yield Pause(pause)
            if not self._running:
                return
            try:
                yield from self.begin()
                return
            except OSError:  # out of memory or descriptors: this may pass, and the worker holds slots
                pause = RETRY_LAST
                logger.exception("jobs: %s cannot be started; trying again in %.0f s", self.name, pause)

    def replace(self, status: int) -> Flow:
        """Take in that the process has ended with this exit status; start the next one after a pause, if it is lasting.

        The status is negative if a signal ended it.
        """
        blame = self._take_in_end(status)
        if self._running and self.lasting:
            yield from self.attend(self._pause(status, blame))
        elif self._running:
            logger.error("jobs: %s has died (exit status %d)%s", self.name, status, _told(blame))

    def _take_in_end(self, status: int) -> Blame | None:
        host, self._host, self._host_watch, self.up = self._host, None, None, 0
        self.answered, self.ready_at = True, float("inf")
        runs, self.runs = self.runs, {}
        blame, self._blame = self._blame if self._running else {}, None
        if blame is None and host is not None:
            blame = self._blamed(host, runs, status)
        self._owner.host_ended(self, self._number, list(runs.values()), blame)
        return blame

    def _blamed(self, host: Host, runs: Mapping[int, Start], status: int) -> Blame | None:
        """Return who was executed when the process died; None: nobody, so anyone may have done it."""
        untrusted = [start for start in runs.values() if not self._lease.trusted(*_reliance(start))]
        if untrusted:  # then the host kills itself
            logger.error("jobs: %s has ended itself, because %s", self.name, _end_of_lease(untrusted[0].keyspace))
            return {}
        error = f"its process ended (exit status {status}) while it was executed"
        return {ref: error for ref in host.executed if ref in runs} or None

    def _pause(self, status: int, blame: Blame | None) -> float:
        """Return the seconds until the next process starts, and log them."""
        # With the one to blame the trouble is gone.
        self._failures = 1 if blame or self._clock() - self._started_at > STEADY else self._failures + 1
        most = LOADED_LAST if self.loaded else RETRY_LAST
        pause = min(RETRY_FIRST * 2.0 ** min(self._failures - 1, 10), most)
        if self.loaded:
            logger.error(
                "jobs: %s has died (exit status %d)%s; the next one starts in %.1f s",
                self.name,
                status,
                _told(blame),
                pause,
            )
        else:
            why = self._error or f"it died first (exit status {status})"
            logger.error(
                "jobs: %s has not loaded the app: %s; the next one tries in %.1f s. %s", self.name, why, pause, REMEDY
            )
        return pause

    # -- the process at hand -------------------------------------------------------------------

    def heard(self, message: Message) -> None:
        """Take in a message from the process."""
        match message:
            case Ready(names):
                logger.info("jobs: %s runs %s", self.name, ", ".join(names) or "nothing")
                self.loaded, self.up, self.ready_at = True, self._number, self._clock()
                self._host_watch = HostWatch(self._watchdog, self._clock()) if self._watchdog else None
                self._owner.host_started(self)
                self.answered = True
            case Unready(error):
                self._error = error
            case Pong() | Blocked():
                if (watch := self._host_watch) is not None:
                    watch.heard(message)
            case _:
                if isinstance(message, Over):
                    self.runs.pop(message.ref, None)
                self._owner.heard(self, message)

    def look(self) -> None:
        """Ping the process, or kill one that has done nothing for too long; call once in `host_watch.STEP` seconds."""
        watch = self._host_watch
        if watch is None:
            return
        if why := watch.overdue(self._clock()):
            self._host_watch = None
            self.kill(self._number, f"{why} (sticky_job_watchdog)", self._blamed_for_silence(why))
        else:
            self.say(self._number, [Ping()])

    def _blamed_for_silence(self, why: Blocked | str) -> Blame | None:
        if isinstance(why, Blocked) and why.ref in self.runs:
            return {why.ref: f"it blocked the event loop of its job host for {why.seconds:.0f} s"}
        return None

    def _blocking(self) -> Blame | None:
        """Return who blocks the loop: then others cannot even begin to do what they are late with."""
        blocked = self._host_watch.blocked if self._host_watch is not None else None
        return self._blamed_for_silence(blocked) if blocked is not None else None

    def say(self, number: int, messages: Sequence[Message]) -> None:
        """See `jobs.keeper.flow.Hosting`."""
        host = self._host
        if messages and host is not None and number == self._number:
            self.runs.update({message.ref: message for message in messages if isinstance(message, Start)})
            host.send(messages)

    def kill(self, number: int, reason: str, blame: Blame | None) -> None:
        """See `jobs.keeper.flow.Hosting`. `blame` None: to blame are those that are executed."""
        host = self._host
        if host is not None and number == self._number:
            logger.error("jobs: %s; killing %s, process %d", reason, self.name, host.pid)
            self._blame, self.up = (self._blocking() if blame else None) or blame, 0
            host.kill()

    def finish(self, timeout: float) -> None:
        """End the process, in which nothing should run any more; see `Host.close`. No other one follows."""
        self._running, self.up = False, 0
        if (host := self._host) is not None:
            host.close(timeout)

    def _relied_on(self) -> Iterable[Reliance]:
        return {_reliance(start) for start in list(self.runs.values())}

    def _trust_ended(self, reliance: Reliance) -> None:
        self.kill(self._number, _end_of_lease(reliance[0]), {})


def _end_of_lease(keyspace: str) -> str:
    return f"the lease of keyspace {keyspace} has ended"


def _reliance(start: Start) -> Reliance:
    return start.keyspace, start.membership


def _told(blame: Blame | None) -> str:
    return f", to blame: {len(blame)} of its jobs" if blame else ""
