"""Two connections at one slot, on databases with a server: what waits for what, and what a late commit does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from harness.sql_broker import OnSql
from harness.sql_races import Doing, Stranger
from harness.sql_servers import connect

from celery_sticky.errors import BrokerUnavailable
from celery_sticky.queues import SlotQueues
from celery_sticky.queues.sql.names import slot_number
from celery_sticky.testing.queue_steps import (
    AGAIN,
    FIRST,
    HERE,
    LONG,
    NEXT,
    NOW,
    ack,
    bodies,
    defer,
    open_slot,
    settle,
    take,
)

QUEUE = slot_number("default", 7, "sticky")
LATE = f"INSERT INTO {{message}} (queue, priority, body) VALUES ({QUEUE}, 0, 'late')"


@pytest.fixture
def broker(server_url: str) -> Iterator[OnSql]:
    broker = OnSql(server_url)
    yield broker
    broker.close()


@pytest.fixture
def queues(broker: OnSql) -> Iterator[SlotQueues]:
    queues = broker.driver()
    open_slot(queues, FIRST)
    yield queues
    queues.close()


@pytest.fixture
def other(broker: OnSql) -> Iterator[SlotQueues]:
    other = broker.driver()
    yield other
    other.close()


@pytest.fixture
def stranger(broker: OnSql) -> Iterator[Stranger]:
    with connect(broker.url) as raw:
        yield Stranger(raw, broker.database.tables)


@pytest.mark.parametrize("fetches", [True, False])
@pytest.mark.parametrize("end", [ack, lambda d: defer(d, NOW + 1)], ids=["ack", "defer"])
def test_an_opening_waits_for_a_settlement_under_way_and_sees_what_it_deletes(
    broker: OnSql, queues: SlotQueues, other: SlotQueues, stranger: Stranger, fetches: bool, end: Callable[..., Any]
) -> None:
    broker.publish_many(7, [b"1", b"2"])
    first, second = take(queues, FIRST).deliveries
    stranger.run(f"SELECT id FROM {{message}} WHERE queue = {QUEUE} AND body = '1' FOR UPDATE")
    done = (lambda: take(queues, FIRST, end(first))) if fetches else (lambda: settle(queues, end(first)))
    settling = Doing(broker.database, done, 1)
    opening = Doing(broker.database, lambda: open_slot(other, NEXT), 2)
    stranger.end()
    assert settling.result().confirmed == [end(first)]
    opening.result()
    assert [(d.body, d.attempts) for d in take(other, NEXT).deliveries] == [(second.body, 0)]


def test_a_settlement_that_waited_for_an_opening_is_refused_and_brings_nothing(
    broker: OnSql, queues: SlotQueues, other: SlotQueues, stranger: Stranger
) -> None:
    broker.publish_many(7, [b"1"])
    (first,) = take(queues, FIRST).deliveries
    number = broker.value("SELECT id FROM {message}")
    stranger.run(f"INSERT INTO {{suspect}} (queue, id, starts) VALUES ({QUEUE}, {number}, 5)")
    opening = Doing(broker.database, lambda: open_slot(other, NEXT), 1)
    broker.publish_many(7, [b"2"])
    settling = Doing(broker.database, lambda: take(queues, FIRST, ack(first)), 2)
    stranger.end()
    opening.result()
    answer = settling.result()
    assert (answer.refused, answer.confirmed, answer.deliveries, answer.lost) == ([ack(first)], [], [], {HERE})
    assert bodies(take(other, NEXT)) == [b"1", b"2"]


@pytest.mark.parametrize("waits", [True, False], ids=["while idle", "while busy"])
def test_a_message_that_is_committed_late_is_found(
    broker: OnSql, queues: SlotQueues, stranger: Stranger, waits: bool
) -> None:
    """Its id is lower than one that was fetched already."""
    stranger.run(LATE)
    broker.publish_many(7, [b"early", b"last"])
    brought = take(queues, FIRST).deliveries
    assert [d.body for d in brought] == [b"early", b"last"]
    settle(queues, ack(brought[1]))
    stranger.end("COMMIT")
    if waits:
        assert queues.idle(LONG) == {HERE}
    assert bodies(take(queues, FIRST)) == [b"late"]
    assert take(queues, FIRST).deliveries == [], "it comes once"


def test_no_message_overtakes_one_that_was_committed_before_it_was_sent(
    broker: OnSql, queues: SlotQueues, stranger: Stranger
) -> None:
    """A sender's first message may get the lower id, and be committed after another sender's message was fetched."""
    stranger.run(LATE)
    broker.publish_many(7, [b"other"])
    (other,) = take(queues, FIRST).deliveries
    stranger.end("COMMIT")
    broker.publish_many(7, [b"next"])
    brought = take(queues, FIRST, ack(other)).deliveries
    assert [d.body for d in brought] == [b"late", b"next"] and brought[0].tag < brought[1].tag


def test_a_transaction_that_took_longer_is_found_by_a_sweep(
    broker: OnSql, queues: SlotQueues, stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    from celery_sticky.queues.sql import open_slot as memory

    monkeypatch.setattr(memory, "LATE_SECONDS", 0.0)
    stranger.run(LATE)
    broker.publish_many(7, [b"early"])
    assert bodies(take(queues, FIRST)) == [b"early"]
    for _ in range(3):
        assert take(queues, FIRST).drained == {HERE}, "the floors are at the cursor now"
    stranger.end("COMMIT")
    assert queues.idle(LONG) == {HERE}
    assert bodies(take(queues, FIRST)) == [b"late"]


def test_an_opening_finds_a_message_that_was_committed_late(
    broker: OnSql, queues: SlotQueues, other: SlotQueues, stranger: Stranger
) -> None:
    stranger.run(LATE)
    broker.publish_many(7, [b"early"])
    take(queues, FIRST)
    stranger.end("COMMIT")
    open_slot(other, NEXT)
    assert bodies(take(other, NEXT)) == [b"late", b"early"]


def test_a_request_that_waits_too_long_for_a_lock_is_given_up(
    broker: OnSql, queues: SlotQueues, stranger: Stranger
) -> None:
    broker.publish_many(7, [b"1"])
    hasty = broker.driver(socket_timeout=1.0)
    open_slot(hasty, AGAIN)
    (first,) = take(hasty, AGAIN).deliveries
    stranger.run(f"SELECT queue FROM {{fence}} WHERE queue = {QUEUE} FOR UPDATE")
    with pytest.raises(BrokerUnavailable):
        take(hasty, AGAIN, ack(first))
    stranger.end()
    assert take(hasty, AGAIN).lost == {HERE}, "what came of it is unknown: the slot must be opened again"
    open_slot(hasty, NEXT)
    assert bodies(take(hasty, NEXT)) in ([b"1"], [])
    hasty.close()
