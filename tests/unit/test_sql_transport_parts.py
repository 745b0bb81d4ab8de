"""Parts of the transport of SQL databases, without Kombu and without a thread."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from celery_sticky.errors import BrokerUnavailable
from celery_sticky.sql import Address, Database
from celery_sticky.sql import pauses as pauses_module
from celery_sticky.sql.bell import BROADCAST, due_topic, queue_topic
from celery_sticky.sql.ear import Heard
from celery_sticky.transport.sql import floors
from celery_sticky.transport.sql.broadcasts import Broadcast
from celery_sticky.transport.sql.claims import Claims, Evicted, Want
from celery_sticky.transport.sql.consumers import BEATS, Consumers
from celery_sticky.transport.sql.deferred import due_of
from celery_sticky.transport.sql.held import COMPANY, MOMENT, NO_LIMIT, Ledger, Settled
from celery_sticky.transport.sql.looks import Looks
from celery_sticky.transport.sql.senders import UNUSED_SECONDS, Senders
from celery_sticky.transport.sql.subscription import Topic

TIMEOUT = 10.0


class Clock:
    """A clock that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(
        Database(Address.parse(f"sqlite:///{tmp_path}/q.db"), timeout=20.0, unavailable=BrokerUnavailable)
    ) as own:
        yield own


# -- when to look --------------------------------------------------------------------------------------


def test_pauses_grow_quickly_at_first_and_then_slowly_up_to_a_limit() -> None:
    pauses = [pauses_module.FIRST_PAUSE]
    while pauses[-1] < pauses_module.LONGEST_PAUSE:
        pauses.append(pauses_module.longer(pauses[-1]))
    assert pauses[:6] == [0.005, 0.01, 0.02, 0.04, 0.08, 0.1]
    assert 10 < sum(pauses) < 20, "seconds of silence until the longest pause"
    assert pauses_module.longer(pauses[-1]) == pauses_module.LONGEST_PAUSE


def test_what_was_heard_is_looked_at_at_once_and_nothing_else() -> None:
    looks = Looks()
    looks.take_in(Heard(True, ()), proven=True)
    looks.looked(100.0, found=False)
    looks.looked_at_etas(100.0, float("inf"))
    times = looks.messages_at, looks.broadcasts_at, looks.etas_at
    assert times == (103.0, 115.0, 115.0) and looks.next_at == 103.0
    for topics, expected in (
        ([queue_topic(5)], (0.0, 115.0, 115.0)),
        ([BROADCAST], (0.0, 0.0, 115.0)),
        ([due_topic(5)], (0.0, 0.0, 0.0)),
    ):
        looks.take_in(Heard(False, topics), proven=True)
        assert (looks.messages_at, looks.broadcasts_at, looks.etas_at) == expected


def test_etas_are_looked_at_when_the_next_one_comes_but_not_too_seldom() -> None:
    looks = Looks()
    looks.looked_at_etas(100.0, 0.3)
    assert looks.etas_at == 100.3
    looks.looked_at_etas(100.0, -1.0)
    assert looks.etas_at == 100.05, "others may be putting it back"
    looks.looked_at_etas(100.0, 60.0)
    assert looks.etas_at == 101.0, "a new one may come sooner, and nothing is heard of it"


# -- who sends -----------------------------------------------------------------------------------------


def test_a_third_sender_waits_and_connections_that_nobody_uses_are_closed(database: Database, clock: Clock) -> None:
    senders = Senders(database, clock)
    third = threading.Thread(target=lambda: senders.lend().__enter__())
    with senders.lend() as first:
        with senders.lend() as second:
            assert first is database is not second
            third.start()
            assert [one.rows("SELECT 1") for one in (first, second)] == [[(1,)], [(1,)]]
            third.join(0.1)
            assert third.is_alive()
        third.join(20)
        assert not third.is_alive()
    clock.now += UNUSED_SECONDS / 2
    senders.rest()
    with senders.lend() as again:
        assert again is first and first._link is not None
    clock.now += UNUSED_SECONDS
    senders.rest()
    assert first._link is None
    second.close()


# -- what a connection holds -------------------------------------------------------------------------


def place(number: int) -> tuple[int, int, int]:
    return (1, 0, number)


def test_a_channel_has_room_for_as_many_as_it_has_not_settled(clock: Clock) -> None:
    ledger = Ledger(clock)
    tags = [ledger.add(place(n), 7) for n in range(3)]
    assert ledger.rooms([(7, 4), (8, 4), (9, 0)]) == {7: 1, 8: 4, 9: NO_LIMIT}
    ledger.settled += [Settled(tags[0], back=False), Settled(tags[1], back=True), Settled(tags[0], back=True)]
    ledger.take()
    assert ledger.rooms([(7, 4)]) == {7: 3}
    assert (ledger.acked, ledger.returned) == ({place(0)}, {place(1)}), "the first word about a message counts"


def test_settled_messages_wait_a_moment_for_others(clock: Clock) -> None:
    ledger = Ledger(clock)
    assert ledger.wait(COMPANY) is None
    ledger.ack(place(0))
    assert ledger.wait(COMPANY) == pytest.approx(MOMENT)
    assert ledger.wait(1) == 0.0, "it was the company that is wanted"
    clock.now += MOMENT
    ledger.ack(place(1))
    assert ledger.wait(COMPANY) == 0.0
    ledger.told({place(0), place(1)}, set())
    assert ledger.wait(1) is None


def test_a_channel_that_is_released_gives_back_only_its_own(clock: Clock) -> None:
    ledger = Ledger(clock)
    ledger.add(place(0), 7)
    ledger.add(place(1), 8)
    ledger.released.append(7)
    ledger.take()
    assert ledger.returned == {place(0)}
    assert ledger.forget() == 1 and not ledger.returned and ledger.rooms([(8, 4)]) == {8: 4}


# -- who is dead -------------------------------------------------------------------------------------


def test_a_consumer_is_dead_when_its_counter_was_seen_to_stand_still(database: Database, clock: Clock) -> None:
    watcher, other = Consumers(database, TIMEOUT, clock), Consumers(database, TIMEOUT)
    own, silent, lively = watcher.register(), other.register(), other.register()
    for _ in range(BEATS):
        assert watcher.watch(own) == 0
        other.beat(lively)
        clock.now += watcher.interval
    assert watcher.watch(own) == 1
    assert other.beat(lively) and watcher.beat(own) and not other.beat(silent)


def test_the_time_in_which_nobody_could_read_does_not_count(database: Database, clock: Clock) -> None:
    watcher = Consumers(database, TIMEOUT, clock)
    own, other = watcher.register(), watcher.register()
    watcher.watch(own)
    clock.now += 100 * TIMEOUT  # the database was away for both
    assert watcher.watch(own) == 0 and watcher.beat(other)


def test_an_evicted_consumer_changes_nothing(database: Database, clock: Clock) -> None:
    consumers = Consumers(database, TIMEOUT, clock)
    claims = Claims(database, consumers.register())
    database.run("INSERT INTO {message} (queue, priority, body) VALUES (1, 0, %s)", [b"x"])
    [found] = claims.trip((), (), [Want(1, 7)], {7: 5})
    consumers.leave(claims.consumer)
    with pytest.raises(Evicted):
        claims.trip([found.place], (), (), {})
    again = Claims(database, consumers.register())
    rooms = {7: 5}
    assert again.look([1, 2]) == {1}
    assert again.trip((), (), [Want(1, 7)], rooms) == [found] and rooms == {7: 4}
    assert again.look([1, 2]) == set(), "what is claimed is claimed"


# -- where claims begin ------------------------------------------------------------------------------


def insert(database: Database, number: int) -> None:
    database.run("INSERT INTO {message} (id, queue, priority, body) VALUES (%s, 1, 0, %s)", [number, b"%d" % number])


def bodies_of(claims: Claims) -> list[bytes]:
    return [one.body for one in claims.trip((), (), [Want(1, 7)], {7: 100})]


@pytest.fixture
def claims(database: Database, monkeypatch: pytest.MonkeyPatch) -> Claims:
    """The claims of a consumer whose next look from the front is far away, once it has claimed message 50."""
    monkeypatch.setattr(floors, "PAUSE", 1000.0)
    claims = Claims(database, Consumers(database, TIMEOUT).register())
    insert(database, 50)
    assert bodies_of(claims) == [b"50"]
    return claims


def test_claims_begin_at_the_floor(database: Database, claims: Claims) -> None:
    insert(database, 20)
    insert(database, 60)
    assert claims.look([1]) == {1} and bodies_of(claims) == [b"60"]
    assert claims.look([1]) == set()


def test_a_message_that_goes_back_is_claimed_again_at_once(database: Database, claims: Claims) -> None:
    insert(database, 60)
    assert bodies_of(claims) == [b"60"]
    [again] = claims.trip((), [(1, 0, 50)], [Want(1, 7)], {7: 100})
    assert again.place == (1, 0, 50)


@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
def test_messages_below_the_floor_are_found_from_the_front(database: Database, claims: Claims, busy: bool) -> None:
    """They were committed late, or another consumer has given them back."""
    for number in range(10, 40):
        insert(database, number)
    claims.floors.next_front = 0.0
    if not busy:
        assert claims.look([1]) == {1}
        assert claims.floors.turn() is None
    some = claims.trip((), (), [Want(1, 7)], {7: 10})
    assert [one.place[2] for one in some] == list(range(10, 20))
    assert bodies_of(claims) == [b"%d" % number for number in range(20, 40)]
    assert claims.look([1]) == set()


def test_a_lost_database_is_claimed_from_its_front(database: Database, claims: Claims) -> None:
    """It may have come back with an older copy, in which ids begin lower."""
    insert(database, 20)
    database.run("ALTER TABLE {consumer} RENAME TO away")
    with pytest.raises(BrokerUnavailable):
        bodies_of(claims)
    database.run("ALTER TABLE away RENAME TO {consumer}")
    assert bodies_of(claims) == [b"20"]


# -- small things ------------------------------------------------------------------------------------


def test_a_topic_hears_what_comes_after_it_began_and_matches() -> None:
    topic = Topic("events", re.compile(r"^task\..*?$"), since=5)
    heard = [
        ("events", 6, "task.sent"),
        ("events", 5, "task.sent"),
        ("other", 6, "task.sent"),
        ("events", 6, "worker.x"),
    ]
    assert [topic.matches(Broadcast(number, exchange, key, b"")) for exchange, number, key in heard] == [
        True,
        False,
        False,
        False,
    ]


def test_only_ordinary_tasks_with_a_clear_time_wait_in_the_database() -> None:
    later = datetime.now(UTC) + timedelta(minutes=1)
    assert due_of({"eta": later.isoformat()}) == pytest.approx(later.timestamp())
    for headers in (
        {},
        {"eta": None},
        {"eta": (later - timedelta(hours=1)).isoformat()},
        {"eta": later.replace(tzinfo=None).isoformat()},
        {"eta": "soon"},
        {"eta": later.isoformat(), "sticky": {"key": "t-7"}},
    ):
        assert due_of(headers) is None
