"""A SQL database is the broker of real workers: keyed tasks, ordinary ones, remote control, and a worker's death."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from celery import Celery
from harness.callers import caller
from harness.jobs_fleet import JobsFleet
from harness.keyed_fleet import KeyedFleet, node
from harness.placed_fleet import PlacedFleet
from harness.sql_servers import connect as raw_connection

from celery_sticky import Sticky
from celery_sticky.testing.judge import judge
from celery_sticky.testing.waiting import wait_until

Crew = Callable[..., KeyedFleet]
KEYS, EACH = 5, 10


@pytest.mark.parametrize("pool", ["threads", "solo", "prefork", "gevent", "eventlet"])
@pytest.mark.parametrize("sql_url", ["sqlite", "postgresql"], indirect=True)
def test_keyed_tasks_run_in_order_one_at_a_time_beside_ordinary_ones(
    on_database: dict[str, Any], crew: Crew, pool: str
) -> None:
    fleet = crew(**on_database)
    fleet.worker("w1", pool=pool, concurrency=4)
    for n in range(EACH):
        for key in range(KEYS):
            fleet.publish(f"k{key}")
        fleet.send_plain(n)
    fleet.wait_finished(90)
    judgement = judge([event for event in fleet.events() if event.key != "plain"], fleet.deaths)
    assert judgement.ok and judgement.duplicates == (), judgement.describe()
    assert judgement.runs == KEYS * EACH
    assert fleet.workers["w1"].stop() == 0


@pytest.mark.parametrize(
    ("sql_url", "pool"),
    [("sqlite", "threads"), ("sqlite", "prefork"), ("postgresql", "threads"), ("postgresql", "solo")],
    indirect=["sql_url"],
)
def test_nothing_is_lost_and_no_key_overlaps_when_one_of_two_workers_is_killed(
    on_database: dict[str, Any], crew: Crew, pool: str
) -> None:
    fleet = crew(**on_database, task_acks_late=True, task_reject_on_worker_lost=True)
    fleet.workers_up("w1", "w2", pool=pool, concurrency=2)
    fleet.publish_many(60, 10, 0.1)
    for n in range(20):
        fleet.send_plain(n, 0.1)
    wait_until(lambda: {e.worker for e in fleet.events() if e.run} >= {node("w1"), node("w2")}, 60)
    fleet.workers["w1"].kill_all()
    fleet.wait_finished(120)
    judgement = judge([event for event in fleet.events() if event.key != "plain"], fleet.deaths)
    assert judgement.ok, judgement.describe()
    assert fleet.workers["w2"].stop() == 0


@pytest.mark.parametrize("sql_url", ["sqlite", "postgresql", "mariadb"], indirect=True)
def test_jobs_run_get_their_notifications_and_move_when_their_worker_is_killed(
    on_database: dict[str, Any], jobs_fleet: Callable[..., JobsFleet]
) -> None:
    fleet = jobs_fleet(**on_database)
    fleet.workers_up("a", "b")
    keys = [f"t{n}" for n in range(8)]
    for key in keys:
        fleet.jobs.dispatch("sync", key, timeout=20)
    assert len({info.worker for info in fleet.wait_running(keys).values()}) == 2
    for key in keys:
        fleet.jobs.notify("sync", key, 1)
    wait_until(lambda: all(fleet.notes(key) == [1] for key in keys), 30, "each has its notification")
    fleet.workers["a"].kill_all()
    fleet.wait_running(keys, "b", timeout=60)
    fleet.jobs.shutdown(timeout=30)
    assert fleet.infos() == {} and fleet.overlaps() == []
    assert fleet.workers["b"].stop() == 0


def test_a_pinned_key_runs_where_it_is_pinned(placed: Callable[..., PlacedFleet], tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    fleet = placed("pinned", broker=f"sticky+sqlite:///{tmp_path}/shop.db", backend=f"file://{results}")
    fleet.up("a", "b", pool="threads")
    for i in range(6):
        fleet.on("ab"[i % 2], "pin", f"k{i}", "pinned")
    for i in range(18):
        fleet.call(f"k{i % 6}")
    fleet.wait_finished()
    assert [fleet.ran(f"k{i}") for i in range(6)] == [["ab"[i % 2]] * 3 for i in range(6)]
    assert fleet.judge().ok, fleet.judge().describe()


@pytest.mark.parametrize("sql_url", ["sqlite", "postgresql", "mariadb"], indirect=True)
def test_remote_control_reaches_workers_and_revokes_tasks(on_database: dict[str, Any], crew: Crew) -> None:
    fleet = crew(**on_database)
    fleet.workers_up("w1", "w2", pool="threads", concurrency=2)
    control = fleet.app.control
    wait_until(lambda: set(control.inspect(timeout=3).ping() or ()) == {node("w1"), node("w2")}, 60)
    result = fleet.app.tasks["plain"].apply_async((1,), eta=datetime.now(UTC) + timedelta(seconds=5))
    control.revoke(result.id)

    def known() -> bool:
        told = control.inspect(timeout=3).revoked() or {}
        return len(told) == 2 and all(result.id in ids for ids in told.values())

    wait_until(known, 60)
    fleet.send_plain(2)
    fleet.wait_finished(60)
    wait_until(lambda: any("Discarding revoked task" in worker.log for worker in fleet.workers.values()), 60)
    assert [event.n for event in fleet.events() if event.run and event.key == "plain"] == [2, 2], "start and end of 2"


@pytest.mark.parametrize("sql_url", ["sqlite", "postgresql"], indirect=True)
def test_a_worker_runs_what_a_committed_transaction_has_sent(
    on_database: dict[str, Any], crew: Crew, sql_url: str
) -> None:
    fleet = crew(**on_database)
    fleet.workers_up("w1", pool="threads", concurrency=2)
    outbox = Sticky.of(fleet.app).outbox
    with closing(caller("session", sql_url)) as one:
        with outbox(one.given):
            fleet.app.tasks["plain"].delay(100)
        one.rollback()
        with outbox(one.given):
            for n in range(5):
                fleet.publish("k")
                fleet.send_plain(n)
        one.commit()
    fleet.wait_finished(60)
    judgement = judge([event for event in fleet.events() if event.key == "k"], fleet.deaths)
    assert judgement.ok and judgement.runs == 5, judgement.describe()
    assert {event.n for event in fleet.events() if event.run and event.key == "plain"} == set(range(5))


@pytest.mark.parametrize("sql_url", ["postgresql"], indirect=True)
def test_stats_show_no_password_and_the_heartbeats_of_a_worker_are_heard(
    on_database: dict[str, Any], crew: Crew
) -> None:
    parts = urlsplit(on_database["broker"])
    user, at, place = parts.netloc.rpartition("@")
    with_password = parts._replace(netloc=f"{user}:s3cret{at}{place}").geturl()
    fleet, heard = crew(**{**on_database, "broker": with_password}), list[str]()

    def told(event: dict[str, Any]) -> None:
        heard.append(event["type"])
        receiver.should_stop = True

    with fleet.app.connection_for_read() as connection:
        receiver = fleet.app.events.Receiver(connection, handlers={"worker-heartbeat": told})
        worker = fleet.worker("w1", pool="threads", concurrency=1)
        receiver.capture(limit=None, timeout=60, wakeup=False)
    assert heard == ["worker-heartbeat"]
    stats = fleet.app.control.inspect(timeout=3).stats()
    assert stats[node("w1")]["broker"]["hostname"].startswith("sticky+postgresql://")
    assert "s3cret" not in repr(stats) and "s3cret" not in worker.log


@pytest.mark.parametrize("sql_url", ["sqlite", "postgresql", "mariadb"], indirect=True)
def test_a_stopped_worker_gives_back_what_it_has_not_started(on_database: dict[str, Any], crew: Crew) -> None:
    fleet = crew(**on_database, worker_prefetch_multiplier=10)
    worker = fleet.worker("w1", pool="threads", concurrency=1)
    for n in range(5):
        fleet.send_plain(n, 0.5)
    fleet.wait_started("plain", 0)
    assert worker.stop() == 0
    first = {event.n for event in fleet.events() if event.run and event.key == "plain"}
    assert first < set(range(5)), "the rest was prefetched, not run"
    fleet.worker("w2", pool="threads", concurrency=1)
    fleet.wait_finished(60)
    assert fleet.judge().duplicates == ()


@pytest.mark.parametrize(
    ("pool", "args", "most"),
    [("threads", (), 5), ("prefork", ("--without-heartbeat",), 4), ("gevent", ("--without-heartbeat",), 5)],
)
@pytest.mark.parametrize("sql_url", ["postgresql"], indirect=True)
def test_an_idle_worker_has_few_connections(
    on_database: dict[str, Any], crew: Crew, sql_url: str, pool: str, args: Sequence[str], most: int
) -> None:
    """One of five sends the events of Celery's own heartbeat."""
    fleet = crew(**on_database)
    fleet.worker("w1", pool=pool, args=args, concurrency=2, env={"PGAPPNAME": f"idle-{pool}"})
    for n in range(4):
        fleet.publish(f"k{n}")
        fleet.send_plain(n)
    fleet.wait_finished(90)
    try:
        wait_until(lambda: len(connections(sql_url, f"idle-{pool}")) == most, 30)
    except AssertionError:
        pytest.fail("\n".join(connections(sql_url, f"idle-{pool}")))
    assert fleet.workers["w1"].stop() == 0
    wait_until(lambda: connections(sql_url, f"idle-{pool}") == [], 20, "all are closed")


@pytest.mark.parametrize("sql_url", ["postgresql"], indirect=True)
def test_a_process_sends_over_two_connections_however_many_threads_send(
    on_database: dict[str, Any], sql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGAPPNAME", "sender")
    app = Celery("sender", set_as_current=False, **on_database)
    Sticky(app)

    @app.task(key="name", shared=False)
    def keyed(name: str) -> None: ...

    @app.task(shared=False)
    def plain() -> None: ...

    def send(thread: int) -> int:
        for _ in range(10):
            keyed.delay(f"k{thread}")
            plain.delay()
        return len(connections(sql_url, "sender"))

    with ThreadPoolExecutor(8) as threads:
        assert 1 <= max(threads.map(send, range(8))) <= 2
    app.pool.force_close_all()
    wait_until(lambda: connections(sql_url, "sender") == [], 20, "they are closed with the last of the pool")


def connections(url: str, name: str) -> list[str]:
    """Return the last statement of each connection to a database with an application name."""
    with raw_connection(f"{url}?application_name=observer") as raw:
        found = raw.execute("SELECT query FROM pg_stat_activity WHERE application_name = %s", [name])
        return [row[0] for row in found.fetchall()]
