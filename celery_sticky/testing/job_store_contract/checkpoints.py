"""The job store contract: checkpoints."""

# ruff: noqa: D102  (a test's name is its sentence)

from __future__ import annotations

import pytest

from celery_sticky.errors import Fenced
from celery_sticky.stores.jobs import Checkpoint, JobState, JobStore
from celery_sticky.testing.job_store_contract import steps
from celery_sticky.testing.job_store_contract.steps import EPOCH, SLOT
from celery_sticky.testing.store_contract.server import Opening


def checkpoint(number: int = 1, *, attempt: int = 1, job_id: str = "d1") -> Checkpoint:
    """Return a checkpoint whose text is its attempt and number."""
    return Checkpoint(job_id, attempt, number, b"[%d,%d]" % (attempt, number))


class CheckpointContract(Opening[JobStore]):
    """Checkpoints."""

    def test_a_checkpoint_is_kept_in_the_record(self, store: JobStore, other: JobStore) -> None:
        steps.running(store)
        steps.running(store, steps.job("d2", key="k2"))
        assert steps.record(store).saved is None
        assert set(store.save(SLOT, EPOCH, [checkpoint(), checkpoint(5, job_id="d2")])) == {"d1", "d2"}
        assert (steps.record(other).saved, steps.record(other, "d2").saved) == (b"[1,1]", b"[1,5]")
        (found,) = [one for one in other.look({SLOT: 0})[SLOT].records if one.id == "d1"]
        assert found == other.find(SLOT, "feed", "k") == steps.record(other)

    def test_a_checkpoint_changes_nothing_that_its_owner_must_look_at(self, store: JobStore) -> None:
        steps.running(store)
        before = steps.revision(store)
        store.save(SLOT, EPOCH, [checkpoint()])
        assert steps.revision(store) == before

    def test_a_checkpoint_survives_failures_stops_and_another_epoch(self, store: JobStore) -> None:
        steps.running(store)
        store.save(SLOT, EPOCH, [checkpoint()])
        steps.settle(store, steps.failed())
        steps.reserved(store, "d1", epoch=EPOCH + 1)
        steps.settle(store, steps.started(), epoch=EPOCH + 1)
        store.stop(SLOT, "feed", "k")
        found = steps.record(store)
        assert (found.saved, found.state, found.attempt) == (b"[1,1]", JobState.STOPPING, 2)

    def test_under_another_epoch_no_checkpoint_is_stored(self, store: JobStore) -> None:
        steps.running(store)
        store.open(SLOT, EPOCH + 1)
        with pytest.raises(Fenced):
            store.save(SLOT, EPOCH, [checkpoint()])
        assert steps.record(store).saved is None

    @pytest.mark.parametrize(
        ("later", "earlier"),
        [
            (checkpoint(2), checkpoint(1)),
            (checkpoint(1, attempt=2), checkpoint(9, attempt=1)),
            (checkpoint(1, attempt=10), checkpoint(1, attempt=9)),
        ],
    )
    def test_a_checkpoint_that_arrives_late_does_not_replace_a_later_one(
        self, store: JobStore, later: Checkpoint, earlier: Checkpoint
    ) -> None:
        steps.running(store)
        for one in (earlier, later, later, earlier):
            assert set(store.save(SLOT, EPOCH, [one])) == {"d1"}
        assert steps.record(store).saved == later.saved

    def test_of_a_job_without_a_record_nothing_is_stored(self, store: JobStore) -> None:
        steps.stopping(store)
        steps.running(store, steps.job("d9", slot=1))
        steps.queued(store, steps.job("d2"))
        assert not store.save(SLOT, EPOCH, [checkpoint(), checkpoint(job_id="d9")])
        assert {found.saved for found in store.records()} == {None}

    def test_a_checkpoint_goes_with_its_job(self, store: JobStore) -> None:
        steps.running(store)
        store.save(SLOT, EPOCH, [checkpoint()])
        steps.settle(store, steps.ended())
        steps.queued(store, steps.job("d2"))
        assert steps.record(store, "d2").saved is None
