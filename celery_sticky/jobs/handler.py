"""How jobs are written, and the `Job` object they receive.

A job is a coroutine function, a plain function, or a class with `start`, `stop` and `notify`.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

from celery_sticky.errors import InvalidJob, InvalidKey
from celery_sticky.jobs.inbox import Inbox
from celery_sticky.jobs.payload import MAX_SAVED, as_json
from celery_sticky.jobs.retry import DEFAULT_RETRY, Retry
from celery_sticky.jobs.saves import Saves
from celery_sticky.jobs.thread_inbox import ThreadInbox
from celery_sticky.keys import check_keyspace

MAX_NAME = 200
"""Maximum length of a job's name, in bytes."""
MARK = ":"
"""Occurs in the names of the built-in jobs that run schedules and tickers, and in no other job's name."""


class BaseJob:
    """What every run of a job has."""

    __slots__ = (
        "_end",
        "_logger",
        "_ref",
        "_saves",
        "attempt",
        "epoch",
        "id",
        "key",
        "keyspace",
        "name",
        "payload",
        "saved",
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
        end: Callable[[str], None],
        logger: logging.Logger,
        saved: Any,
        saves: Saves,
        ref: int,
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
        """Call `job.started()` in a function once it works: until then an error means that its start failed."""
        self.saved = saved
        """The checkpoint that an earlier run saved last; None: none did."""
        self._end, self._logger, self._saves, self._ref = end, logger, saves, ref

    def __repr__(self) -> str:
        return f"<job {self.name} of key {self.key!r}>"

    def save(self, checkpoint: Any) -> Awaitable[None]:
        """Save a checkpoint: JSON of at most 64 KiB, which the job's next run gets as `saved`. Await the result.

        It is stored when the await returns. Only the last checkpoint is kept. It survives restarts, moves and failures,
        and goes with the job. While the store is down, the await lasts until the store is back.

        Raises:
            InvalidPayload: it is not JSON, or too long.
            BlockingCall: this is a thread: call `save_sync`.
            SaveRefused: it is not stored, because this run is about to be stopped or killed.
        """
        return self._saves.send(self._ref, as_json(self.name, checkpoint, "checkpoint", MAX_SAVED))

    def save_sync(self, checkpoint: Any) -> None:
        """Save a checkpoint and wait until it is stored, in a thread. Raises as `save`."""
        self._saves.send_and_wait(self._ref, as_json(self.name, checkpoint, "checkpoint", MAX_SAVED))

    def fail(self, reason: str) -> None:
        """End this run as if it had raised an error: it is started again later, and its state is `failing` until then.

        A class is stopped by its `stop`, a coroutine is cancelled, and a plain function finds `job.stopping` set. Any
        thread may call this.
        """
        self._end(str(reason) or "it gave no reason")

    def done(self) -> None:
        """End the job as if its coroutine had returned: the job is removed. Otherwise as `fail`."""
        self._end("")

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines name the job."""
        return _JobLogger(self._logger, {"job": self.name, "key": self.key})


class Job(BaseJob):
    """One run of a job, as a coroutine or a `JobHandler` sees it."""

    __slots__ = ("inbox",)

    def __init__(self, *, inbox: Inbox, **common: Any) -> None:
        super().__init__(**common)
        self.inbox = inbox
        """Of a coroutine. A class gets its notifications by its `notify`."""


class ThreadJob(BaseJob):
    """One run of a job, as a plain function sees it, which has a thread of its own."""

    __slots__ = ("inbox", "stopping")

    def __init__(self, *, inbox: ThreadInbox, **common: Any) -> None:
        super().__init__(**common)
        self.inbox = inbox
        self.stopping = threading.Event()
        """Set when the job is to stop: `while not job.stopping.wait(1): …`."""


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
        """Handle a notification. If this raises, it is called again later, and other notifications wait for that."""
        job.logger.warning("has no `notify`: the notification is dropped")


JobFunction = Callable[[Job], Coroutine[Any, Any, Any]] | Callable[[ThreadJob], None]
Handler = JobFunction | type[JobHandler]


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A kind of job.

    Raises:
        InvalidJob: its name, keyspace, handler or options cannot be used.
    """

    name: str
    keyspace: str
    handler: Handler
    retry: Retry = DEFAULT_RETRY
    max_notes: int | None = None
    """How many notifications may wait for a job; None: as the settings say."""
    max_deliveries: int | None = None
    """How often a job gets a notification that it cannot handle; None: as the settings say."""
    isolated: bool = False
    """Whether each job of this name runs in a process of its own."""

    def __post_init__(self) -> None:
        check_name(self.name.replace(MARK, "") if isinstance(self.name, str) else self.name)
        try:
            check_keyspace(self.keyspace)
        except InvalidKey as exc:
            raise InvalidJob(f"job {self.name!r}: {exc}") from exc
        for option in ("max_notes", "max_deliveries"):
            value = getattr(self, option)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidJob(f"job {self.name!r}: {option} is {value!r}, it must be a whole number, at least 1")
        if not isinstance(self.isolated, bool):
            raise InvalidJob(f"job {self.name!r}: isolated is {self.isolated!r}, it must be True or False")
        if wrong := self.retry.wrong():
            raise InvalidJob(f"job {self.name!r}: {wrong}")
        self._check_handler()

    def _check_handler(self) -> None:
        handler: Any = self.handler
        if inspect.isclass(handler) and issubclass(handler, JobHandler):
            if handler.start is JobHandler.start:
                raise InvalidJob(f"job {self.name!r}: {handler.__qualname__} has no `start`")
        elif not (inspect.isfunction(handler) or inspect.ismethod(handler)) or _is_generator(handler):
            raise InvalidJob(
                f"job {self.name!r} is {handler!r}: it must be an `async def`, a `def`, or a subclass of JobHandler"
            )


def _is_generator(handler: Any) -> bool:
    return inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler)


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
