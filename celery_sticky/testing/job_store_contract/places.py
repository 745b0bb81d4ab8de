"""The job store contract: the places of keys in a placed keyspace."""

# ruff: noqa: D102  (a test's name is its sentence)

from __future__ import annotations

import pytest

from celery_sticky.errors import Fenced
from celery_sticky.slots import KeyPlace
from celery_sticky.stores.jobs import STOPPED, DispatchOutcome, JobState, JobStore, NewJob
from celery_sticky.stores.notes import Fate
from celery_sticky.testing.job_store_contract import steps
from celery_sticky.testing.job_store_contract.steps import EPOCH, OpenJobs
from celery_sticky.testing.store_contract.server import Opening, hear

KEY = "k:notes é"
PLACE = KeyPlace(KEY)


def placed(id: str = "d1", name: str = "feed", key: str = KEY) -> NewJob:  # noqa: A002
    """Return a job in the place of its key."""
    return steps.job(id, name, key, KeyPlace(key))


def there(store: JobStore) -> set[str]:
    """Return the places that have records."""
    found = store.places(0)
    return set(found.revisions) if found is not None else set()


class PlaceContract(Opening[JobStore]):
    """The places of keys: they act like slots, except that nothing is left of a place without records."""

    def test_a_job_lives_in_the_place_of_its_key_as_in_a_slot(self, store: JobStore, other: JobStore) -> None:
        other.watch(0)
        new = steps.running(store, placed())
        assert set(hear(other, PLACE)) == {PLACE}
        assert steps.note(store, b"1", to=new) is Fate.SENT
        assert (steps.record(store).slot, steps.record(store).epoch, steps.notes(other, PLACE)) == (
            PLACE,
            EPOCH,
            [b"1"],
        )
        assert [found.id for found in other.records(slot=PLACE)] == ["d1"]
        assert other.stop(PLACE, "feed", KEY) and steps.record(store).state is JobState.STOPPING
        steps.settle(store, steps.ended(), slot=PLACE)
        assert steps.ids(store) == set() and there(store) == set()

    def test_the_places_that_have_records_are_listed_with_their_revisions(self, store: JobStore) -> None:
        assert store.places(0) is None
        steps.queued(store, placed("d1", "feed", "a"))
        steps.queued(store, placed("d2", "other", "a"))
        steps.running(store, placed("d3", "feed", "b"))
        steps.queued(store, steps.job("d4"))
        found = store.places(0)
        assert found is not None
        assert found.revisions == {place: steps.revision(store, place) for place in map(KeyPlace, "ab")}
        assert store.places(found.revision) is None
        steps.queued(store, steps.job("d5", key="k2"))
        assert store.places(found.revision) is None, "a slot is not a place"

    def test_every_change_in_a_place_is_seen(self, store: JobStore) -> None:
        new = steps.queued(store, placed())
        for change in (
            lambda: steps.reserved(store, "d1", slot=PLACE),
            lambda: steps.note(store, to=new),
            lambda: store.stop(PLACE, "feed", KEY),
            lambda: steps.settle(store, steps.ended(), slot=PLACE),
            lambda: steps.queued(store, placed("d2")),
            lambda: store.close_keyspace(closed=True),
        ):
            before = store.places(0)
            assert before is not None
            change()
            after = store.places(before.revision)
            assert after is not None and after.revision > before.revision
            assert after.revisions != before.revisions

    def test_of_a_place_without_records_nothing_is_left(self, store: JobStore) -> None:
        steps.note(store, to=steps.starting(store, placed()))
        known = steps.revision(store, PLACE)
        steps.settle(store, steps.failed(), slot=PLACE)
        assert there(store) == set() and steps.revision(store, PLACE) == 0
        assert store.look({PLACE: known})[PLACE].records == ()
        store.open(PLACE, EPOCH - 1)
        steps.queued(store, placed("d2"))
        assert steps.notes(store, PLACE) == [] and steps.revision(store, PLACE) > known, (
            "a revision is never used again"
        )
        with pytest.raises(Fenced):
            store.reserve(PLACE, EPOCH, "w1", ["d2"])
        steps.reserved(store, "d2", slot=PLACE, epoch=EPOCH - 1)

    def test_in_a_place_without_records_nobody_is_refused_and_nothing_is_written(self, store: JobStore) -> None:
        steps.running(store, placed())
        steps.settle(store, steps.ended(), slot=PLACE)
        store.open(PLACE, EPOCH + 1)
        for epoch in (EPOCH, EPOCH + 1):
            assert store.reserve(PLACE, epoch, "w1", ["d1"]).attempts == {}
            steps.settle(store, steps.ended(), notes=["0-1"], slot=PLACE, epoch=epoch)
        assert there(store) == set()
        assert store.look({PLACE: 0}) == {}

    def test_a_dispatch_over_a_job_that_is_stopping_keeps_the_fence(self, store: JobStore) -> None:
        steps.running(store, placed())
        store.stop(PLACE, "feed", KEY)
        steps.queued(store, placed("d2"))
        assert there(store) == {PLACE}
        with pytest.raises(Fenced) as caught:
            store.open(PLACE, EPOCH - 1)
        assert caught.value.epoch == EPOCH
        steps.reserved(store, "d2", slot=PLACE)

    def test_a_place_stays_for_as_long_as_one_of_its_jobs(self, store: JobStore) -> None:
        steps.running(store, placed("d1", "feed"))
        steps.queued(store, placed("d2", "other"))
        steps.settle(store, steps.ended("d1"), slot=PLACE)
        assert there(store) == {PLACE}
        store.stop(PLACE, "other", KEY)
        assert there(store) == set()

    def test_a_shutdown_stops_jobs_in_places(self, store: JobStore, other: JobStore) -> None:
        steps.queued(store, placed("d1", key="a"))
        steps.running(store, placed("d2", key="b"))
        other.watch(0)
        store.close_keyspace(closed=True)
        assert set(hear(other, "=b")) <= {"=a", "=b"}
        assert steps.ids(store) == {"d2"} and steps.record(store, "d2").state is JobState.STOPPING
        assert there(store) == {"=b"}

    def test_places_stay_in_their_keyspace(self, store: JobStore, open_store: OpenJobs) -> None:
        steps.queued(open_store("elsewhere"), placed())
        assert store.places(0) is None

    def test_places_are_forgotten_and_slots_are_not(self, store: JobStore, other: JobStore) -> None:
        steps.running(store, steps.job("d1", key=KEY, slot=PLACE))
        steps.queued(store, steps.job("d2", name="other", key=KEY, slot=PLACE))
        steps.running(store, steps.job("d3"))
        steps.note(store, to=steps.job(key=KEY, slot=PLACE))
        assert (other.forget_places(), other.forget_places()) == (2, 0)
        assert steps.ids(store) == {"d3"}
        assert store.outcome("d2", 0) == DispatchOutcome(STOPPED)
        listed = store.places(0)
        assert listed is not None and not listed.revisions
        store.open(PLACE, EPOCH - 1)
