"""`sticky.jobs`: the client API for jobs. It needs the store alone, no broker and no worker code."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

from celery_sticky.errors import (
    AssignmentFailed,
    DispatchTimeout,
    InboxFull,
    InvalidJob,
    InvalidSettings,
    JobConflict,
    JobExists,
    JobFailed,
    KeyspaceClosed,
    KeyspaceFull,
    KeyspaceMismatch,
    NoSuchJob,
    NotPinned,
    NoWorker,
    ShutdownTimeout,
    StickyError,
)
from celery_sticky.jobs.blocking import blocking, twin
from celery_sticky.jobs.dead_notes import DeadNotes, missing
from celery_sticky.jobs.handler import MARK, JobSpec, check_name
from celery_sticky.jobs.info import BulkResult, JobInfo
from celery_sticky.jobs.payload import as_json, pairs
from celery_sticky.jobs.shown import Owners, shown
from celery_sticky.jobs.waits import await_end, left_message, wait
from celery_sticky.keys import DEFAULT_KEYSPACE, HASH_NAME, Key, check_keyspace, key_text, slot_for
from celery_sticky.keyspace import Keyspace, Unpinned, how_to_agree
from celery_sticky.placement.lookup import PlacementLookup
from celery_sticky.settings import Settings
from celery_sticky.slots import KeyPlace, Slot
from celery_sticky.stores.base import Reading, Store
from celery_sticky.stores.jobs import Admission, DispatchOutcome, JobRecord, JobState, JobStore, NewJob
from celery_sticky.stores.lent import Clients
from celery_sticky.stores.notes import Fate
from celery_sticky.stores.ticks import Tick

MAX_ID = 200
"""Maximum length of a dispatch id, in characters."""


class Jobs:
    """The jobs of an app's keyspaces. Any thread may use it, also after a fork.

    `keyspace` may be omitted if the job's code is known (the keyspace it was declared with is used), or if it is
    `default`.

    Each method blocks. In a coroutine it raises `BlockingCall`; there, use its twin: `await sticky.jobs.adispatch(…)`
    for `dispatch`, and so on.
    """

    def __init__(
        self,
        settings: Callable[[], Settings],
        open_store: Callable[[str], JobStore],
        keyspace_of: Callable[[str], str | None],
        open_ownership: Callable[[str], Store],
        lookup: PlacementLookup,
        spec_of: Callable[[str, str], JobSpec | None],
    ) -> None:
        self._settings, self._keyspace_of, self._lookup, self._spec_of = settings, keyspace_of, lookup, spec_of
        self._stores, self._ownership = Clients(open_store), Clients(open_ownership)
        self.dead = DeadNotes(self._stores, self._keyspace, self._max_notes)
        """The notifications that their jobs could not handle."""

    @blocking
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
        job_id, outcome = self._admit(name, key, payload, keyspace, id, durable=False)
        limit = self._settings().job_start_timeout if timeout is None else timeout
        if outcome is None:
            with self._stores.lend(self._keyspace(name, keyspace)) as store:
                outcome = store.outcome(job_id, limit)
        if outcome is None:
            raise DispatchTimeout(name, key_text(key), job_id, limit)
        if outcome.error:
            raise JobFailed(f"job {name!r} of key {key_text(key)!r} failed to start: {outcome.error}")
        return job_id

    adispatch = twin(dispatch)

    @blocking
    def admit(
        self,
        name: str,
        key: Key,
        payload: Any = None,
        *,
        keyspace: str | None = None,
        id: str | None = None,  # noqa: A002
    ) -> str:
        """Dispatch a job without waiting for its start. If the start fails, the job stays, and is started again.

        Raises as `dispatch`, except for the outcome of the start.
        """
        return self._admit(name, key, payload, keyspace, id, durable=True)[0]

    aadmit = twin(admit)

    def _admit(
        self, name: str, key: Key, payload: Any, keyspace: str | None, job_id: str | None, *, durable: bool
    ) -> tuple[str, DispatchOutcome | None]:
        keyspace = self._keyspace(check_name(name), keyspace)
        if job_id is not None and not (isinstance(job_id, str) and 0 < len(job_id) <= MAX_ID and MARK not in job_id):
            raise InvalidJob(
                f"job {name!r}: the id {job_id!r} must be text of at most {MAX_ID} characters, without {MARK!r}"
            )
        job = self._new(name, key_text(key), as_json(name, payload), keyspace, job_id, durable=durable)
        settings = self._settings()
        if (placed := settings.placed_keyspace(keyspace)) is not None:
            self._check(placed, job.key)
        with self._stores.lend(keyspace) as store:
            admission, outcome = store.admit(
                job, max_queued=settings.job_max_queued, outcome_ttl=settings.job_outcome_ttl
            )
        if (refusal := self._refusal(job, admission, keyspace)) is not None:
            raise refusal
        return job.id, outcome

    def _new(
        self, name: str, key: str, payload: bytes, keyspace: str, job_id: str | None = None, *, durable: bool = True
    ) -> NewJob:
        return NewJob(name, key, self._place(key, keyspace), job_id or uuid4().hex, payload, durable)

    def _refusal(self, job: NewJob, admission: Admission, keyspace: str) -> StickyError | None:
        """Return the error of a dispatch that was not admitted."""
        what = f"job {job.name!r} of key {job.key!r}"
        match admission:
            case Admission.EXISTS:
                return JobExists(f"{what} already exists: stop it first, or keep it")
            case Admission.CONFLICT:
                return JobConflict(f"{what}: the id {job.id!r} was used for another job or payload: use a new id")
            case Admission.FULL:
                most = f"{self._settings().job_max_queued} jobs of keyspace {keyspace!r} wait for their start"
                return KeyspaceFull(f"{what}: {most}: try again later, or raise sticky_job_max_queued")
            case Admission.CLOSED:
                return KeyspaceClosed(f"{what}: keyspace {keyspace!r} is shut down: `sticky.jobs.reopen({keyspace!r})`")
        return None

    @blocking
    def notify(self, name: str, key: Key, payload: Any = None, *, keyspace: str | None = None) -> None:
        """Send a notification to a job, wherever it runs. Delivery is at least once and in order, also during moves.

        Raises:
            NoSuchJob: no such job exists.
            InboxFull: too many notifications wait for this job.
            NotPinned: no live worker has pinned the key, in a keyspace that refuses such keys.
        """
        keyspace, text, body = self._keyspace(name, keyspace), key_text(key), as_json(name, payload)
        placed = self._settings().placed_keyspace(keyspace)
        if placed is not None and placed.unpinned == Unpinned.REFUSE:
            self._check(placed, text)
        limit = self._max_notes(keyspace, name)
        with self._stores.lend(keyspace) as store:
            fate = store.notify(self._place(text, keyspace), name, text, body, limit=limit)
        if (refusal := _unsent(name, text, keyspace, fate, limit)) is not None:
            raise refusal

    anotify = twin(notify)

    @blocking
    def stop(self, name: str, key: Key, *, keyspace: str | None = None, timeout: float = 0.0) -> None:
        """Stop a job; with a `timeout` in seconds, wait until nothing is left of it.

        A job dispatched meanwhile starts when the old one has ended, so this wait ends before its start.

        Raises:
            NoSuchJob: no such job exists.
            ShutdownTimeout: it has not stopped within `timeout` seconds; the request to stop remains.
            StopFailed: nothing is left of it, but its stop raised an error. Only told with a `timeout`.
        """
        keyspace, text = self._keyspace(name, keyspace), key_text(key)
        place = self._place(text, keyspace)
        with self._stores.lend(keyspace) as store:
            job_id = store.stop(place, name, text)
            if job_id is None:
                raise NoSuchJob(missing(name, text, keyspace))
            if timeout:
                await_end(store, place, name, text, job_id, timeout)

    astop = twin(stop)

    @blocking
    def admit_many(
        self, name: str, jobs: Mapping[Key, Any] | Collection[Key], *, keyspace: str | None = None
    ) -> BulkResult:
        """Dispatch a job for each key, perhaps with its payload, in few round trips, without waiting for their starts.

        Each is dispatched or fails by itself: see `BulkResult`. Jobs that exist stay as they are, and are among those
        that failed. After a `StoreUnavailable`, repeat the call.

        Raises:
            InvalidKey, InvalidPayload, InvalidJob: nothing was sent.
            StoreUnavailable: some may have been dispatched.
        """
        keyspace, settings = self._keyspace(check_name(name), keyspace), self._settings()
        new = [
            self._new(name, key, as_json(name, payload), keyspace)
            for key, payload in {key_text(key): payload for key, payload in pairs(jobs)}.items()
        ]
        failed = self._unplaced([job.key for job in new], settings.placed_keyspace(keyspace))
        new = [job for job in new if job.key not in failed]
        with self._stores.lend(keyspace) as store:
            answers = store.admit_each(new, max_queued=settings.job_max_queued, outcome_ttl=settings.job_outcome_ttl)
        refusals = [
            answer if isinstance(answer, StickyError) else self._refusal(job, answer, keyspace)
            for job, answer in zip(new, answers, strict=True)
        ]
        return _result([job.key for job in new], refusals, failed)

    aadmit_many = twin(admit_many)

    @blocking
    def notify_many(
        self, name: str, notes: Mapping[Key, Any] | Collection[Key], *, keyspace: str | None = None
    ) -> BulkResult:
        """Send a notification to the job of each key, perhaps with a payload. See `admit_many`."""
        keyspace = self._keyspace(name, keyspace)
        bodies = {key_text(key): as_json(name, payload) for key, payload in pairs(notes)}
        placed = self._settings().placed_keyspace(keyspace)
        refuse = placed if placed is not None and placed.unpinned == Unpinned.REFUSE else None
        failed = self._unplaced(bodies, refuse)
        sent = [key for key in bodies if key not in failed]
        with self._stores.lend(keyspace) as store:
            said = [((self._place(key, keyspace), name, key), bodies[key]) for key in sent]
            limit = self._max_notes(keyspace, name)
            answers = store.notify_each(said, limit=limit)
        refusals = [
            answer if isinstance(answer, StickyError) else _unsent(name, key, keyspace, answer, limit)
            for key, answer in zip(sent, answers, strict=True)
        ]
        return _result(sent, refusals, failed)

    anotify_many = twin(notify_many)

    @blocking
    def stop_many(self, name: str, keys: Collection[Key], *, keyspace: str | None = None) -> BulkResult:
        """Stop the job of each key, without waiting for the ends. See `admit_many`."""
        keyspace = self._keyspace(name, keyspace)
        texts = list(dict.fromkeys(key_text(key) for key in keys))
        with self._stores.lend(keyspace) as store:
            answers = store.stop_each([(self._place(key, keyspace), name, key) for key in texts])
        refusals = [
            NoSuchJob(missing(name, key, keyspace)) if answer is None else answer
            for key, answer in zip(texts, answers, strict=True)
        ]
        return _result(texts, [one if isinstance(one, StickyError) else None for one in refusals], {})

    astop_many = twin(stop_many)

    def _unplaced(self, keys: Iterable[str], placed: Keyspace | None) -> dict[str, StickyError]:
        """Return the error of each key that cannot be placed."""
        failed: dict[str, StickyError] = {}
        if placed is None:
            return failed
        for key in keys:
            try:
                self._check(placed, key)
            except (NotPinned, AssignmentFailed) as error:
                failed[key] = error
        return failed

    @blocking
    def update(self, name: str, key: Key, payload: Any, *, keyspace: str | None = None, restart: bool = True) -> None:
        """Give a job another payload. It is stopped and started again with it; it keeps its id and its checkpoint.

        With `restart` False, it runs on and gets the payload at its next start.

        Raises:
            NoSuchJob: no such job exists, or it is stopping.
            InvalidPayload: nothing was changed.
        """
        body = as_json(name, payload)
        self._change(name, key, keyspace, lambda store, *job: store.update(*job, body, restart=restart))

    aupdate = twin(update)

    @blocking
    def restart(self, name: str, key: Key, *, keyspace: str | None = None) -> None:
        """Stop a job and start it again at the key's owner; a failing job is started at once. Raises as `update`."""
        self._change(name, key, keyspace, lambda store, *job: store.update(*job, None, restart=True))

    arestart = twin(restart)

    @blocking
    def pause(self, name: str, key: Key, *, keyspace: str | None = None, timeout: float = 0.0) -> None:
        """Stop a job until `resume`. It keeps payload, checkpoint and notifications.

        With a `timeout` in seconds, wait until no run of it is left.

        Raises:
            NoSuchJob: no such job exists, or it is stopping.
            ShutdownTimeout: it still runs; the request to pause remains.
        """
        place, job_id = self._change(name, key, keyspace, lambda store, *job: store.pause(*job))
        left: list[JobRecord] = []
        with self._stores.lend(self._keyspace(name, keyspace)) as store:

            def gone() -> bool:
                record = store.find(place, name, key_text(key))
                runs = record is not None and record.id == job_id and record.state is JobState.PAUSING
                left[:] = [record] if runs and record is not None else []
                return not left

            if timeout and not wait(gone, timeout):
                raise ShutdownTimeout(left_message(1, left, timeout))

    apause = twin(pause)

    @blocking
    def resume(self, name: str, key: Key, *, keyspace: str | None = None) -> None:
        """Have a paused job start again; do nothing if it is not paused. Raises as `update`."""
        self._change(name, key, keyspace, lambda store, *job: store.resume(*job))

    aresume = twin(resume)

    def _change(
        self, name: str, key: Key, keyspace: str | None, change: Callable[[JobStore, Slot, str, str], str | None]
    ) -> tuple[Slot, str]:
        """Change a job; return its place and its id."""
        keyspace, text = self._keyspace(name, keyspace), key_text(key)
        place = self._place(text, keyspace)
        with self._stores.lend(keyspace) as store:
            job_id = change(store, place, name, text)
        if job_id is None:
            raise NoSuchJob(missing(name, text, keyspace))
        return place, job_id

    @blocking
    def list(self, name: str | None = None, *, keyspace: str | None = None) -> list[JobInfo]:
        """Return the jobs of a keyspace, sorted by name and key.

        Their states are those that live workers have reported: a worker without a heartbeat for `sticky_lease_ttl`
        seconds is not alive.
        """
        keyspace = self._keyspace(name, keyspace)
        with self._stores.lend(keyspace) as store:
            found = store.records(name)
        return sorted(self._infos(found, keyspace), key=lambda info: (info.name, info.key))

    alist = twin(list)  # noqa: A003

    @blocking
    def keys(self, name: str, *, keyspace: str | None = None) -> set[str]:
        """Return the keys that have a job of this name, except jobs that are stopping. Cheaper than `list`."""
        return set(self.digests(name, keyspace=keyspace))

    akeys = twin(keys)

    def digests(self, name: str, *, keyspace: str | None = None) -> Mapping[str, str]:
        """Return the same keys, each with the `digest` of the job's payload."""
        with self._stores.lend(self._keyspace(name, keyspace)) as store:
            return store.keys(name)

    @blocking
    def get(self, name: str, key: Key, *, keyspace: str | None = None) -> JobInfo | None:
        """Return a job's state, as `list` does, or None if there is no such job."""
        keyspace, text = self._keyspace(name, keyspace), key_text(key)
        with self._stores.lend(keyspace) as store:
            found = store.find(self._place(text, keyspace), name, text)
        return None if found is None else self._infos([found], keyspace)[0]

    aget = twin(get)

    @blocking
    def shutdown(self, keyspace: str = DEFAULT_KEYSPACE, *, timeout: float | None = None) -> None:
        """Stop every job of a keyspace on every worker, admit no more, and return when no run of any job is left.

        `timeout` is in seconds (None: the setting `sticky_job_shutdown_timeout`). May be repeated. `reopen` undoes it.

        Raises:
            ShutdownTimeout: some jobs are left; the request to stop remains.
        """
        limit = self._settings().job_shutdown_timeout if timeout is None else timeout
        with self._stores.lend(check_keyspace(keyspace)) as store:
            store.close_keyspace(closed=True)
            if not wait(lambda: not store.ending(), limit):
                raise ShutdownTimeout(left_message(store.ending(), store.records(), limit))

    ashutdown = twin(shutdown)

    @blocking
    def reopen(self, keyspace: str = DEFAULT_KEYSPACE) -> None:
        """Admit jobs again after a `shutdown`."""
        with self._stores.lend(check_keyspace(keyspace)) as store:
            store.close_keyspace(closed=False)

    areopen = twin(reopen)

    @blocking
    def forget(self, keyspace: str = DEFAULT_KEYSPACE) -> int:
        """Remove the jobs left in a keyspace that was a placed one and is plain now; return their number.

        They are stored by their keys, where no worker of a plain keyspace looks.

        Raises:
            InvalidSettings: the keyspace is declared as a placed one here.
            KeyspaceMismatch: its workers are configured with a placement.
        """
        if self._settings().placed_keyspace(check_keyspace(keyspace)) is not None:
            raise InvalidSettings(
                f"keyspace {keyspace!r} is a placed keyspace, so its workers run the jobs that are stored by their "
                f"keys: stop them with `sticky.jobs.shutdown({keyspace!r})`"
            )
        view = self._reading(keyspace).view
        if view is not None and view.hash != HASH_NAME:
            raise KeyspaceMismatch(
                f"the workers of keyspace {keyspace!r} are configured with {view.hash!r}, this process without a "
                f"placement. {how_to_agree(keyspace, view, view.slots)}"
            )
        with self._stores.lend(keyspace) as store:
            return store.forget_places()

    aforget = twin(forget)

    def claim_tick(self, name: str, every: float, *, keyspace: str) -> Tick:
        """Claim the current period of a ticker; see `JobStore.claim_tick`."""
        with self._stores.lend(keyspace) as store:
            return store.claim_tick(name, every)

    def close(self) -> None:
        """Close every connection. The object may still be used."""
        self._stores.close()
        self._ownership.close()

    def _keyspace(self, name: str | None, keyspace: str | None) -> str:
        if keyspace is not None:
            return check_keyspace(keyspace)
        return (self._keyspace_of(name) if name is not None else None) or DEFAULT_KEYSPACE

    def _max_notes(self, keyspace: str, name: str) -> int:
        spec = self._spec_of(keyspace, name)
        own = spec.max_notes if spec is not None else None
        return self._settings().job_max_notes if own is None else own

    def _place(self, key: str, keyspace: str) -> Slot:
        """Return the slot or key place that holds the jobs of a key in the store."""
        return self._slot(key, keyspace) if self._settings().placed_keyspace(keyspace) is None else KeyPlace(key)

    def _slot(self, key: str, keyspace: str) -> int:
        return slot_for(key, self._settings().slots_of(keyspace))

    def _check(self, placed: Keyspace, key: str) -> None:
        """Raise if the key cannot be placed; a job may wait for a worker to join."""
        with suppress(NoWorker):
            self._lookup.of(placed, key)

    def _reading(self, keyspace: str) -> Reading:
        with self._ownership.lend(keyspace) as store:
            return store.read()

    def _infos(self, records: Sequence[JobRecord], keyspace: str) -> Sequence[JobInfo]:
        if not records:
            return []
        settings, reading, pins = self._settings(), self._reading(keyspace), dict[str, str]()
        placed = settings.placed_keyspace(keyspace)
        if placed is not None and reading.view is not None:
            pins.update(self._lookup.pins(placed, reading.view, {record.key for record in records}))
        owners = Owners.read(reading, settings.lease_ttl, placed, pins)
        return [self._info(record, keyspace, owners, reading.clock) for record in records]

    def _info(self, record: JobRecord, keyspace: str, owners: Owners, now: float) -> JobInfo:
        state, reason = shown(record, owners.of(record), now, record.retry_at)
        return JobInfo(
            record.name,
            record.key,
            keyspace,
            record.slot if isinstance(record.slot, int) else self._slot(record.key, keyspace),
            record.id,
            json.loads(record.payload),
            state,
            record.worker,
            record.epoch,
            record.attempt,
            record.error,
            record.created,
            None if record.saved is None else json.loads(record.saved),
            record.failures,
            record.apart,
            reason,
        )


def _result(
    keys: Sequence[str], refusals: Sequence[StickyError | None], failed: Mapping[str, StickyError]
) -> BulkResult:
    """Return the result of a request for these keys; `failed` are others, about which nothing was sent."""
    refused = {key: error for key, error in zip(keys, refusals, strict=True) if error is not None}
    return BulkResult(tuple(key for key in keys if key not in refused), {**failed, **refused})


def _unsent(name: str, key: str, keyspace: str, fate: Fate, limit: int) -> StickyError | None:
    """Return the error of a notification that was not sent."""
    if fate is Fate.NO_JOB:
        return NoSuchJob(missing(name, key, keyspace))
    if fate is Fate.FULL:
        return InboxFull(name, key, limit)
    return None
