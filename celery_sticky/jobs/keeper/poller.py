"""The poller: which slots a keeper looks at in the store, and in which order. Changed slots first, in batches."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from celery_sticky.jobs import misplaced
from celery_sticky.jobs.keeper.backoff import Backoff
from celery_sticky.jobs.keeper.reconciler import JobReconciler
from celery_sticky.slots import KeyPlace, Slot
from celery_sticky.stores.flow import Flow, ask
from celery_sticky.stores.jobs import SEEN_RECORDS, JobStore, SlotJobs

logger = logging.getLogger("celery_sticky.jobs")

NOTHING = SlotJobs(0, (), ())


class Poller:
    """The poller of one keyspace's keeper. `now` is in seconds on the clock of its `Backoff`."""

    def __init__(
        self,
        keyspace: str,
        reconciler: JobReconciler,
        backoff: Backoff,
        *,
        poll: float,
        listed: Callable[[Collection[KeyPlace]], None] | None,
    ) -> None:
        """`listed` receives the key places that have jobs; None: the keyspace is not a placed one."""
        self._keyspace, self._reconciler, self._backoff = keyspace, reconciler, backoff
        self._poll, self._listed = poll, listed
        self._next = 0.0
        self._due: dict[Slot, None] = {}
        """Slots that changed: to be looked at before the next regular poll."""
        self._rest: dict[Slot, None] = {}
        """Slots that may have changed: to be looked at after those that did, in order of arrival."""
        self._rest_first = False
        """The last look did not reach `_rest`, so the next one starts there: otherwise constant changes starve it."""
        self._places_revision = 0

    def add(self, slots: Iterable[Slot]) -> None:
        """Note that something changed in these slots."""
        self._due.update(dict.fromkeys(slots))

    def left(self) -> None:
        """Note that a place was given up here, so that what the store listed before is no longer what is known.

        If the store goes back to that, it must list the place again.
        """
        self._places_revision = 0

    def next_at(self, now: float) -> float:
        """Return when to look again."""
        at_once = any(not self._backoff.has(slot) for slot in (*self._due, *self._rest))
        return now if at_once else self._next

    def look(self, now: float) -> Flow[JobStore, None]:
        """Look at the slots that are due, or at the first batch of them."""
        if now >= self._next:
            yield from self._list_places()
            self._rest.update(dict.fromkeys(self._reconciler.numbers()))
            self._next = now + self._poll
        self.add(self._backoff.due())
        order = (*self._rest, *self._due) if self._rest_first else (*self._due, *self._rest)
        aside = dict.fromkeys(slot for slot in order if self._backoff.has(slot))
        known = self._reconciler.known(slot for slot in order if slot not in aside)
        left = (yield from self._look_at_some(known)) if known else set[Slot]()
        self._rest_first = next(iter(self._rest), None) in left
        self._rest = dict.fromkeys(slot for slot in (*self._rest, *self._due) if slot in left)
        self._due = aside

    def _look_at_some(self, known: Mapping[Slot, int]) -> Flow[JobStore, set[Slot]]:
        """Look at the first of these slots; return the slots left. Its results are acted on before the next look."""
        try:
            found = yield from ask(JobStore.look, known)
        except Exception:
            yield from ask(JobStore.look, {})  # raises if the store as a whole is down; else a slot is the cause
            for slot, revision in known.items():
                yield from self._backoff.attempt(slot, "look", self._look_at_one(slot, revision))
            return set()
        left = _left(list(known), found)
        self._see({slot: revision for slot, revision in known.items() if slot not in left}, found)
        for slot in known.keys() - left:
            self._backoff.worked(slot, "look")
        return left

    def _look_at_one(self, slot: Slot, revision: int) -> Flow[JobStore, None]:
        self._see({slot: revision}, (yield from ask(JobStore.look, {slot: revision})))

    def _see(self, known: Mapping[Slot, int], found: Mapping[Slot, SlotJobs]) -> None:
        for slot, revision in known.items():
            if slot in found:
                self._reconciler.seen(slot, found[slot])
            elif isinstance(slot, KeyPlace) and not revision:
                self._reconciler.seen(slot, NOTHING)

    def _list_places(self) -> Flow[JobStore, None]:
        """Look up which keys have jobs: one reply for all keys, and none if nothing changed."""
        if self._listed is None:
            if not self._next:
                yield from self._warn_of_places()
        elif (listed := (yield from ask(JobStore.places, self._places_revision))) is not None:
            self._rest.update(dict.fromkeys(self._reconciler.behind(listed.revisions)))
            self._places_revision = listed.revision
            self._listed(listed.revisions.keys())

    def _warn_of_places(self) -> Flow[JobStore, None]:
        if (listed := (yield from ask(JobStore.places, 0))) is not None and listed.revisions:
            logger.error("jobs: %s", misplaced.as_placed(self._keyspace))


def _left(asked: Sequence[Slot], found: Mapping[Slot, SlotJobs]) -> set[Slot]:
    """Return the slots that a look did not cover because its reply was full."""
    if sum(len(jobs.records) for jobs in found.values()) < SEEN_RECORDS:
        return set()
    return set(asked[asked.index(list(found)[-1]) + 1 :])
