"""The job store contract: notifications that wait for their job."""

# ruff: noqa: D102  (a test's name is its sentence)

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from celery_sticky.stores.jobs import JobStore, NewJob
from celery_sticky.stores.notes import Fate, Note
from celery_sticky.testing.job_store_contract import steps
from celery_sticky.testing.job_store_contract.steps import SLOT, OpenJobs
from celery_sticky.testing.store_contract.server import Opening

Begin = Callable[[JobStore, NewJob], NewJob]


def waiting(store: JobStore) -> list[Note]:
    """Return the notes of the slot."""
    return list(store.look({SLOT: 0})[SLOT].notes)


class NoteContract(Opening[JobStore]):
    """Notifications that wait for their job."""

    @pytest.mark.parametrize("begin", [steps.queued, steps.starting, steps.running, steps.failing])
    def test_a_note_is_left_for_a_job_that_is_wanted(self, store: JobStore, other: JobStore, begin: Begin) -> None:
        odd = begin(store, steps.job(name="a:b\0", key="=🔑"))
        assert steps.note(other, b"[1]", to=odd) is Fate.SENT
        (found,) = waiting(store)
        assert (found.name, found.key, found.payload) == (odd.name, odd.key, b"[1]")

    def test_no_note_is_left_for_a_job_that_is_not(self, store: JobStore) -> None:
        assert steps.note(store) is Fate.NO_JOB
        steps.stopping(store)
        assert steps.note(store) is Fate.NO_JOB
        assert steps.note(store, to=steps.job(name="other")) is Fate.NO_JOB
        assert steps.notes(store) == []

    def test_notes_keep_their_order_also_across_jobs(self, store: JobStore, other: JobStore) -> None:
        one, two = steps.queued(store), steps.queued(store, steps.job("d2", key="k2"))
        sent = [b"%d" % i for i in range(30)]
        for i, payload in enumerate(sent):
            steps.note((store, other)[i % 2], payload, to=(one, two)[i % 3 == 0])
        assert steps.notes(store) == sent

    def test_at_most_limit_notes_wait_for_a_job_and_do_not_keep_those_of_its_neighbours_away(
        self, store: JobStore
    ) -> None:
        one, two = steps.queued(store), steps.queued(store, steps.job("d2", key="k2"))
        assert [steps.note(store, to=one, limit=2) for _ in range(2)] == [Fate.SENT, Fate.SENT]
        before = store.look({SLOT: 0})
        assert steps.note(store, to=one, limit=2) is Fate.FULL
        assert store.look({SLOT: 0}) == before
        assert steps.note(store, to=two, limit=2) is Fate.SENT
        assert steps.note(store, to=steps.job(name="other"), limit=2) is Fate.NO_JOB
        store.open(SLOT, 7)
        steps.settle(store, notes=[waiting(store)[0].id])
        assert steps.note(store, to=one, limit=2) is Fate.SENT

    def test_of_a_job_that_takes_none_no_more_notes_are_seen_than_of_its_neighbours(self, store: JobStore) -> None:
        deaf, other = steps.running(store), steps.running(store, steps.job("d2", key="k2"))
        for i in range(1200):
            assert steps.note(store, b"deaf %d" % i, to=deaf, limit=5000) is Fate.SENT
        for i in range(700):
            assert steps.note(store, b"%d" % i, to=other, limit=5000) is Fate.SENT
        delivered: list[bytes] = []
        while True:
            found = store.look({SLOT: 0})[SLOT]
            assert len(found.notes) <= 1000
            assert found.more
            ours = [note for note in found.notes if note.key == other.key]
            if not ours:
                break
            delivered += [note.payload for note in ours]
            steps.settle(store, notes=[note.id for note in ours])
        assert delivered == [b"%d" % i for i in range(700)]

    def test_of_very_many_jobs_one_note_each_is_seen(self, store: JobStore) -> None:
        jobs = [steps.queued(store, steps.job(f"d{i}", key=f"k{i}")) for i in range(600)]
        for new in (*jobs, *jobs[:3]):
            steps.note(store, b"1", to=new)
        found = store.look({SLOT: 0})[SLOT]
        assert {note.key for note in found.notes} == {new.key for new in jobs}
        assert (len(found.notes), found.more) == (600, True)

    def test_the_limit_holds_with_twenty_clients_at_once(self, store: JobStore, open_store: OpenJobs) -> None:
        steps.queued(store)
        fates = steps.at_once(open_store, [partial(steps.note, limit=7)] * 20)
        assert (fates.count(Fate.SENT), fates.count(Fate.FULL)) == (7, 13)
        assert len(steps.notes(store)) == 7

    def test_only_notes_that_were_delivered_are_dropped(self, store: JobStore) -> None:
        steps.running(store)
        for payload in (b"1", b"2", b"3", b"4"):
            steps.note(store, payload)
        first, second, third, _ = waiting(store)
        steps.settle(store, notes=[third.id, first.id])
        assert steps.notes(store) == [b"2", b"4"]
        steps.settle(store, notes=[first.id, second.id, third.id])
        assert steps.notes(store) == [b"4"]

    def test_a_note_that_was_dropped_lends_its_id_to_no_other(self, store: JobStore) -> None:
        steps.running(store)
        steps.note(store, b"1")
        (first,) = waiting(store)
        steps.settle(store, notes=[first.id])
        steps.note(store, b"2")
        steps.settle(store, notes=[first.id])
        assert steps.notes(store) == [b"2"]

    def test_of_many_notes_the_oldest_are_seen(self, store: JobStore) -> None:
        steps.running(store)
        sent = [b"%d" % i for i in range(2500)]
        for payload in sent:
            assert steps.note(store, payload, limit=5000) is Fate.SENT
        delivered: list[bytes] = []
        while seen := waiting(store):
            assert len(seen) <= 1000
            delivered += [note.payload for note in seen]
            steps.settle(store, notes=[note.id for note in seen])
        assert delivered == sent

    def test_a_job_does_not_get_the_notes_of_the_one_that_it_replaced(self, store: JobStore) -> None:
        steps.running(store)
        steps.note(store, b"old")
        store.stop(SLOT, "feed", "k")
        steps.queued(store, steps.job("d2"))
        steps.note(store, b"new")
        assert steps.notes(store) == [b"new"]
