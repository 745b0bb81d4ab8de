"""The contract of queue drivers on SQL databases, and the bounds of one trip."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.sql_broker import OnSql

from celery_sticky.queues import Delivery, SlotQueues, Tenure
from celery_sticky.queues.sql.names import keyspace_name
from celery_sticky.sql.text import chunks, values
from celery_sticky.testing.queue_contract import QueueContract
from celery_sticky.testing.queue_steps import (
    AGAIN,
    FIRST,
    NEXT,
    NOW,
    ack,
    bodies,
    defer,
    mark,
    open_slot,
    settle,
    take,
    take_all,
    tenure,
)

MB = 1024 * 1024


class TestSql(QueueContract):
    """The contract, on a database of each kind."""

    @pytest.fixture
    def broker(self, on_sql: OnSql) -> OnSql:
        return on_sql


@pytest.fixture
def queues(on_sql: OnSql) -> Iterator[SlotQueues]:
    queues = on_sql.driver()
    open_slot(queues, FIRST)
    yield queues
    queues.close()


def drain(queues: SlotQueues, under: Tenure) -> list[int]:
    """Fetch and acknowledge until the slot is empty; return the numbers that the bodies begin with."""
    seen, done = list[int](), list[Delivery]()
    while True:
        fetched = take(queues, under, *[ack(d) for d in done], limit=64)
        assert not fetched.refused and not fetched.failed and not fetched.broken
        done = fetched.deliveries
        seen += [int(d.body[:8]) for d in done]
        if fetched.drained and not done:
            return seen


def body(number: int, size: int = 8) -> bytes:
    return b"%08d" % number + bytes(size - 8)


def test_a_trip_brings_a_bounded_number_of_bytes_and_something_always(on_sql: OnSql, queues: SlotQueues) -> None:
    for number in range(20):
        on_sql.publish("default", 7, body(number, MB if number != 10 else 6 * MB))
    first = take(queues, FIRST, limit=64)
    assert 0 < sum(len(d.body) for d in first.deliveries) <= 4 * MB and not first.drained
    open_slot(queues, AGAIN)
    assert drain(queues, AGAIN) == list(range(20))


def test_the_budget_of_a_trip_is_shared_by_its_slots_and_the_order_holds(on_sql: OnSql, queues: SlotQueues) -> None:
    others = [tenure(slot=slot) for slot in range(20, 30)]
    for other in others:
        open_slot(queues, other)
        for number in range(2):
            on_sql.publish("default", other.slot, body(number, MB // 2))
    assert [drain(queues, other) for other in others] == [[0, 1]] * 10


def test_thousands_in_flight_go_back_and_nothing_stays_behind(on_sql: OnSql, queues: SlotQueues) -> None:
    on_sql.publish_many(7, [body(number) for number in range(3000)])
    assert len(take_all(queues, FIRST).deliveries) == 3000
    open_slot(queues, NEXT)
    again = take_all(queues, NEXT).deliveries
    assert [int(d.body) for d in again] == list(range(3000)) and {d.attempts for d in again} == {0}
    some = again[:500]
    assert len(settle(queues, *[mark(d) for d in some]).confirmed) == 500
    for start in range(0, 3000, 250):
        settle(queues, *[ack(d) for d in again[start : start + 250]])
    take(queues, NEXT)
    assert {table: on_sql.count(table) for table in ("message", "flight", "suspect")} == {
        "message": 0,
        "flight": 0,
        "suspect": 0,
    }


def test_more_deferred_messages_come_due_than_one_trip_wakes(
    on_sql: OnSql, queues: SlotQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    from celery_sticky.queues.sql import deferrals

    monkeypatch.setattr(deferrals, "WAKE", 40)
    on_sql.publish_many(7, [body(number) for number in range(100)])
    settle(queues, *[defer(d, NOW + 1) for d in take(queues, FIRST).deliveries])
    seen = list[bytes]()
    while len(seen) < 100:
        fetched = take(queues, FIRST, limit=1000, now=NOW + 2)
        assert fetched.deliveries, "it brings something while there is anything"
        seen += bodies(fetched)
    assert seen == [body(number) for number in range(100)]


def test_many_kept_deliveries_stay_out_of_the_next_fetches(on_sql: OnSql, queues: SlotQueues) -> None:
    on_sql.publish_many(7, [body(number) for number in range(1200)])
    brought = take_all(queues, FIRST).deliveries
    kept = brought[::2]
    assert sorted(open_slot(queues, AGAIN, [d.tag for d in kept])) == sorted(d.tag for d in kept)
    assert [int(d.body) for d in take_all(queues, AGAIN).deliveries] == list(range(1, 1200, 2))
    answer = settle(queues, *[ack(d, AGAIN) for d in kept])
    assert len(answer.confirmed) == 600


def test_records_of_a_dead_worker_are_deleted_by_those_that_take_its_slots(on_sql: OnSql, queues: SlotQueues) -> None:
    there = tenure(slot=8)
    open_slot(queues, there)
    for slot in (7, 8):
        on_sql.publish("default", slot, body(slot))
    assert len(take(queues, FIRST).deliveries + take(queues, there).deliveries) == 2
    queues.close()
    other = on_sql.driver()
    open_slot(other, NEXT)
    assert on_sql.count("flight") == 1, "slot 8 may still be taken"
    open_slot(other, tenure(slot=8, epoch=6, incarnation="bob"))
    assert on_sql.count("flight") == 0
    other.close()


def test_runs_are_forgotten_in_bounded_batches(on_sql: OnSql, queues: SlotQueues) -> None:
    for some in chunks([(keyspace_name("default", "sticky"), b"%d" % n, b"", n) for n in range(1500)]):
        rows, said = values(some)
        on_sql.database.run("INSERT INTO {ledger} (keyspace, run, holder, done) VALUES " + rows, said)
    assert [queues.trim_ledger("default", before=1200.0) for _ in range(3)] == [1000, 200, 0]
    assert on_sql.value("SELECT MIN(done) FROM {ledger}") == 1200
