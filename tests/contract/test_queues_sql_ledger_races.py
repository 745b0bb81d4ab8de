"""Two workers at one run, on databases with a server: what waits for what, and who holds the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from harness.sql_broker import OnSql
from harness.sql_races import Doing, Stranger
from harness.sql_servers import connect

from celery_sticky.errors import BrokerUnavailable
from celery_sticky.queues import SlotQueues
from celery_sticky.queues.base import Delivery, Disposition, Fetched, Tag
from celery_sticky.queues.sql import ledger
from celery_sticky.queues.sql.names import keyspace_name
from celery_sticky.testing.queue_steps import (
    AGAIN,
    FIRST,
    NEXT,
    ack,
    claim,
    finishing,
    open_slot,
    settle,
    take,
    tenure,
    unclaim,
)

OTHER = tenure(slot=8, incarnation="bob")
KEYSPACE = keyspace_name("default", "sticky").decode()
ROW = f"INSERT INTO {{ledger}} (keyspace, run, holder, done) VALUES ('{KEYSPACE}', '%s', '1:eve', NULL)"


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
    open_slot(other, OTHER)
    yield other
    other.close()


@pytest.fixture
def stranger(broker: OnSql) -> Iterator[Stranger]:
    with connect(broker.url) as raw:
        yield Stranger(raw, broker.database.tables)


@pytest.fixture
def copies(broker: OnSql, queues: SlotQueues, other: SlotQueues) -> tuple[Delivery, Delivery]:
    """A message and its copy, in flight in two slots of two workers."""
    for slot in (7, 8):
        broker.publish_many(slot, [b"1"])
    (first,), (copy,) = take(queues, FIRST).deliveries, take(other, OTHER).deliveries
    return first, copy


Copies = tuple[Delivery, Delivery]


def holder(fetched: Fetched) -> Tag | None:
    """Return the only answer to a claim."""
    (found,) = fetched.claims.values()
    return found


def attempt(queues: SlotQueues, claiming: Disposition) -> Tag | str | None:
    """Return the holder, or why the request was given up."""
    try:
        return holder(settle(queues, claiming))
    except BrokerUnavailable as error:
        return str(error)


def test_of_workers_that_claim_a_run_at_once_one_holds_it(
    broker: OnSql, queues: SlotQueues, other: SlotQueues, stranger: Stranger, copies: Copies
) -> None:
    first, copy = copies
    broker.publish_many(7, [b"held up"])
    (held_up,) = take(queues, FIRST).deliveries
    stranger.run("SELECT id FROM {message} WHERE body = 'held up' FOR UPDATE")
    mine = Doing(broker.database, lambda: settle(queues, claim(first), ack(held_up)), 1)
    theirs = Doing(broker.database, lambda: settle(other, claim(copy)), 2)
    stranger.end()
    assert holder(mine.result()) == holder(theirs.result()) == first.tag


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_no_run_has_two_holders_however_a_third_claim_ends(
    broker: OnSql, queues: SlotQueues, other: SlotQueues, stranger: Stranger, copies: Copies, end: str
) -> None:
    """InnoDB ends one of two that waited for a transaction which is rolled back: it calls that a deadlock."""
    stranger.run(ROW % "id/0")
    claiming = [
        Doing(broker.database, lambda: attempt(queues, claim(copies[0])), 1),
        Doing(broker.database, lambda: attempt(other, claim(copies[1])), 2),
    ]
    stranger.end(end)
    answers = [one.result() for one in claiming]
    found = {answer for answer in answers if isinstance(answer, Tag)}
    assert len(found) == 1 and found < {Tag(1, "eve"), *(one.tag for one in copies)}, answers
    assert (Tag(1, "eve") in found) == (end == "COMMIT")


def test_a_claim_that_waited_for_the_end_of_a_run_hears_of_it(
    broker: OnSql, queues: SlotQueues, other: SlotQueues, stranger: Stranger, copies: Copies
) -> None:
    first, copy = copies
    settle(queues, claim(first))
    stranger.run("SELECT id FROM {message} FOR UPDATE")
    ending = Doing(broker.database, lambda: settle(queues, finishing(ack(first))), 1)
    claiming = Doing(broker.database, lambda: settle(other, claim(copy)), 2)
    stranger.end()
    assert ending.result().confirmed == [finishing(ack(first))]
    assert holder(claiming.result()) is None


def test_a_claim_that_is_given_back_meanwhile_is_free(
    queues: SlotQueues, other: SlotQueues, copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between an INSERT that changes nothing and the look at the row that was there, that row may go."""
    first, copy = copies
    settle(queues, claim(first))
    insert = ledger._Ledger._insert

    def slowly(self: Any, rows: Any, columns: Any) -> None:
        insert(self, rows if given else [], columns)  # as if the row had been there
        if not given:
            given.append(unclaim(first))
            settle(queues, *given)

    given: list[Disposition] = []
    monkeypatch.setattr(ledger._Ledger, "_insert", slowly)
    assert holder(settle(other, claim(copy))) == copy.tag


def test_an_opening_waits_for_a_claim_under_way_and_its_owner_hears_of_it(
    broker: OnSql, queues: SlotQueues, stranger: Stranger
) -> None:
    broker.publish_many(7, [b"1"])
    (first,) = take(queues, FIRST).deliveries
    successor = broker.driver()
    stranger.run(ROW % "id/0")
    claiming = Doing(broker.database, lambda: settle(queues, claim(first)), 1)
    opening = Doing(broker.database, lambda: open_slot(successor, NEXT), 2)
    stranger.end()
    assert holder(claiming.result()) == first.tag
    opening.result()
    (again,) = take(successor, NEXT).deliveries
    assert holder(settle(successor, claim(again))) == first.tag
    successor.close()


def test_runs_are_claimed_in_one_order_by_everybody(
    broker: OnSql, queues: SlotQueues, other: SlotQueues, stranger: Stranger
) -> None:
    """Otherwise each of two workers could hold the run that the other one waits for."""
    for slot in (7, 8):
        broker.publish_many(slot, [b"1", b"2"])
    mine, theirs = take(queues, FIRST).deliveries, take(other, OTHER).deliveries
    stranger.run(ROW % "b/0")
    claiming = [
        Doing(broker.database, lambda: settle(queues, claim(mine[0], "a/0"), claim(mine[1], "b/0")), 1),
        Doing(broker.database, lambda: settle(other, claim(theirs[0], "b/0"), claim(theirs[1], "a/0")), 2),
    ]
    stranger.end()
    for one in claiming:
        assert set(one.result().claims.values()) == {delivery.tag for delivery in mine}


def test_a_claim_that_waits_too_long_is_given_up_and_claimed_again(
    broker: OnSql, queues: SlotQueues, stranger: Stranger
) -> None:
    broker.publish_many(7, [b"1"])
    hasty = broker.driver(socket_timeout=1.0)
    open_slot(hasty, AGAIN)
    (first,) = take(hasty, AGAIN).deliveries
    stranger.run(ROW % "id/0")
    with pytest.raises(BrokerUnavailable):
        settle(hasty, claim(first))
    stranger.end()
    open_slot(hasty, NEXT)
    (again,) = take(hasty, NEXT).deliveries
    assert holder(settle(hasty, claim(again))) in (first.tag, again.tag), "the first request may have been carried out"
    hasty.close()
