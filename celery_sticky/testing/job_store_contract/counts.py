"""The job store contract: jobs are counted without being read one by one."""

# ruff: noqa: D102  (a test's name is its sentence)

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from celery_sticky.slots import KeyPlace, Slot
from celery_sticky.stores.jobs import REPEATED, Admission, JobCounts, JobGroup, JobState, JobStore, Report, RunResult
from celery_sticky.testing.job_store_contract import steps
from celery_sticky.testing.job_store_contract.dead_notes import buried
from celery_sticky.testing.job_store_contract.steps import EPOCH, SLOT
from celery_sticky.testing.store_contract.server import Opening


def fails(store: JobStore, failures: int, *, pause: float = 0.0, apart: bool = False) -> None:
    """Report so many failures of the job."""
    report = Report("d1", RunResult.FAILED, "boom", failures=failures, apart=apart, pause=pause)
    steps.settle(store, report)


class CountContract(Opening[JobStore]):
    """Counts of jobs, and the time of the next start."""

    def test_nothing_is_counted_in_an_empty_keyspace(self, store: JobStore) -> None:
        found = store.counts()
        assert (list(found.groups), found.dead_notes) == ([], 0)

    def test_jobs_of_a_slot_in_the_same_state_are_counted_together(self, store: JobStore) -> None:
        steps.running(store)
        steps.running(store, steps.job("d2", key="ö"))
        steps.queued(store, steps.job("d3", key="other"))
        steps.queued(store, steps.job("d4", slot=SLOT + 1))
        found = {(one.slot, one.state): one for one in store.counts().groups}
        assert {said: one.count for said, one in found.items()} == {
            (SLOT, JobState.RUNNING): 2,
            (SLOT, JobState.QUEUED): 1,
            (SLOT + 1, JobState.QUEUED): 1,
        }
        runs = found[SLOT, JobState.RUNNING]
        assert (runs.worker, runs.epoch, runs.failures, runs.apart, runs.name) == ("w1", EPOCH, 0, False, "feed")
        assert runs.key in ("k", "ö")
        assert found[SLOT, JobState.QUEUED].key == "other"

    def test_jobs_that_keep_failing_or_run_apart_are_counted_for_themselves(self, store: JobStore) -> None:
        steps.running(store)
        for failures in (1, REPEATED, REPEATED + 5):
            fails(store, failures, apart=failures > REPEATED)
            (one,) = store.counts().groups
            assert (one.state, one.failures, one.apart) == (
                JobState.FAILING,
                min(failures, REPEATED),
                failures > REPEATED,
            )

    def test_jobs_that_are_stored_by_their_keys_are_counted_together(self, store: JobStore) -> None:
        for epoch, key in enumerate(("a", "b"), 1):
            new = steps.queued(store, steps.job(key, key=key, slot=KeyPlace(key)))
            steps.reserved(store, new.id, slot=new.slot, epoch=epoch)
        (one,) = store.counts().groups
        assert one == JobGroup(2, None, JobState.STARTING, "w1", 0, 0, False, "feed", one.key)

    def test_many_jobs_are_found_once(self, store: JobStore) -> None:
        slots = [*[SLOT] * 400, *(SLOT + 1 + i % 50 for i in range(300))]
        places: Sequence[Slot] = [*slots, *(KeyPlace(f"k{i}") for i in range(700, 1000))]
        jobs = [steps.job(f"d{i}", key=f"k{i}", slot=place) for i, place in enumerate(places)]
        assert set(store.admit_each(jobs, max_queued=1000, outcome_ttl=60)) == {Admission.ADMITTED}
        assert sorted(found.id for found in store.records()) == sorted(job.id for job in jobs)
        assert store.keys("feed").keys() == {job.key for job in jobs}
        expected = Counter(place if isinstance(place, int) else None for place in places)
        assert {group.slot: group.count for group in store.counts().groups} == expected
        assert store.forget_places() == 300
        store.close_keyspace(closed=True)
        assert not store.records()

    def test_dead_notes_are_counted(self, store: JobStore) -> None:
        steps.running(store)
        buried(store)
        assert store.counts().dead_notes == 1
        steps.settle(store, steps.ended())
        found = store.counts()
        assert JobCounts(tuple(found.groups), found.dead_notes) == JobCounts((), 1)

    def test_a_failed_job_says_when_it_starts_again(self, store: JobStore) -> None:
        steps.running(store)
        assert steps.record(store).retry_at == 0
        fails(store, 1, pause=1000.5)
        found = steps.record(store)
        assert 1000 < found.retry_at - found.created < 1060
