"""The jobs, schedules and tickers declared in an app's code."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from celery_sticky.errors import InvalidJob, InvalidKey
from celery_sticky.jobs.client import Jobs
from celery_sticky.jobs.handler import MARK, Job, JobSpec, JobSpecs, check_name, origin
from celery_sticky.jobs.keeper.held import built_in_job
from celery_sticky.jobs.retry import DEFAULT_RETRY, Retry
from celery_sticky.jobs.schedule import Schedule, Ticker
from celery_sticky.keys import DEFAULT_KEYSPACE, check_keyspace, slot_for
from celery_sticky.stores.jobs import JobRecord

LEAST_EVERY = 0.1
"""Minimum interval of a schedule or ticker, in seconds: each call costs the store some requests."""


class DeclaredJobs:
    """The declarations, by keyspace and name."""

    def __init__(self) -> None:
        self._jobs = JobSpecs()
        self._built_in: dict[tuple[str, str], Schedule | Ticker] = {}
        """By keyspace and the name of the built-in job that runs it."""

    def job(self, name: str, keyspace: str, handler: Any, **options: Any) -> None:
        """Declare a job; `options` are those of `JobSpec`.

        Raises:
            InvalidJob: see `Sticky.job`.
        """
        self._jobs.add(JobSpec(check_name(name), keyspace, handler, **options))

    def schedule(
        self, name: str, job: str, keyspace: str | None, every: float, function: Any, *, allow_empty: bool
    ) -> None:
        """Declare a schedule; `keyspace` None: use the keyspace of its job.

        Raises:
            InvalidJob: see `Sticky.schedule`.
        """
        where = keyspace or self.keyspace_of(job) or DEFAULT_KEYSPACE
        where, every, function = _checked(name, where), _interval(name, every), _function(name, function)
        made = Schedule(name, where, job, every, function, allow_empty)
        self._add_built_in("schedule", made)

    def ticker(self, name: str, keyspace: str, every: float, function: Any) -> None:
        """Declare a ticker."""
        made = Ticker(name, _checked(name, keyspace), _interval(name, every), _function(name, function))
        self._add_built_in("ticker", made)

    def _add_built_in(self, kind: str, made: Schedule | Ticker) -> None:
        place = (made.keyspace, kind + MARK + check_name(made.name))
        known = self._built_in.get(place)
        if known is not None and origin(known.function) != origin(made.function):
            raise InvalidJob(f"the {kind} {made.name!r} is declared twice in keyspace {made.keyspace!r}")
        if isinstance(made, Schedule):
            self._check_alone(made)
        self._built_in[place] = made

    def _check_alone(self, made: Schedule) -> None:
        """Refuse a second schedule of one job: each would stop what the other starts."""
        for one in self._built_in.values():
            same = isinstance(one, Schedule) and (one.keyspace, one.job) == (made.keyspace, made.job)
            if same and one.name != made.name:
                raise InvalidJob(
                    f"the schedules {one.name!r} and {made.name!r} are both for the job {made.keyspace}/{made.job}, "
                    "and each would stop the jobs that the other starts: return the keys of both from one schedule, "
                    "or declare a job name for each"
                )

    def add(self, other: DeclaredJobs) -> None:
        """Add the declarations of another object."""
        if other is not self:
            for spec in other._jobs:
                self._jobs.add(spec)
            for (_, name), one in other._built_in.items():
                self._add_built_in(name.partition(MARK)[0], one)

    def keyspace_of(self, name: str) -> str | None:
        """Return the keyspace of a declared job, or None.

        Raises:
            InvalidJob: it is declared in several keyspaces.
        """
        found = sorted(spec.keyspace for spec in self._jobs if spec.name == name)
        if len(found) > 1:
            raise InvalidJob(f"job {name!r} is declared in the keyspaces {', '.join(found)}: name one with keyspace=…")
        return found[0] if found else None

    def find(self, keyspace: str, name: str) -> JobSpec | None:
        """Return a declared job, or None."""
        return self._jobs.find(keyspace, name)

    def max_deliveries(self, keyspace: str) -> Mapping[str, int]:
        """Return the jobs of a keyspace that have a maximum number of deliveries of their own."""
        limits = {spec.name: spec.max_deliveries for spec in self._jobs if spec.keyspace == keyspace}
        return {name: limit for name, limit in limits.items() if limit is not None}

    def isolated(self, keyspace: str) -> frozenset[str]:
        """Return the jobs of a keyspace of which each runs in a process of its own."""
        return frozenset(spec.name for spec in self._jobs if spec.keyspace == keyspace and spec.isolated)

    @property
    def keyspaces(self) -> frozenset[str]:
        """The keyspaces of all declarations."""
        return frozenset(one.keyspace for one in (*self._jobs, *self._built_in.values()))

    def check(self) -> None:
        """Check what requires all declarations to be present.

        Raises:
            InvalidJob: a schedule names a job that is not declared.
        """
        for one in self._built_in.values():
            if isinstance(one, Schedule) and self._jobs.find(one.keyspace, one.job) is None:
                having = ", ".join(self._jobs.names()) or "none"
                raise InvalidJob(
                    f"schedule {one.name!r} is for the job {one.keyspace}/{one.job}, which is not declared (declared: "
                    f"{having}): name a declared job, as in @sticky.schedule({one.name!r}, every=…, job=…)"
                )

    def retry_of(self, keyspace: str, name: str) -> Retry:
        """Return the retry policy of a job; that of one that is not declared is the default."""
        spec = self._jobs.find(keyspace, name)
        return spec.retry if spec is not None else DEFAULT_RETRY

    def specs(self, keyspaces: Collection[str], jobs: Callable[[], Jobs]) -> JobSpecs:
        """Return the jobs that a job host for these keyspaces runs; schedules dispatch with `jobs`."""
        built_in = [JobSpec(name, one.keyspace, _runner(one, jobs)) for (_, name), one in self._built_in.items()]
        found = JobSpecs()
        for spec in (*self._jobs, *built_in):
            if spec.keyspace in keyspaces:
                found.add(spec)
        return found

    def built_in(self, keyspace: str, slots: int) -> Mapping[int, list[JobRecord]]:
        """Return the built-in jobs that run this keyspace's schedules and tickers, by slot."""
        found: dict[int, list[JobRecord]] = {}
        for where, name in self._built_in:
            if where == keyspace:
                slot = slot_for(name, slots)
                found.setdefault(slot, []).append(built_in_job(name, slot))
        return found


def _runner(one: Schedule | Ticker, jobs: Callable[[], Jobs]) -> Any:
    async def run(job: Job) -> None:
        await one.run(job, jobs)

    return run


def _checked(name: str, keyspace: str) -> str:
    try:
        return check_keyspace(keyspace)
    except InvalidKey as error:
        raise InvalidJob(f"job {name!r}: {error}") from error


def _interval(name: str, every: Any) -> float:
    number = isinstance(every, int | float) and not isinstance(every, bool)
    if not number or not LEAST_EVERY <= every < float("inf"):
        raise InvalidJob(
            f"{name!r}: every is {every!r}, it must be a number of seconds, at least {LEAST_EVERY:g}; "
            "for continuous work declare a job"
        )
    return float(every)


def _function(name: str, function: Any) -> Any:
    if not callable(function):
        raise InvalidJob(f"{name!r} is a {type(function).__name__}, it must be a function without arguments")
    return function
