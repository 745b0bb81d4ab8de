"""`sticky.jobs.dead`: the notifications that their jobs could not handle."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from celery_sticky.errors import InboxFull, NoSuchJob
from celery_sticky.keys import Key, key_text
from celery_sticky.stores.jobs import JobStore
from celery_sticky.stores.lent import Clients
from celery_sticky.stores.notes import DeadNote, Fate

PAGE = 200
"""How many dead notifications are read at a time."""


@dataclass(frozen=True, slots=True)
class DeadNotification:
    """A notification that is not delivered any more."""

    id: str
    """Unique in its keyspace."""
    name: str
    """The name of the job."""
    key: str
    keyspace: str
    job_id: str
    """The id of the dispatch whose run could not handle it."""
    deliveries: int
    error: str
    """Why the last delivery failed."""
    died: float
    """When the last delivery failed, in seconds since the Unix epoch."""
    size: int
    """The size of its payload, in bytes of JSON."""
    payload: Any = None
    """Only `get` reads it."""


class DeadNotes:
    """The dead notifications of an app's keyspaces. Any thread may use it.

    They stay until they are retried or dropped, also when their job is gone. A keyspace keeps the newest 1,000, and
    payloads of 32 MiB in total.
    """

    def __init__(
        self,
        stores: Clients[JobStore],
        keyspace_of: Callable[[str | None, str | None], str],
        max_notes: Callable[[str, str], int],
    ) -> None:
        self._stores, self._keyspace_of, self._max_notes = stores, keyspace_of, max_notes

    def list(
        self,
        name: str | None = None,
        key: Key | None = None,
        *,
        keyspace: str | None = None,
        after: str = "",
        limit: int | None = None,
    ) -> list[DeadNotification]:
        """Return dead notifications of a keyspace without payloads, oldest first: of all jobs, a name, or a key.

        Begin after the one with the id `after`, and return at most `limit` (None: all).
        """
        keyspace, text = self._keyspace_of(name, keyspace), None if key is None else key_text(key)
        with self._stores.lend(keyspace) as store:
            found = (n for n in _pages(store, after) if name in (None, n.name) and text in (None, n.key))
            return [_told(note, keyspace) for note in islice(found, limit)]

    def get(self, id: str, *, keyspace: str | None = None) -> DeadNotification | None:  # noqa: A002
        """Return a dead notification with its payload, or None if there is no such notification."""
        keyspace = self._keyspace_of(None, keyspace)
        with self._stores.lend(keyspace) as store:
            found = store.dead_note(id)
        return None if found is None else _told(found, keyspace)

    def retry(self, id: str, *, keyspace: str | None = None) -> bool:  # noqa: A002
        """Put a dead notification behind those that wait for the job of its name and key, and reset its deliveries.

        Return False if there is no such notification.

        Raises:
            NoSuchJob: no such job exists now. InboxFull: too many notifications wait for it. The notification stays.
        """
        keyspace = self._keyspace_of(None, keyspace)
        with self._stores.lend(keyspace) as store:
            dead = store.dead_note(id)
            if dead is None:
                return False
            limit = self._max_notes(keyspace, dead.name)
            fate = store.requeue_note(id, limit=limit)
        if fate is Fate.NO_JOB:
            raise NoSuchJob(missing(dead.name, dead.key, keyspace))
        if fate is Fate.FULL:
            raise InboxFull(dead.name, dead.key, limit)
        return fate is Fate.SENT

    def drop(self, id: str, *, keyspace: str | None = None) -> bool:  # noqa: A002
        """Delete a dead notification; return False if there is no such notification."""
        with self._stores.lend(self._keyspace_of(None, keyspace)) as store:
            return store.drop_note(id)


def missing(name: str, key: str, keyspace: str) -> str:
    """Return the text of the error that there is no such job."""
    return f"there is no job {name!r} of key {key!r} in keyspace {keyspace!r}"


def _pages(store: JobStore, after: str) -> Iterator[DeadNote]:
    while page := store.dead_notes(after=after, limit=PAGE):
        yield from page
        after = page[-1].id


def _told(note: DeadNote, keyspace: str) -> DeadNotification:
    return DeadNotification(
        id=note.id,
        name=note.name,
        key=note.key,
        keyspace=keyspace,
        job_id=note.job_id,
        deliveries=note.deliveries,
        error=note.error,
        died=note.died,
        size=note.size,
        payload=None if note.payload is None else json.loads(note.payload),
    )
