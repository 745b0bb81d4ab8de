"""The bad workload: admit bad jobs while good ones run, by a plan drawn from the seed, and stop them at the end."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from celery_sticky.app import Sticky
from celery_sticky.cli.verify.app import make_app
from celery_sticky.cli.verify.bad_jobs import Bad, is_bad
from celery_sticky.cli.verify.site import Site
from celery_sticky.errors import NoSuchJob, StickyError
from celery_sticky.jobs.client import Jobs
from celery_sticky.jobs.info import JobInfo

LEAD_IN = 1.0
"""Seconds of load before the first bad job."""
SHARE, LAST = 0.6, 0.8
"""Shares of the run's time in which one of each kind is admitted, and in which the others are."""
MORE = 3
"""Number of bad jobs beyond one of each kind."""
PROVOKED = 2.5, 6.0
"""Seconds after its admission at which a job that offends when it is stopped has to stop and start again."""
TURN = 0.2
"""Seconds between two turns. What failed, because of a fault, is done in the next one."""
LATEST = 30.0
"""Seconds after the end of the load in which the rest of the plan must be possible."""
ENDING = 20.0
"""Seconds within which all bad jobs stop, once they are to."""


@dataclass(frozen=True, slots=True)
class Deed:
    """An entry of the plan."""

    at: float
    """Seconds since the load began."""
    kind: Bad
    key: str
    again: bool = False
    """It was admitted before: have it stop and start again, after a note to it."""


def plan_deeds(seed: int, seconds: float) -> list[Deed]:
    """Return the plan of a seed for a load of so many seconds, in its order."""
    draw = random.Random(f"bad-{seed}")
    kinds = draw.sample(list(Bad), len(Bad))
    step = max(seconds * SHARE - LEAD_IN, 0.0) / len(kinds)
    admitted = [Deed(LEAD_IN + step * index, kind, kind.key(0)) for index, kind in enumerate(kinds)]
    for kind in draw.sample(kinds, MORE):
        admitted.append(Deed(draw.uniform(SHARE, LAST) * seconds, kind, kind.key(1)))
    again = [
        Deed(deed.at + pause, deed.kind, deed.key, again=True)
        for deed in admitted
        if deed.kind.offends_when_stopped
        for pause in PROVOKED
    ]
    return sorted([*admitted, *again], key=lambda deed: deed.at)


class BadWorkload:
    """Carries out the plan in a thread while the block is open and until `finish`."""

    def __init__(self, site: Site, *, seed: int, seconds: float) -> None:
        self._app, self._keyspace = make_app(site), site.keyspace
        self._plan = plan_deeds(seed, seconds) if site.jobs else []
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True) if self._plan else None

    @property
    def _jobs(self) -> Jobs:
        return Sticky.of(self._app).jobs

    def __enter__(self) -> Self:
        """Begin the plan: the load begins now."""
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._given_up.set()

    def _run(self) -> None:
        began, left = time.monotonic(), list(self._plan)
        while left and not self._given_up.wait(TURN):
            late = [deed for deed in left if deed.at <= time.monotonic() - began]
            left = [deed for deed in left if deed not in late or not self._tried(deed)]

    def _tried(self, deed: Deed) -> bool:
        """Do it; return False if that was not possible."""
        with suppress(StickyError):
            if deed.again and self._provoked(deed):
                return True
            self._jobs.admit(deed.kind.job, deed.key)
            return True
        return False

    def _provoked(self, deed: Deed) -> bool:
        """Return False if the store has forgotten the job."""
        with suppress(NoSuchJob):
            if deed.kind is Bad.HANG_NOTIFY:
                self._jobs.notify(deed.kind.job, deed.key)
                time.sleep(1.0)  # until it has the note
            self._jobs.restart(deed.kind.job, deed.key)
            return True
        return False

    def finish(self) -> tuple[Sequence[JobInfo], Sequence[str]]:
        """Wait for the end of the plan and stop the bad jobs; return what they were, and those that have not stopped.

        Raises:
            StickyError: the store does not answer.
        """
        if self._thread is None:
            return (), ()
        self._thread.join(timeout=LATEST)
        self._given_up.set()
        infos = self._infos()
        until = time.monotonic() + ENDING
        for info in infos:
            with suppress(NoSuchJob):
                self._jobs.stop(info.name, info.key)
        while (left := self._infos()) and time.monotonic() < until:
            time.sleep(TURN)  # until the next look at those that still stop
        return infos, [info.key for info in left]

    def _infos(self) -> list[JobInfo]:
        return [info for info in self._jobs.list(keyspace=self._keyspace) if is_bad(info.key)]

    def close(self) -> None:
        """Close the connections."""
        self._given_up.set()
        if self._plan:
            self._jobs.close()
        self._app.close()
