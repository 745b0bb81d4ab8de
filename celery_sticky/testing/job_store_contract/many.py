"""The job store contract: requests for many jobs at once."""

# ruff: noqa: D102  (a test's name is its sentence)

from __future__ import annotations

from celery_sticky.stores.jobs import Admission, JobStore
from celery_sticky.stores.notes import Fate
from celery_sticky.testing.job_store_contract import steps
from celery_sticky.testing.job_store_contract.steps import SLOT
from celery_sticky.testing.store_contract.server import Opening, hear

MANY = 1200
"""More than one round trip has room for."""


class ManyContract(Opening[JobStore]):
    """Requests for many jobs at once."""

    def test_many_jobs_are_admitted_each_by_itself(self, store: JobStore, other: JobStore) -> None:
        steps.queued(store, steps.job("d7", key="k7", slot=7))
        other.watch(0)
        jobs = [steps.job(f"n{i}", key=f"k{i}", slot=i % 16) for i in range(MANY)]
        answers = store.admit_each(jobs, max_queued=MANY - 1, outcome_ttl=60)
        expected = [Admission.ADMITTED] * (MANY - 1) + [Admission.FULL]
        expected[7] = Admission.EXISTS
        assert answers == expected
        assert len(steps.ids(store)) == MANY - 1
        hear(other, 15)

    def test_many_jobs_are_notified_and_stopped_each_by_itself(self, store: JobStore) -> None:
        addresses = [(SLOT, "feed", f"k{i}") for i in range(4)]
        for i in (0, 2):
            steps.running(store, steps.job(f"d{i}", key=f"k{i}"))
        steps.queued(store, steps.job("d3", key="k3"))
        said = [(address, b"%d" % i) for i, address in enumerate(addresses)]
        assert store.notify_each(said, limit=10) == [Fate.SENT, Fate.NO_JOB, Fate.SENT, Fate.SENT]
        assert steps.notes(store) == [b"0", b"2", b"3"]
        assert store.stop_each(addresses) == ["d0", None, "d2", "d3"]
        assert (steps.ids(store), store.ending()) == ({"d0", "d2"}, 2)

    def test_of_no_jobs_nothing_is_said(self, store: JobStore) -> None:
        assert not store.admit_each([], max_queued=1, outcome_ttl=60)
        assert not store.stop_each([]) and not store.notify_each([], limit=1)
