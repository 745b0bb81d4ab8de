"""The contract of job stores on SQL databases, and what holds of them alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing

import pytest
from harness.sql_stores import OnPrivateServer, database, in_database

from celery_sticky.slots import KeyPlace, Slot
from celery_sticky.sql.link import Link, Parameters, Row
from celery_sticky.stores.jobs import JobStore
from celery_sticky.stores.notes import FailedDelivery, Fate
from celery_sticky.stores.sql.jobs import SqlJobs
from celery_sticky.testing.job_store_contract import JobStoreContract, steps
from celery_sticky.testing.job_store_contract.signals import JobFaultContract
from celery_sticky.testing.servers.postgresql import PostgresServer
from celery_sticky.testing.store_contract import StoreServer


class TestSql(JobStoreContract):
    """The contract, on a database of each kind."""

    @pytest.fixture
    def server(self, sql_url: str) -> StoreServer[JobStore]:
        return in_database(sql_url, SqlJobs)


class TestStoppedPostgresql(JobFaultContract):
    """On a server that may be stopped."""

    @pytest.fixture
    def server(self, postgres: PostgresServer) -> StoreServer[JobStore]:
        return OnPrivateServer(postgres, SqlJobs)


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


def test_indexes_serve_what_owners_and_dispatchers_read(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: dict[str, list[str]] = {}
    rows = Link.rows

    def explained(self: Link, statement: str, said: Parameters = ()) -> list[Row]:
        if statement.startswith("SELECT"):
            plans[statement] = [row[3] for row in rows(self, f"EXPLAIN QUERY PLAN {statement}", said)]
        return rows(self, statement, said)

    store = in_database(sqlite_url, SqlJobs).connect("default", "one")
    with closing(store), monkeypatch.context() as patch:
        patch.setattr(Link, "rows", explained)
        store.watch(0.0)
        steps.running(store, steps.job(slot=KeyPlace("k")))
        steps.note(store, to=steps.job(slot=KeyPlace("k")))
        assert store.look({3: 0, KeyPlace("k"): 0}) and store.places(0) and store.ending() == 0
        note = FailedDelivery(store.look({KeyPlace("k"): 0})[KeyPlace("k")].notes[0].id, 1, "no", dead=True)
        store.settle(KeyPlace("k"), steps.EPOCH, [steps.ended()], [], [note], outcome_ttl=60)
        assert store.requeue_note(store.dead_notes()[0].id, limit=1) is Fate.NO_JOB
        assert store.outcome("d1", 0.0) == steps.SUCCESS
    scan = re.compile(r"SCAN (sticky_job|[jnst]\b)|.*\(scope=\?\)$")  # of a table, or of a whole keyspace
    # A keyspace has few dead notes.
    scans = {text: plan for text, plan in plans.items() if "job_dead" not in text and any(map(scan.match, plan))}
    assert len(plans) > 10 and not scans


def test_expired_answers_are_removed_by_later_dispatches(store: SqlJobs, sql_url: str) -> None:
    for number in range(3):
        steps.starting(store, steps.job(f"d{number}", key=f"k{number}"))
        steps.settle(store, steps.failed(f"d{number}"), ttl=0.0 if number else 60.0)
    store.close()
    other = SqlJobs(database(sql_url), "default", prefix="one")
    steps.queued(other, steps.job("d3"))
    other.close()
    with closing(database(sql_url)) as own:
        assert own.rows("SELECT id FROM {job_answer}") == [(b"d0",)]
