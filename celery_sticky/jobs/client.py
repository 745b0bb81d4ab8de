"""`sticky.jobs`: the client API for jobs. It needs the store alone, no broker and no worker code."""

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
"""Maximum size of a payload's JSON, in bytes."""
MAX_ID = 200
"""Maximum length of a dispatch id, in characters."""
MAX_NOTES = 1000
"""Maximum number of notifications that may wait for a job."""
STEP = 0.05
"""Seconds between checks whether jobs are gone."""


@dataclass(frozen=True, slots=True)
class JobInfo:
    """A dispatched job."""

    name: str
    key: str
    keyspace: str
    slot: int
    id: str
    payload: Any
    state: str
    """`queued`, `starting`, `running`, `failing` or `stopping`."""
    worker: str
    """The worker that last started it; empty: none."""
    epoch: int
    attempt: int
    error: str
    """Why its last start or run failed; empty: it did not fail."""
    created: float
    """When it was dispatched, in seconds since the epoch."""


class Jobs:
    """The jobs of an app's keyspaces. Any thread may use it, also after a fork.

    `keyspace` may be omitted if the job's code is known (the keyspace it was declared with is used), or if it is
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
        """Dispatch a job; return the id of this dispatch once the job has started.

        `timeout` is in seconds; None: the setting `sticky_job_start_timeout`. A dispatch that timed out can be repeated
        with its `id`: the job starts once, and the repeat gets the outcome of the first dispatch.

        Raises:
            JobExists: a job of this name and key already exists.
            JobFailed: its start raised; the job is removed.
            DispatchTimeout: it has not started yet, and may still do so.
            KeyspaceFull: too many jobs wait for their start. KeyspaceClosed: `shutdown` was called.
            JobConflict: the `id` was used for another job or payload.
            NotPinned, AssignmentFailed: in a placed keyspace, no worker can be found for the key now.
            InvalidKey, InvalidPayload, InvalidJob (its name or `id`): nothing was sent.
            StoreUnavailable: the job may or may not have been dispatched: repeat the call with its `id`.
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
        """Dispatch a job without waiting for its start. Raises as `dispatch`, except for the outcome of the start."""
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
                raise JobExists(f"{what} already exists: stop it first, or keep it")
            case Admission.CONFLICT:
                raise JobConflict(f"{what}: the id {job.id!r} was used for another job or payload: use a new id")
            case Admission.FULL:
                most = f"{settings.job_max_queued} jobs of keyspace {keyspace!r} wait for their start"
                raise KeyspaceFull(f"{what}: {most}: try again later, or raise sticky_job_max_queued")
            case Admission.CLOSED:
                raise KeyspaceClosed(f"{what}: keyspace {keyspace!r} is shut down: `sticky.jobs.reopen({keyspace!r})`")
        return job.id, outcome

    def notify(self, name: str, key: Key, payload: Any = None, *, keyspace: str | None = None) -> None:
        """Send a notification to a job, wherever it runs. Delivery is at least once and in order, also during moves.

        Raises:
            NoSuchJob: no such job exists.
            KeyspaceFull: too many notifications wait for this job.
            NotPinned: no live worker has pinned the key, in a keyspace that refuses such keys.
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
                f"{MAX_NOTES} notifications wait for job {name!r} of key {text!r}: the job does not take them"
            )

    def stop(self, name: str, key: Key, *, keyspace: str | None = None, timeout: float = 0.0) -> None:
        """Stop a job; with a `timeout` in seconds, wait until nothing is left of it.

        A job dispatched meanwhile is not waited for; it starts when the old one has ended.

        Raises:
            NoSuchJob: no such job exists.
            ShutdownTimeout: it has not stopped within `timeout` seconds; the request to stop remains.
        """
        keyspace, text = self._keyspace(name, keyspace), key_text(key)
        place = self._place(text, keyspace)
        with self._stores.lend(keyspace) as store:
            if not store.stop(place, name, text):
                raise NoSuchJob(_missing(name, text, keyspace))
            if timeout:
                _wait_gone(lambda: store.records(name, text, place), timeout)

    def list(self, name: str | None = None, *, keyspace: str | None = None) -> list[JobInfo]:
        """Return the jobs of a keyspace, sorted by name and key."""
        keyspace = self._keyspace(name, keyspace)
        with self._stores.lend(keyspace) as store:
            found = store.records(name)
        return sorted((self._info(record, keyspace) for record in found), key=lambda info: (info.name, info.key))

    def keys(self, name: str, *, keyspace: str | None = None) -> set[str]:
        """Return the keys that have a job of this name, except jobs that are stopping. Cheaper than `list`."""
        with self._stores.lend(self._keyspace(name, keyspace)) as store:
            return set(store.keys(name))

    def get(self, name: str, key: Key, *, keyspace: str | None = None) -> JobInfo | None:
        """Return a job's state, or None if there is no such job."""
        keyspace, text = self._keyspace(name, keyspace), key_text(key)
        with self._stores.lend(keyspace) as store:
            found = store.records(name, text, self._place(text, keyspace))
        return self._info(found[0], keyspace) if found else None

    def shutdown(self, keyspace: str = DEFAULT_KEYSPACE, *, timeout: float | None = None) -> None:
        """Stop every job of a keyspace on every worker, admit no more, and return when nothing is left of them.

        `timeout` is in seconds (None: the setting `sticky_job_shutdown_timeout`). May be repeated. `reopen` undoes it.

        Raises:
            ShutdownTimeout: some jobs are left; the request to stop remains.
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
        """Close every connection. The object may still be used."""
        self._stores.close()

    def _keyspace(self, name: str | None, keyspace: str | None) -> str:
        if keyspace is not None:
            return check_keyspace(keyspace)
        return (self._keyspace_of(name) if name is not None else None) or DEFAULT_KEYSPACE

    def _place(self, key: str, keyspace: str) -> Slot:
        """Return the slot or key place that holds the jobs of a key in the store."""
        return self._slot(key, keyspace) if self._settings().placed_keyspace(keyspace) is None else job_place(key)

    def _slot(self, key: str, keyspace: str) -> int:
        return slot_for(key, self._settings().slots_of(keyspace))

    def _check(self, placed: Keyspace, key: str) -> None:
        """Raise if the key cannot be placed; a job may wait for a worker to join."""
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
    """Wait until the jobs that are stopping now are gone; ignore jobs dispatched meanwhile."""
    deadline = time.monotonic() + timeout
    ids = {record.id for record in left() if record.state is JobState.STOPPING}
    while found := [record for record in left() if record.id in ids]:
        if time.monotonic() >= deadline:
            some = ", ".join(f"{record.name} of {record.key!r} at {record.worker or 'nobody'}" for record in found[:5])
            raise ShutdownTimeout(f"{len(found)} jobs are left after {timeout:g} s: {some}")
        time.sleep(STEP)


def _as_json(name: str, payload: Any) -> bytes:
    try:
        # Sorted keys: a repeated dispatch has the same bytes, however its payload was built.
        text = json.dumps(payload, separators=(",", ":"), allow_nan=False, sort_keys=True).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidPayload(f"job {name!r}: its payload cannot be written as JSON: {error}") from error
    if len(text) > MAX_PAYLOAD:
        raise InvalidPayload(
            f"job {name!r}: its payload is {len(text)} bytes of JSON, the limit is {MAX_PAYLOAD}; "
            "store it elsewhere and send a reference"
        )
    return text


def _missing(name: str, key: str, keyspace: str) -> str:
    return f"there is no job {name!r} of key {key!r} in keyspace {keyspace!r}"
