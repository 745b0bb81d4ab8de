"""What a process that wants jobs can ask: `sticky.jobs`. It needs the store alone, no broker and no worker's code."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from celery_sticky.errors import (
    DispatchTimeout,
    InvalidJob,
    InvalidPayload,
    JobConflict,
    JobExists,
    JobFailed,
    KeyspaceClosed,
    KeyspaceFull,
    NoSuchJob,
    NoWorker,
    ShutdownTimeout,
)
from celery_sticky.jobs.handler import MARK, check_name
from celery_sticky.keys import DEFAULT_KEYSPACE, Key, Slot, check_keyspace, job_place, key_text, slot_for
from celery_sticky.keyspace import Keyspace, Unpinned
from celery_sticky.settings import Settings
from celery_sticky.stores.jobs import Admission, DispatchOutcome, Fate, JobRecord, JobState, JobStore, NewJob
from celery_sticky.stores.lent import Clients

MAX_PAYLOAD = 256 * 1024
"""Bytes of a payload's JSON."""
MAX_ID = 200
"""Characters of a dispatch's id."""
MAX_NOTES = 1000
"""Notifications that may wait for a job."""
STEP = 0.05
"""Seconds between two looks whether something has gone."""


@dataclass(frozen=True, slots=True)
class JobInfo:
    """A job that is wanted."""

    name: str
    key: str
    keyspace: str
    slot: int
    id: str
    payload: Any
    state: str
    """`queued`, `starting`, `running`, `failing` or `stopping`."""
    worker: str
    """The worker that last started it; empty: none has."""
    epoch: int
    attempt: int
    error: str
    """Why its last start or run failed; empty: it did not."""
    created: float
    """When it was dispatched, in seconds since the epoch."""


class Jobs:
    """The jobs of an app's keyspaces. Any thread may use it, also after a fork.

    `keyspace` may be left out where the job's code is known (it is the one the job was declared with), or where it is
    `default`.
    """

    def __init__(
        self,
        settings: Callable[[], Settings],
        open_store: Callable[[str], JobStore],
        keyspace_of: Callable[[str], str | None],
        placement_of: Callable[[Keyspace, str], Slot],
    ) -> None:
        self._settings, self._keyspace_of, self._placement_of = settings, keyspace_of, placement_of
        self._stores = Clients(open_store)

    def dispatch(
        self,
        name: str,
        key: Key,
        payload: Any = None,
        *,
        keyspace: str | None = None,
        timeout: float | None = None,
        id: str | None = None,  # noqa: A002  as in `apply_async`'s results
    ) -> str:
        """Want a job, and return the id of this dispatch once the job has started.

        `timeout` is in seconds; None: the setting `sticky_job_start_timeout`. A dispatch that timed out can be repeated
        with its `id`: the job is started once, and the repeat gets the first one's outcome.

        Raises:
            JobExists: a job of this name and key is wanted already.
            JobFailed: its start raised; it is wanted no more.
            DispatchTimeout: it has not started yet, and may still do so.
            KeyspaceFull: too many jobs wait for their start. KeyspaceClosed: `shutdown` was called.
            JobConflict: the `id` was used for another job or payload.
            NotPinned, AssignmentFailed: in a keyspace that directs keys, the key belongs to no worker now.
            InvalidKey, InvalidPayload, InvalidJob (its name or `id`): nothing was sent.
            StoreUnavailable: it may or may not be wanted now: repeat it with its `id`.
        """
        job_id, outcome = self._admit(name, key, payload, keyspace, id)
        limit = self._settings().job_start_timeout if timeout is None else timeout
        if outcome is None:
            with self._stores.lend(self._keyspace(name, keyspace)) as store:
                outcome = store.outcome(job_id, limit)
        if outcome is None:
            raise DispatchTimeout(name, key_text(key), job_id, limit)
        if outcome.error:
            raise JobFailed(f"job {name!r} of key {key_text(key)!r} failed to start: {outcome.error}")
        return job_id

    def admit(
        self,
        name: str,
        key: Key,
        payload: Any = None,
        *,
        keyspace: str | None = None,
        id: str | None = None,  # noqa: A002
    ) -> str:
        """Want a job, and do not wait for its start. Raises as `dispatch`, save what comes of the start."""
        return self._admit(name, key, payload, keyspace, id)[0]

    def _admit(
        self, name: str, key: Key, payload: Any, keyspace: str | None, job_id: str | None
    ) -> tuple[str, DispatchOutcome | None]:
        keyspace, text = self._keyspace(check_name(name), keyspace), key_text(key)
        if job_id is not None and not (isinstance(job_id, str) and 0 < len(job_id) <= MAX_ID and MARK not in job_id):
            raise InvalidJob(
                f"job {name!r}: the id {job_id!r} must be text of at most {MAX_ID} characters, without {MARK!r}"
            )
        job = NewJob(name, text, self._place(text, keyspace), job_id or uuid4().hex, _as_json(name, payload))
        settings = self._settings()
        if (placed := settings.placed_keyspace(keyspace)) is not None:
            self._check(placed, text)
        with self._stores.lend(keyspace) as store:
            admission, outcome = store.admit(
                job, max_queued=settings.job_max_queued, outcome_ttl=settings.job_outcome_ttl
            )
        what = f"job {name!r} of key {text!r}"
        match admission:
            case Admission.EXISTS:
                raise JobExists(f"{what} is wanted already: stop it first, or leave it")
            case Admission.CONFLICT:
                raise JobConflict(f"{what}: the id {job.id!r} was used for another job or payload: take a new one")
            case Admission.FULL:
                most = f"{settings.job_max_queued} jobs of keyspace {keyspace!r} wait for their start"
                raise KeyspaceFull(f"{what}: {most}: try later, or raise sticky_job_max_queued")
            case Admission.CLOSED:
                raise KeyspaceClosed(f"{what}: keyspace {keyspace!r} is shut down: `sticky.jobs.reopen({keyspace!r})`")
        return job.id, outcome

    def notify(self, name: str, key: Key, payload: Any = None, *, keyspace: str | None = None) -> None:
        """Send a notification to a job, wherever it runs; it gets it once at least, in order, also while it moves.

        Raises:
            NoSuchJob: no such job is wanted.
            KeyspaceFull: too many notifications wait for this job.
            NotPinned: the key is pinned by no live worker, in a keyspace that refuses such keys.
        """
        keyspace, text, body = self._keyspace(name, keyspace), key_text(key), _as_json(name, payload)
        placed = self._settings().placed_keyspace(keyspace)
        if placed is not None and placed.unpinned == Unpinned.REFUSE:
            self._check(placed, text)
        with self._stores.lend(keyspace) as store:
            fate = store.notify(self._place(text, keyspace), name, text, body, limit=MAX_NOTES)
        if fate is Fate.NO_JOB:
            raise NoSuchJob(_missing(name, text, keyspace))
        if fate is Fate.FULL:
            raise KeyspaceFull(
                f"{MAX_NOTES} notifications wait for job {name!r} of key {text!r}: it does not take them"
            )

    def stop(self, name: str, key: Key, *, keyspace: str | None = None, timeout: float = 0.0) -> None:
        """Want a job no more; with a `timeout` in seconds, wait until nothing is left of it.

        One that is dispatched meanwhile is not waited for; it starts when the old one has ended.

        Raises:
            NoSuchJob: no such job is wanted.
            ShutdownTimeout: it has not stopped within `timeout`, and is still told to.
        """
        keyspace, text = self._keyspace(name, keyspace), key_text(key)
        place = self._place(text, keyspace)
        with self._stores.lend(keyspace) as store:
            if not store.stop(place, name, text):
                raise NoSuchJob(_missing(name, text, keyspace))
            if timeout:
                _wait_gone(lambda: store.records(name, text, place), timeout)

    def list(self, name: str | None = None, *, keyspace: str | None = None) -> list[JobInfo]:
        """Return what is wanted in a keyspace, by name and key."""
        keyspace = self._keyspace(name, keyspace)
        with self._stores.lend(keyspace) as store:
            found = store.records(name)
        return sorted((self._info(record, keyspace) for record in found), key=lambda info: (info.name, info.key))

    def keys(self, name: str, *, keyspace: str | None = None) -> set[str]:
        """Return the keys that have a job of this name, without those that are being stopped: cheaper than `list`."""
        with self._stores.lend(self._keyspace(name, keyspace)) as store:
            return set(store.keys(name))

    def get(self, name: str, key: Key, *, keyspace: str | None = None) -> JobInfo | None:
        """Return what is known of a job, or None where no such one is wanted."""
        keyspace, text = self._keyspace(name, keyspace), key_text(key)
        with self._stores.lend(keyspace) as store:
            found = store.records(name, text, self._place(text, keyspace))
        return self._info(found[0], keyspace) if found else None

    def shutdown(self, keyspace: str = DEFAULT_KEYSPACE, *, timeout: float | None = None) -> None:
        """Stop every job of a keyspace on every worker, admit no more, and return when nothing of these is left.

        `timeout` is in seconds (None: the setting `sticky_job_shutdown_timeout`). May be repeated. `reopen` undoes it.

        Raises:
            ShutdownTimeout: something is left; it is still told to stop.
        """
        with self._stores.lend(check_keyspace(keyspace)) as store:
            store.close_keyspace(closed=True)
            _wait_gone(store.records, self._settings().job_shutdown_timeout if timeout is None else timeout)

    def reopen(self, keyspace: str = DEFAULT_KEYSPACE) -> None:
        """Admit jobs again after a `shutdown`."""
        with self._stores.lend(check_keyspace(keyspace)) as store:
            store.close_keyspace(closed=False)

    def claim_tick(self, name: str, number: int, *, keyspace: str) -> bool:
        """Return whether this call is the first one for tick `number` of a ticker; see `JobStore.claim_tick`."""
        with self._stores.lend(keyspace) as store:
            return store.claim_tick(name, number)

    def close(self) -> None:
        """Let go of every connection. It may still be used."""
        self._stores.close()

    def _keyspace(self, name: str | None, keyspace: str | None) -> str:
        if keyspace is not None:
            return check_keyspace(keyspace)
        return (self._keyspace_of(name) if name is not None else None) or DEFAULT_KEYSPACE

    def _place(self, key: str, keyspace: str) -> Slot:
        """Return where the jobs of a key stand in the store."""
        return self._slot(key, keyspace) if self._settings().placed_keyspace(keyspace) is None else job_place(key)

    def _slot(self, key: str, keyspace: str) -> int:
        return slot_for(key, self._settings().slots_of(keyspace))

    def _check(self, placed: Keyspace, key: str) -> None:
        """Raise where a key belongs to nobody; a job may wait for a worker to come."""
        with suppress(NoWorker):
            self._placement_of(placed, key)

    def _info(self, record: JobRecord, keyspace: str) -> JobInfo:
        return JobInfo(
            record.name,
            record.key,
            keyspace,
            record.slot if isinstance(record.slot, int) else self._slot(record.key, keyspace),
            record.id,
            json.loads(record.payload),
            record.state.value,
            record.worker,
            record.epoch,
            record.attempt,
            record.error,
            record.created,
        )


def _wait_gone(left: Callable[[], Sequence[JobRecord]], timeout: float) -> None:
    """Wait until the jobs that are left now are gone; not for those that are dispatched meanwhile."""
    deadline = time.monotonic() + timeout
    ids = {record.id for record in left() if record.state is JobState.STOPPING}
    while found := [record for record in left() if record.id in ids]:
        if time.monotonic() >= deadline:
            some = ", ".join(f"{record.name} of {record.key!r} at {record.worker or 'nobody'}" for record in found[:5])
            raise ShutdownTimeout(f"{len(found)} jobs are left after {timeout:g} s: {some}")
        time.sleep(STEP)


def _as_json(name: str, payload: Any) -> bytes:
    try:
        # Sorted: a repeat of a dispatch has the same bytes, however its payload was put together.
        text = json.dumps(payload, separators=(",", ":"), allow_nan=False, sort_keys=True).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidPayload(f"job {name!r}: its payload is no JSON: {error}") from error
    if len(text) > MAX_PAYLOAD:
        raise InvalidPayload(
            f"job {name!r}: its payload is {len(text)} bytes of JSON, at most {MAX_PAYLOAD} are allowed; "
            "store it elsewhere and send a reference"
        )
    return text


def _missing(name: str, key: str, keyspace: str) -> str:
    return f"there is no job {name!r} of key {key!r} in keyspace {keyspace!r}"
