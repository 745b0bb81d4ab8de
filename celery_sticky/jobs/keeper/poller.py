"""The poller: which slots a keeper looks at in the store, and in which order. Changed slots first, in batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from celery_sticky.jobs import misplaced
from celery_sticky.jobs.keeper.backoff import Backoff
from celery_sticky.jobs.keeper.reconciler import JobReconciler
from celery_sticky.keys import Slot
from celery_sticky.stores.jobs import SEEN_RECORDS, JobStore, SlotJobs

logger = logging.getLogger("celery_sticky.jobs")

NOTHING = SlotJobs(0, (), ())


Each = Callable[[JobStore, Slot, str, Callable[[], None]], bool]
"""Does the work for one slot under the name of its verb; a refusal for the slot does not block other slots."""


class Poller:
    """The poller of one keyspace's keeper. `now` is in seconds on one clock."""

    def __init__(
        self,
        keyspace: str,
        reconciler: JobReconciler,
        backoff: Backoff,
        each: Each,
        *,
        poll: float,
        listed: Callable[[Collection[str]], None] | None,
    ) -> None:
        """`listed` receives the key places that have jobs; None: the keyspace is not a placed one."""
        self._keyspace, self._reconciler, self._backoff, self._each = keyspace, reconciler, backoff, each
        self._poll, self._listed = poll, listed
        self._next = 0.0
        self._due: set[Slot] = set()
        """Slots that changed: to be looked at before the next regular poll."""
        self._rest: dict[Slot, None] = {}
        """Slots that may have changed: to be looked at after those that did, in order of arrival."""
        self._rest_first = False
        """The last look did not reach `_rest`, so the next one starts there: otherwise constant changes starve it."""
        self._places_revision = 0

    def add(self, slots: Iterable[Slot]) -> None:
        """Note that something changed in these slots."""
        self._due.update(slots)

    def next_at(self, now: float) -> float:
        """Return when to look again."""
        at_once = any(not self._backoff.has(slot, now) for slot in (*self._due, *self._rest))
        return now if at_once else self._next

    def look(self, store: JobStore, now: float) -> None:
        """Look at the slots that are due, or at the first batch of them."""
        if now >= self._next:
            self._list_places(store)
            self._rest.update(dict.fromkeys(self._reconciler.numbers()))
            self._next = now + self._poll
        self._due.update(self._backoff.due(now))
        order = (*self._rest, *self._due) if self._rest_first else (*self._due, *self._rest)
        aside = {slot for slot in order if self._backoff.has(slot, now)}
        known = self._reconciler.known(slot for slot in order if slot not in aside)
        left = self._look_at_some(store, known) if known else set()
        self._rest_first = next(iter(self._rest), None) in left
        self._rest = dict.fromkeys(slot for slot in (*self._rest, *self._due) if slot in left)
        self._due = aside

    def _look_at_some(self, store: JobStore, known: Mapping[Slot, int]) -> set[Slot]:
        """Look at the first of these slots; return the slots left. Its results are acted on before the next look."""
        try:
            found = store.look(known)
        except Exception:
            store.look({})  # raises if the store as a whole is down; else a slot is the cause
            for slot, revision in known.items():
                self._each(store, slot, "look", partial(self._look_at_one, store, slot, revision))
            return set()
        left = _left(list(known), found)
        self._see({slot: revision for slot, revision in known.items() if slot not in left}, found)
        for slot in known.keys() - left:
            self._backoff.worked(slot, "look")
        return left

    def _look_at_one(self, store: JobStore, slot: Slot, revision: int) -> None:
        self._see({slot: revision}, store.look({slot: revision}))

    def _see(self, known: Mapping[Slot, int], found: Mapping[Slot, SlotJobs]) -> None:
        for slot, revision in known.items():
            if slot in found:
                self._reconciler.seen(slot, found[slot])
            elif isinstance(slot, str) and not revision:
                self._reconciler.seen(slot, NOTHING)

    def _list_places(self, store: JobStore) -> None:
        """Look up which keys have jobs: one reply for all keys, and none if nothing changed."""
        if self._listed is None:
            if not self._next:
                self._warn_of_places(store)
        elif (listed := store.places(self._places_revision)) is not None:
            self._rest.update(dict.fromkeys(self._reconciler.behind(listed.revisions)))
            self._places_revision = listed.revision
            self._listed(listed.revisions.keys())

    def _warn_of_places(self, store: JobStore) -> None:
        if (listed := store.places(0)) is not None and listed.revisions:
            logger.error("jobs: %s", misplaced.as_placed(self._keyspace, len(listed.revisions)))


def _left(asked: Sequence[Slot], found: Mapping[Slot, SlotJobs]) -> set[Slot]:
    """Return the slots that a look did not cover because its reply was full."""
    if sum(len(jobs.records) for jobs in found.values()) < SEEN_RECORDS:
        return set()
    return set(asked[asked.index(list(found)[-1]) + 1 :])
