"""The job store contract: who may write, and how owners reserve starts."""

# ruff: noqa: D102  (a test's name is its sentence)

from __future__ import annotations

from collections.abc import Callable

import pytest

from celery_sticky.errors import Fenced
from celery_sticky.slots import KeyPlace, Slot
from celery_sticky.stores.jobs import JobState, JobStore, NewJob
from celery_sticky.testing.job_store_contract import steps
from celery_sticky.testing.job_store_contract.steps import EPOCH, SLOT, OpenJobs
from celery_sticky.testing.store_contract.server import Opening

Begin = Callable[[JobStore, NewJob], NewJob]


class OwnerContract(Opening[JobStore]):
    """Who may write, and how owners reserve starts."""

    def test_an_epoch_that_is_as_high_opens_again_and_a_higher_one_too(self, store: JobStore, other: JobStore) -> None:
        store.open(SLOT, EPOCH)
        other.open(SLOT, EPOCH)
        steps.settle(store)
        other.open(SLOT, EPOCH + 1)
        steps.settle(store, epoch=EPOCH + 1)

    def test_a_stale_epoch_does_not_open(self, store: JobStore, other: JobStore) -> None:
        store.open(SLOT, 10)
        with pytest.raises(Fenced) as caught:
            other.open(SLOT, 9)
        assert caught.value.epoch == 10
        steps.settle(store, epoch=10)

    @pytest.mark.parametrize("epoch", [EPOCH - 1, EPOCH + 1])
    def test_an_epoch_that_is_not_the_fence_neither_reserves_nor_settles(self, store: JobStore, epoch: int) -> None:
        steps.running(store)
        steps.queued(store, steps.job("d2", key="k2"))
        steps.note(store)
        seen = store.look({SLOT: 0})
        (note_id,) = (note.id for note in seen[SLOT].notes)
        with pytest.raises(Fenced) as caught:
            store.reserve(SLOT, epoch, "w2", ["d1", "d2"])
        assert caught.value.epoch == EPOCH
        with pytest.raises(Fenced) as caught:
            steps.settle(store, steps.ended("d1"), steps.started("d2"), notes=[note_id], epoch=epoch)
        assert caught.value.epoch == EPOCH
        assert store.look({SLOT: 0}) == seen
        assert store.outcome("d2", 0) is None

    def test_a_slot_that_nobody_opened_is_fenced(self, store: JobStore) -> None:
        steps.queued(store)
        with pytest.raises(Fenced):
            store.reserve(SLOT, EPOCH, "w1", ["d1"])
        with pytest.raises(Fenced):
            steps.settle(store, steps.ended())
        assert steps.record(store).state is JobState.QUEUED

    def test_each_slot_has_a_fence_of_its_own(self, store: JobStore, open_store: OpenJobs) -> None:
        store.open(1, 10)
        store.open(2, 5)
        open_store("elsewhere").open(1, 3)
        steps.settle(store, slot=2, epoch=5)
        with pytest.raises(Fenced):
            steps.settle(store, slot=2, epoch=10)

    @pytest.mark.parametrize("begin", [steps.queued, steps.starting, steps.running, steps.failing])
    def test_a_reserved_start_is_written_down(self, store: JobStore, other: JobStore, begin: Begin) -> None:
        begin(store, steps.job())
        before = steps.record(store)
        other.open(SLOT, EPOCH + 1)
        assert other.reserve(SLOT, EPOCH + 1, "wörker@2", ["d1"]).attempts == {"d1": before.attempt + 1}
        after = steps.record(store)
        assert (after.state, after.worker, after.epoch) == (JobState.STARTING, "wörker@2", EPOCH + 1)
        assert (after.attempt, after.fresh) == (before.attempt + 1, before.fresh)
        assert (after.error, after.payload, after.created) == (before.error, before.payload, before.created)
        assert after.version > before.version

    def test_attempts_are_counted(self, store: JobStore) -> None:
        steps.queued(store)
        store.open(SLOT, EPOCH)
        assert [store.reserve(SLOT, EPOCH, "w1", ["d1"]).attempts["d1"] for _ in range(3)] == [1, 2, 3]

    def test_only_what_is_still_wanted_is_reserved(self, store: JobStore) -> None:
        steps.stopping(store, steps.job("stopping"))
        steps.queued(store, steps.job("wanted", key="k2"))
        steps.queued(store, steps.job("elsewhere", key="k3", slot=SLOT + 1))
        steps.queued(store, steps.job("stopped", key="k4"))
        store.stop(SLOT, "feed", "k4")
        before = {found.id: found for found in store.records()}
        wanted = ["stopping", "wanted", "elsewhere", "stopped", "unknown"]
        assert store.reserve(SLOT, EPOCH, "w1", wanted).attempts == {"wanted": 1}
        assert {found.id for found in store.records() if found != before[found.id]} == {"wanted"}

    def test_nothing_reserved_is_nothing_changed(self, store: JobStore) -> None:
        steps.stopping(store)
        before = store.look({SLOT: 0})
        assert store.reserve(SLOT, EPOCH, "w1", ["d1", "unknown"]).attempts == {}
        assert store.reserve(SLOT, EPOCH, "w1", []).attempts == {}
        store.open(SLOT, EPOCH)
        assert store.look({SLOT: 0}) == before

    @pytest.mark.parametrize("slot", [SLOT, KeyPlace("k")])
    def test_an_owner_is_told_what_revision_its_own_changes_make(self, store: JobStore, slot: Slot) -> None:
        steps.queued(store, steps.job(slot=slot))
        store.open(slot, EPOCH)
        known = steps.revision(store, slot)
        reserved = store.reserve(slot, EPOCH, "w1", ["d1"], known=known)
        assert reserved.attempts == {"d1": 1}
        assert known < reserved.revision == steps.revision(store, slot)
        settled = store.settle(slot, EPOCH, [steps.started()], [], outcome_ttl=60, known=reserved.revision)
        assert reserved.revision < settled == steps.revision(store, slot)
        assert store.settle(slot, EPOCH, [], [], outcome_ttl=60, known=settled) == settled
        assert store.look({slot: settled}) == {}

    @pytest.mark.parametrize("slot", [SLOT, KeyPlace("k")])
    def test_but_not_where_another_change_has_come_between(self, store: JobStore, other: JobStore, slot: Slot) -> None:
        steps.queued(store, steps.job(slot=slot))
        store.open(slot, EPOCH)
        known = steps.revision(store, slot)
        steps.note(other, to=steps.job(slot=slot))
        assert store.reserve(slot, EPOCH, "w1", ["d1"], known=known).revision == 0
        known = steps.revision(store, slot)
        other.stop(slot, "feed", "k")
        assert store.settle(slot, EPOCH, [steps.started()], [], outcome_ttl=60, known=known) == 0
        assert store.settle(slot, EPOCH, [steps.started()], [], outcome_ttl=60) == 0, "nothing was known"

    def test_records_and_notes_survive_a_change_of_owner(self, store: JobStore, other: JobStore) -> None:
        steps.running(store)
        steps.queued(store, steps.job("d2", key="k2"))
        for payload in (b"1", b"2"):
            steps.note(store, payload)
        before = store.look({SLOT: 0})
        other.open(SLOT, EPOCH + 1)
        assert other.look({SLOT: 0}) == before
        with pytest.raises(Fenced):
            steps.settle(store, steps.ended(), notes=[note.id for note in before[SLOT].notes])
        assert steps.notes(other) == [b"1", b"2"]
        steps.settle(other, notes=[note.id for note in before[SLOT].notes], epoch=EPOCH + 1)
        assert steps.notes(other) == []

    def test_a_thousand_jobs_are_reserved_and_settled_at_once(self, store: JobStore) -> None:
        names = [f"d{i}" for i in range(1000)]
        for name in names:
            steps.queued(store, steps.job(name, key=name))
        steps.reserved(store, *names)
        steps.settle(store, *map(steps.started, names))
        assert {found.state for found in store.records()} == {JobState.RUNNING}
        steps.settle(store, *map(steps.ended, names))
        assert steps.ids(store) == set()
