"""How many statements a known amount of work costs, and an idle worker: see docs/how-to/sql.md.

Times are those of a clock that only the waits of the code under test move on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace

import pytest
from harness.sql_broker import OnSql
from harness.sql_stores import InDatabase, database
from harness.statements import Statements, counted

from celery_sticky.keys import queue_name
from celery_sticky.queues.sql import SqlQueues, late_commits, publish, waiting
from celery_sticky.sql.ear import Heard, Hearing
from celery_sticky.stores.sql import SqlStore, poller
from celery_sticky.testing.queue_steps import FIRST, ack, open_slot, take
from celery_sticky.testing.store_contract import first_view, joined
from celery_sticky.transport.sql import pump as pump_module
from celery_sticky.transport.sql.broadcasts import newest
from celery_sticky.transport.sql.inbox import Inbox
from celery_sticky.transport.sql.pump import Pump
from celery_sticky.transport.sql.subscription import Subscription, Topic

TASKS, COMPANY = 1000, 64
LIMITS = {"postgresql": 20, "mysql": 180, "sqlite": 180}
"""Fetches and settlements of 1,000 keyed tasks, in full batches."""
BEATS = ("{consumer}", "_consumer", "_queue SET expires", "_queue WHERE expires", "_broadcast WHERE at")
SETTLED = 20.0
"""Virtual seconds after which pauses do not grow any more."""


class Clock:
    """A clock that stands still while anything is done, and goes on when somebody waits."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def wait(self, timeout: float, other: object) -> tuple[bool, bool]:
        """Wait like a `Waker`."""
        self.now += max(timeout, 0.0)
        return False, False

    def close(self) -> None:
        """There is nothing to close."""

    wake = close


class Quiet(Hearing):
    """Hears nothing, with an ear that is proven or not."""

    def __init__(self, proven: bool) -> None:
        super().__init__(None, lambda: None, lambda ring, topic: False)
        self._is_proven = proven

    @property
    def proven(self) -> bool:
        return self._is_proven

    def take(self) -> Heard:
        return Heard(False, ())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (waiting, poller, pump_module):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock, sleep=time.sleep))
    for module in (poller, pump_module):
        monkeypatch.setattr(module, "Waker", lambda: clock)
    return clock


@pytest.fixture(params=[True, False], ids=["hears", "polls"])
def proven(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    for module in (waiting, poller):
        monkeypatch.setattr(module, "hear", lambda *_: Quiet(request.param))
    return bool(request.param)


def driver(broker: OnSql, clock: Callable[[], float] | None = None) -> SqlQueues:
    """Return a driver with one slot open, of which a message was fetched and settled."""
    queues = broker.driver()
    if clock is not None:
        queues._late._clock = clock
    open_slot(queues, FIRST)
    broker.publish("default", FIRST.slot, b"0")
    take(queues, FIRST, *[ack(one) for one in take(queues, FIRST).deliveries])
    return queues


# -- Work ----------------------------------------------------------------------------------------


def test_a_message_is_sent_by_one_statement(on_sql: OnSql) -> None:
    name = queue_name("default", 1)
    on_sql.publish("default", 1, b"0")
    with counted() as sent:
        for _ in range(50):
            publish(on_sql.database, name, [b"x"])
        assert len(sent.work) == 50 and len(sent) <= 2 * 50
    with counted() as sent:
        publish(on_sql.database, name, [b"x"] * 50)
        assert len(sent.work) == 1 and len(sent) <= 2


def test_keyed_tasks_are_fetched_and_settled_in_batches(on_sql: OnSql, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_commits, "SWEEP_SECONDS", 1e9)  # by the clock, not by the work
    monkeypatch.setattr(late_commits, "PAUSE", 1e9)
    with closing(driver(on_sql)) as queues:
        on_sql.publish_many(FIRST.slot, [b"x"] * TASKS)
        with counted() as sent:
            done, fetched = 0, take(queues, FIRST, limit=COMPANY)
            while fetched.deliveries:
                done += len(fetched.deliveries)
                fetched = take(queues, FIRST, *[ack(one) for one in fetched.deliveries], limit=COMPANY)
        assert done == TASKS
        assert len(sent.work) <= LIMITS[on_sql.database.dialect.name], sent.work[:10]


# -- Idleness ------------------------------------------------------------------------------------


def idle_courier(broker: OnSql, clock: Clock, seconds: float) -> Statements:
    """Return what a driver sends while nothing comes."""
    with closing(driver(broker, clock)) as queues:
        queues._waiting._waker.close()
        queues._waiting._waker = clock  # type: ignore[assignment]
        queues.idle(SETTLED)
        with counted() as sent:
            queues.idle(seconds)
        return sent


def idle_pump(broker: OnSql, clock: Clock, seconds: float, proven: bool) -> Statements:
    """Return what the pump of a worker sends while nothing comes; it consumes a queue and listens to broadcasts."""
    with closing(broker.connect()) as own:
        pump = Pump(own, Inbox(), lambda: None, eviction_timeout=15.0)
        pump._hearing = Quiet(proven)
        topic = Topic("control", None, newest(own))
        for subscription in (Subscription("work", 1, False), Subscription("box", 1, True, (topic,), False, True)):
            pump._subscriptions[subscription.queue] = subscription
            pump._limits[subscription.channel] = 4

        def turn(until: float) -> None:
            while clock.now < until:
                clock.now += max(pump._turn(), 1e-6)

        turn(clock.now + SETTLED)
        with counted() as sent:
            turn(clock.now + seconds)
        pump._end()
        pump._inbox.close()
        return sent


def idle_store(url: str, clock: Clock, seconds: float) -> Statements:
    """Return what a member's thread sends while it waits for signals."""
    with closing(SqlStore(database(url), "default", prefix="sticky")) as store:
        joined(store, first_view(store), "a")
        store.watch(0.0)
        until = clock.now + SETTLED
        while clock.now < until:
            store.watch(until - clock.now)
        with counted() as sent:
            until = clock.now + seconds
            while clock.now < until:
                store.watch(until - clock.now)
        return sent


@pytest.fixture
def server(sql_url: str) -> Iterator[OnSql]:
    InDatabase(sql_url, SqlStore)
    with closing(OnSql(sql_url)) as broker:
        yield broker


def test_an_idle_worker_looks_seldom(server: OnSql, clock: Clock, proven: bool) -> None:
    seconds = 30.0
    looks = {
        "courier": idle_courier(server, clock, seconds).work,
        "pump": [
            one for one in idle_pump(server, clock, seconds, proven).work if not any(word in one for word in BEATS)
        ],
        "store": idle_store(server.url, clock, seconds).work,
    }
    rates = {name: len(sent) / seconds for name, sent in looks.items()}
    assert sum(rates.values()) <= (1.0 if proven else 12.0), (rates, {n: sorted(set(s)) for n, s in looks.items()})
