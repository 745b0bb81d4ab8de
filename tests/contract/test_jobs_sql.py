"""The contract of job stores on SQL databases, and what holds of them alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.sql_stores import in_database

from celery_sticky.slots import KeyPlace, Slot
from celery_sticky.stores.jobs import JobStore
from celery_sticky.stores.notes import Fate
from celery_sticky.stores.sql.jobs import SqlJobs
from celery_sticky.testing.job_store_contract import JobStoreContract, steps
from celery_sticky.testing.store_contract import StoreServer


class TestSql(JobStoreContract):
    """The contract, on a database of each kind."""

    @pytest.fixture
    def server(self, sql_url: str) -> StoreServer[JobStore]:
        return in_database(sql_url, SqlJobs)


@pytest.fixture
def store(sql_url: str) -> Iterator[SqlJobs]:
    """A store in an empty database of each kind."""
    store = in_database(sql_url, SqlJobs).connect("default", "one")
    yield store
    store.close()


def test_notes_of_one_request_keep_their_order_and_the_limit_holds(store: SqlJobs) -> None:
    slots: list[Slot] = [3, 3, KeyPlace("k")]
    jobs = [steps.queued(store, steps.job(f"d{n}", key=f"k{n}", slot=slot)) for n, slot in enumerate(slots)]
    said = [((job.slot, job.name, job.key), b"%d" % n) for n in range(8) for job in jobs]
    assert store.notify_each(said, limit=7) == [Fate.SENT] * 21 + [Fate.FULL] * 3
    assert steps.notes(store) == [b"%d" % n for n in range(7) for _ in range(2)]
    assert steps.notes(store, KeyPlace("k")) == [b"%d" % n for n in range(7)]
