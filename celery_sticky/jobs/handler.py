"""How jobs are written, and the `Job` object they receive.

A job is a coroutine function, or a class with `start`, `stop` and `notify`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any, Self

from celery_sticky.errors import InvalidJob, InvalidKey
from celery_sticky.keys import check_keyspace

MAX_NAME = 200
"""Maximum length of a job's name, in bytes."""
MARK = ":"
"""Occurs in the names of the built-in jobs that run schedules and tickers, and in no other job's name."""


class Inbox:
    """The notifications of a coroutine job, in order: `async for payload in job.inbox`, or `await job.inbox.get()`."""

    __slots__ = ("_begun", "_notes", "_taken", "_waiting")

    def __init__(self, begun: Callable[[], None], taken: Callable[[str], None]) -> None:
        self._begun, self._taken = begun, taken
        # Thousands of jobs may wait here for notifications that never come, so the queue is created on first use.
        self._notes: deque[tuple[str, Any]] | None = None
        self._waiting: list[asyncio.Future[None]] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return await self.get()

    async def get(self) -> Any:
        """Wait for a notification and return its payload. Waiting counts as the job having started."""
        self._begun()
        while not self._notes:
            await self._arrival()
        note, payload = self._notes.popleft()
        self._taken(note)  # only now: notifications left in the inbox go to the job's next run
        return payload

    def put(self, note: str, payload: Any) -> None:
        """Add a notification."""
        if self._notes is None:
            self._notes = deque()
        self._notes.append((note, payload))
        for waiter in self._waiting or ():
            if not waiter.done():
                waiter.set_result(None)

    async def _arrival(self) -> None:
        if self._waiting is None:
            self._waiting = []
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        finally:
            self._waiting.remove(waiter)


class Job:
    """One run of a job, as its handler sees it."""

    __slots__ = (
        "_logger",
        "attempt",
        "epoch",
        "id",
        "inbox",
        "key",
        "keyspace",
        "name",
        "payload",
        "started",
        "worker",
    )

    def __init__(
        self,
        *,
        name: str,
        key: str,
        keyspace: str,
        id: str,  # noqa: A002  as in a task's request
        epoch: int,
        attempt: int,
        payload: Any,
        worker: str,
        started: Callable[[], None],
        taken: Callable[[str], None],
        logger: logging.Logger,
    ) -> None:
        self.name, self.key, self.keyspace = name, key, keyspace
        self.id = id
        """The id of the dispatch; the same in each run."""
        self.epoch = epoch
        """Grows when the key's slot changes hands: use it as a fencing token for what the job writes elsewhere."""
        self.attempt = attempt
        """The number of this start, from 1."""
        self.payload = payload
        self.worker = worker
        """The node name of the worker that owns the key."""
        self.started = started
        """Call `job.started()` in a coroutine once it works: until then an error means that its start failed."""
        self.inbox = Inbox(started, taken)
        self._logger = logger

    def __repr__(self) -> str:
        return f"<job {self.name} of key {self.key!r}>"

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines name the job."""
        return _JobLogger(self._logger, {"job": self.name, "key": self.key})


class _JobLogger(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        job, key = (self.extra or {}).values()
        return f"{job}[{key}]: {msg}", {**kwargs, "extra": {**(self.extra or {}), **kwargs.get("extra", {})}}


class JobHandler:
    """Base of jobs that are written as a class.

    Each run of a job has its own instance, so `self` can hold its connection. Async methods run in the host's event
    loop, other methods in a thread. They are called one at a time. `__init__` takes no arguments and runs in the loop:
    connect in `start`.
    """

    def start(self, job: Job) -> Any:
        """Start the job and return. If this raises, the start has failed, and no other method is called."""
        raise NotImplementedError

    def stop(self, job: Job) -> Any:
        """End everything that `start` began. When this returns, nothing of the job may be left."""

    def notify(self, job: Job, payload: Any) -> Any:
        """Handle a notification."""
        job.logger.warning("has no `notify`: the notification is dropped")


JobFunction = Callable[[Job], Coroutine[Any, Any, Any]]
Handler = JobFunction | type[JobHandler]


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A kind of job.

    Raises:
        InvalidJob: its name, keyspace or handler cannot be used.
    """

    name: str
    keyspace: str
    handler: Handler

    def __post_init__(self) -> None:
        check_name(self.name.replace(MARK, "") if isinstance(self.name, str) else self.name)
        try:
            check_keyspace(self.keyspace)
        except InvalidKey as exc:
            raise InvalidJob(f"job {self.name!r}: {exc}") from exc
        self._check_handler()

    def _check_handler(self) -> None:
        handler: Any = self.handler
        if inspect.isclass(handler) and issubclass(handler, JobHandler):
            if handler.start is JobHandler.start:
                raise InvalidJob(f"job {self.name!r}: {handler.__qualname__} has no `start`")
        elif not inspect.iscoroutinefunction(handler):
            raise InvalidJob(
                f"job {self.name!r} is {handler!r}: it must be an `async def`, or a subclass of JobHandler"
            )


def check_name(name: object) -> str:
    """Return the name if it is valid for a job.

    Raises:
        InvalidJob: it is empty, too long, not text, or contains the reserved mark.
    """
    if not isinstance(name, str) or not name:
        raise InvalidJob(f"a job's name is {name!r}: it must be non-empty text")
    if len(name.encode(errors="replace")) > MAX_NAME:
        raise InvalidJob(f"a job's name has at most {MAX_NAME} bytes: {name[:40]!r}… is too long")
    if MARK in name:
        raise InvalidJob(f"job {name!r}: a job's name must not contain {MARK!r}")
    return name


class JobSpecs:
    """The jobs of an app, by keyspace and name."""

    def __init__(self) -> None:
        self._specs: dict[tuple[str, str], JobSpec] = {}

    def add(self, spec: JobSpec) -> None:
        """Add a job. The same function or class, imported again, replaces the earlier one.

        Raises:
            InvalidJob: another job in this keyspace has this name.
        """
        known = self._specs.get((spec.keyspace, spec.name))
        if known is not None and origin(known.handler) != origin(spec.handler):
            raise InvalidJob(
                f"the name {spec.name!r} in keyspace {spec.keyspace!r} is taken by {origin(known.handler)}; "
                f"give {origin(spec.handler)} another name"
            )
        self._specs[spec.keyspace, spec.name] = spec

    def find(self, keyspace: str, name: str) -> JobSpec | None:
        """Return the job of this name, or None."""
        return self._specs.get((keyspace, name))

    def names(self) -> tuple[str, ...]:
        """Return all jobs, as `keyspace/name`."""
        return tuple(sorted(f"{keyspace}/{name}" for keyspace, name in self._specs))

    def __iter__(self) -> Iterator[JobSpec]:
        return iter(tuple(self._specs.values()))


def origin(handler: Any) -> str:
    """Return where a function or class was defined; this is the same if it was imported twice."""
    return f"{getattr(handler, '__module__', '')}.{getattr(handler, '__qualname__', handler)}"
