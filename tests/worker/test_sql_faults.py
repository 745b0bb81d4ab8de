"""The database that is the broker of real workers is away for a while: frozen, restarted, or read-only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from harness.keyed_fleet import KeyedFleet, node
from harness.sql_servers import connect

from celery_sticky.testing.guard import Guard
from celery_sticky.testing.judge import judge
from celery_sticky.testing.proxy import Proxy
from celery_sticky.testing.servers.postgresql import PostgresServer
from celery_sticky.testing.waiting import wait_until

Crew = Callable[..., KeyedFleet]
NUMBERS = count()
AWAY, BACK = "trying again until it answers", "the broker answers again"


@pytest.fixture
def proxy(postgresql_url: str) -> Iterator[Proxy]:
    """A network before the database, for the workers alone."""
    proxy = Proxy(postgresql_url).start()
    yield proxy
    proxy.teardown()


@pytest.fixture
def postgres(guard: Guard) -> Iterator[PostgresServer]:
    """A server that the test may stop."""
    server = PostgresServer(guard).start()
    yield server
    server.teardown()


def send(fleet: KeyedFleet, tasks: int, seconds: float = 0.05) -> None:
    """Send keyed and ordinary tasks."""
    fleet.publish_many(tasks, 5, seconds)
    for _ in range(tasks // 5):
        fleet.send_plain(next(NUMBERS), seconds)


def check(fleet: KeyedFleet) -> None:
    """Wait until everything ran, and judge that."""
    fleet.wait_finished(120)
    judgement = judge([event for event in fleet.events() if event.key != "plain"], fleet.deaths)
    assert judgement.ok, judgement.describe()


@pytest.mark.parametrize("pool", ["gevent", "threads"])
@pytest.mark.parametrize("sql_url", ["postgresql"], indirect=True)
def test_a_worker_goes_on_when_a_frozen_database_answers_again(
    on_database: dict[str, Any], crew: Crew, proxy: Proxy, pool: str
) -> None:
    """The database is away for less than a lease, so the other worker does not take this one for dead."""
    options = {**on_database["broker_transport_options"], "eviction_timeout": 60}
    fleet = crew(
        broker=on_database["broker"],
        broker_transport_options=options,
        task_acks_late=True,
        sticky_lease_ttl=15.0,
        sticky_lease_margin=3.0,
    )
    env = fleet.environ_with(broker=f"sticky+{proxy.url}", broker_transport_options={**options, "socket_timeout": 1.0})
    frozen = fleet.worker("w1", pool=pool, concurrency=4, ready=False, env=env)
    other = fleet.worker("w2", pool=pool, concurrency=4)
    before = fleet.wait_members("w1", "w2", timeout=60).members[node("w1")]
    send(fleet, 30, 0.2)
    wait_until(lambda: fleet.ended() >= 4, 60)
    proxy.silence()
    wait_until(lambda: AWAY in frozen.log and "broker lost" in frozen.log, 30, "both threads have noticed")
    send(fleet, 10)
    proxy.heal()
    check(fleet)
    wait_until(lambda: BACK in frozen.log, 30)
    assert fleet.wait_members("w1", "w2").members[node("w1")].incarnation == before.incarnation
    assert fleet.judge().duplicates == ()
    assert [worker.stop() for worker in (frozen, other)] == [0, 0]


def test_workers_go_on_after_a_failover(postgres: PostgresServer, crew: Crew) -> None:
    """The server comes back as a standby, which is read-only until it is promoted."""
    fleet = crew(
        broker=postgres.url,
        broker_transport_options={"socket_timeout": 5.0, "eviction_timeout": 20},
        task_acks_late=True,
    )
    workers = fleet.workers_up("w1", "w2", pool="threads", concurrency=2)
    send(fleet, 20)
    wait_until(lambda: fleet.ended() >= 4, 60)
    postgres.kill()
    postgres.stand_by()
    postgres.start()
    wait_until(lambda: all("it is a standby, or read-only" in worker.log for worker in workers), 60)
    with connect(postgres.url) as raw:
        raw.execute("SELECT pg_promote()")
    send(fleet, 20)
    check(fleet)
    fleet.wait_members("w1", "w2", timeout=60)
    assert [worker.stop() for worker in workers] == [0, 0]
