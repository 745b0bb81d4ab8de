"""The job store contract: deliveries that fail, and notes that are dead."""

# ruff: noqa: D102  (a test's name is its sentence)

from __future__ import annotations

from functools import partial

import pytest

from celery_sticky.stores.jobs import JobStore
from celery_sticky.stores.notes import MAX_DEAD, MAX_DEAD_BYTES, DeadNote, FailedDelivery, Fate
from celery_sticky.testing.job_store_contract import steps
from celery_sticky.testing.job_store_contract.notes import waiting
from celery_sticky.testing.job_store_contract.steps import SLOT, OpenJobs
from celery_sticky.testing.store_contract.server import Opening

UNKNOWN = ("", "x", "0-1", "1-x", "17", "0000000000000001", "9" * 30)


def fail(store: JobStore, delivery: int = 1, *, which: int = 0, dead: bool = False, error: str = "bøom") -> None:
    """Report that a delivery of a waiting note has failed."""
    steps.settle(store, failed=[FailedDelivery(waiting(store)[which].id, delivery, error, dead)])


def buried(store: JobStore, payload: bytes = b"{}") -> DeadNote:
    """Send a note to a job, bury it as the last of the waiting ones, and return it."""
    assert steps.note(store, payload) is Fate.SENT
    fail(store, 3, which=-1, dead=True)
    return store.dead_notes()[-1]


class DeadNoteContract(Opening[JobStore]):
    """Deliveries that fail, and notes that are dead."""

    def test_failed_deliveries_are_counted_and_the_note_keeps_its_place(self, store: JobStore, other: JobStore) -> None:
        steps.running(store)
        for payload in (b"1", b"2"):
            steps.note(store, payload)
        before = steps.revision(store)
        for delivery in (1, 2):
            fail(store, delivery)
            assert [(note.payload, note.failed) for note in waiting(other)] == [(b"1", delivery), (b"2", 0)]
        assert steps.revision(store) > before
        assert store.dead_notes() == []

    def test_a_delivery_that_is_reported_again_or_late_is_not_counted_twice(self, store: JobStore) -> None:
        steps.running(store)
        steps.note(store)
        fail(store, 2)
        before = steps.revision(store)
        for delivery in (2, 1):
            fail(store, delivery)
        assert [note.failed for note in waiting(store)] == [2]
        assert steps.revision(store) == before

    def test_the_count_goes_with_its_note(self, store: JobStore) -> None:
        steps.running(store)
        steps.note(store, b"1")
        first = waiting(store)[0].id
        fail(store)
        steps.settle(store, notes=[first], failed=[FailedDelivery(first, 2, "late", dead=True)])
        assert waiting(store) == [] and store.dead_notes() == []
        store.stop(SLOT, "feed", "k")
        steps.settle(store, steps.ended())
        steps.running(store, steps.job("d2"))
        steps.note(store, b"2")
        assert [note.failed for note in waiting(store)] == [0]

    def test_a_note_that_is_dead_is_delivered_no_more_and_listed_without_its_payload(
        self, store: JobStore, other: JobStore
    ) -> None:
        new = steps.running(store, steps.job(name="a:b\0", key="=🔑"))
        for payload in (b"[1]", b"2"):
            steps.note(store, payload, to=new)
        fail(store, 5, dead=True)
        assert steps.notes(store) == [b"2"]
        (found,) = other.dead_notes()
        assert (found.name, found.key, found.slot, found.job_id) == (new.name, new.key, SLOT, new.id)
        assert (found.deliveries, found.error, found.size, found.payload) == (5, "bøom", 3, None)
        assert found.died >= steps.record(store).created - 0.001  # whole milliseconds
        whole = other.dead_note(found.id)
        assert whole is not None and whole.payload == b"[1]"

    def test_a_note_dies_once(self, store: JobStore) -> None:
        steps.running(store)
        steps.note(store)
        dead = FailedDelivery(waiting(store)[0].id, 1, "no", dead=True)
        for _ in range(2):
            steps.settle(store, failed=[dead, dead])
        assert len(store.dead_notes()) == 1

    def test_failures_under_another_epoch_or_in_another_slot_change_nothing(self, store: JobStore) -> None:
        steps.running(store)
        steps.note(store)
        failure = FailedDelivery(waiting(store)[0].id, 1, "no", dead=True)
        store.open(SLOT + 1, steps.EPOCH)
        steps.settle(store, failed=[failure], slot=SLOT + 1)
        with pytest.raises(Exception, match="fenced"):
            steps.settle(store, failed=[failure], epoch=steps.EPOCH - 1)
        assert [note.failed for note in waiting(store)] == [0] and store.dead_notes() == []

    def test_a_note_dies_before_its_job_is_removed_and_outlives_it(self, store: JobStore) -> None:
        steps.running(store)
        steps.note(store)
        failure = FailedDelivery(waiting(store)[0].id, 1, "no", dead=True)
        steps.settle(store, steps.ended(), failed=[failure])
        assert steps.ids(store) == set()
        assert [dead.job_id for dead in store.dead_notes()] == ["d1"]

    def test_dead_notes_are_read_in_pages_oldest_first(self, store: JobStore) -> None:
        steps.running(store)
        ids = [buried(store).id for _ in range(5)]
        assert [note.id for note in store.dead_notes(limit=2)] == ids[:2]
        assert [note.id for note in store.dead_notes(after=ids[1], limit=2)] == ids[2:4]
        assert [note.id for note in store.dead_notes(after=ids[3])] == ids[4:]
        assert store.dead_notes(after=ids[4]) == []

    def test_a_dead_note_is_put_back_behind_the_others_and_counts_from_one(
        self, store: JobStore, other: JobStore
    ) -> None:
        steps.running(store)
        dead = buried(store, b"dead")
        steps.note(store, b"later")
        store.watch(0)
        assert other.requeue_note(dead.id, limit=2) is Fate.SENT
        assert SLOT in store.watch(10.0)
        assert [(note.payload, note.failed) for note in waiting(store)] == [(b"later", 0), (b"dead", 0)]
        assert store.dead_notes() == [] and store.requeue_note(dead.id, limit=9) is Fate.GONE

    def test_it_is_put_back_to_the_job_that_has_its_key_now_if_there_is_one_with_room(self, store: JobStore) -> None:
        steps.running(store, steps.job("d2"))
        dead = buried(store, b"1")
        steps.note(store, b"2")
        assert store.requeue_note(dead.id, limit=1) is Fate.FULL
        store.stop(SLOT, "feed", "k")
        assert store.requeue_note(dead.id, limit=9) is Fate.NO_JOB
        steps.settle(store, steps.ended("d2"))
        assert store.requeue_note(dead.id, limit=9) is Fate.NO_JOB
        assert [note.id for note in store.dead_notes()] == [dead.id]
        steps.queued(store, steps.job("d3"))
        assert store.requeue_note(dead.id, limit=9) is Fate.SENT
        assert steps.notes(store) == [b"1"]

    def test_a_dead_note_is_put_back_once_by_twenty_clients(self, store: JobStore, open_store: OpenJobs) -> None:
        steps.running(store)
        dead = buried(store)

        def requeue(client: JobStore, dead_id: str) -> Fate:
            return client.requeue_note(dead_id, limit=50)

        fates = steps.at_once(open_store, [partial(requeue, dead_id=dead.id)] * 20)
        assert (fates.count(Fate.SENT), fates.count(Fate.GONE)) == (1, 19)

    def test_a_dead_note_is_dropped(self, store: JobStore, other: JobStore) -> None:
        steps.running(store)
        one, two = buried(store), buried(store)
        assert other.drop_note(one.id)
        assert not store.drop_note(one.id)
        assert store.dead_note(one.id) is None
        assert [note.id for note in store.dead_notes()] == [two.id]

    @pytest.mark.parametrize("dead_id", UNKNOWN)
    def test_an_id_that_no_dead_note_has_names_none(self, store: JobStore, dead_id: str) -> None:
        assert store.dead_note(dead_id) is None
        assert store.requeue_note(dead_id, limit=9) is Fate.GONE
        assert not store.drop_note(dead_id)

    def test_beyond_their_greatest_number_the_oldest_dead_notes_give_way(self, store: JobStore) -> None:
        steps.running(store)
        first = buried(store, b"first")
        for i in range(MAX_DEAD):
            steps.note(store, b"%d" % i, limit=2 * MAX_DEAD)
        dead = [FailedDelivery(note.id, 1, "no", dead=True) for note in waiting(store)]
        steps.settle(store, failed=dead[:-1])
        assert [note.id for note in store.dead_notes(limit=1)] == [first.id]
        steps.settle(store, failed=dead)
        assert len(store.dead_notes(limit=2 * MAX_DEAD)) == MAX_DEAD
        assert store.dead_note(first.id) is None

    def test_beyond_their_greatest_size_the_oldest_dead_notes_give_way(self, store: JobStore) -> None:
        steps.running(store)
        part = b"1" * (MAX_DEAD_BYTES // 8)  # a request of more than 8 MB is too big for some servers
        parts, small = [buried(store, part).id for _ in range(7)], buried(store, b"123").id
        assert [note.id for note in store.dead_notes()] == [*parts, small]
        eighth = buried(store, part).id
        assert [note.id for note in store.dead_notes()] == [*parts[1:], small, eighth]
        store.drop_note(parts[1])
        ninth = buried(store, part).id
        assert [note.id for note in store.dead_notes()] == [*parts[2:], small, eighth, ninth]
