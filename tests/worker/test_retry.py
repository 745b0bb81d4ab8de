"""Retries of keyed tasks, by real workers: one message, that of the next try in the place of this one."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
import redis
from celery import Celery, chain, chord, group
from celery.result import AsyncResult
from harness.app import AppConfig
from harness.fleet import Fleet
from harness.standing import clear

from celery_sticky import Sticky
from celery_sticky.drivers import open_queues
from celery_sticky.message import STAMP_HEADER
from celery_sticky.queues import Depth
from celery_sticky.testing.guard import Guard
from celery_sticky.testing.history import Kind
from celery_sticky.testing.waiting import wait_until

FEW_SLOTS = {"sticky_slots": 8, "sticky_settle": 0.2, "sticky_lease_ttl": 2.0, "sticky_lease_margin": 0.5}
LONG = {"countdown": 600}


@pytest.fixture(scope="module", params=["prefork", "threads", "solo", "gevent"])
def workers(
    request: pytest.FixtureRequest, guard: Guard, redis_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """A fleet of one worker that runs two tasks at a time, for all tests of this file: each has keys of its own."""
    clear(redis_database)
    directory = tmp_path_factory.mktemp("retry")
    conf = {**FEW_SLOTS, "task_send_sent_event": True}
    config = AppConfig(redis_database, directory / "history.jsonl", redis_database, conf)
    fleet = Fleet(guard, directory, config)
    fleet.worker(pool=request.param)
    yield fleet
    fleet.teardown()
    clear(redis_database)


@pytest.fixture
def key() -> str:
    return uuid.uuid4().hex[:8]


def send(fleet: Fleet, name: str, *args: Any, **options: Any) -> AsyncResult:
    return fleet.app.tasks[name].apply_async(args, **options)


def runs(fleet: Fleet, key: str) -> list[int]:
    """Return the numbers of the tasks of a key in the order in which they started."""
    return [event.n for event in fleet.events() if event.kind is Kind.START and event.key == key]


def depth_of(app: Celery, key: str) -> Depth:
    """Return how much stands in the slot of a key."""
    queues = open_queues(app.connection_for_read(), prefix="sticky", socket_timeout=5.0)
    try:
        slot = Sticky.of(app).slot_for(key)
        return queues.depths([("default", slot)])["default", slot]
    finally:
        queues.close()


def deliveries(fleet: Fleet, key: str) -> int:
    """Return how many messages were ever fetched from the slot of a key: the driver numbers them."""
    with redis.Redis.from_url(fleet.config.broker) as client:
        return int(client.hget(f"{Sticky.of(fleet.app).queue_for(key)}:fence", "seq") or 0)


def lonely_key(app: Celery) -> str:
    """Return a key in a slot that holds nothing."""
    return next(key for n in range(100) if not any(totals(depth_of(app, key := f"{uuid.uuid4().hex[:8]}-{n}"))))


def totals(depth: Depth) -> tuple[int, int | None, int | None]:
    return depth.waiting, depth.deferred, depth.in_flight


# -- waiting and order -----------------------------------------------------------------------------


def test_a_retry_waits_its_time_while_other_tasks_of_its_key_run(workers: Fleet, key: str) -> None:
    first = send(workers, "flaky", key, 1, 1, {"countdown": 1.5})
    others = [send(workers, "record", key, n) for n in (2, 3)]
    told = first.get(timeout=30)
    for other in others:
        other.get(timeout=30)

    assert runs(workers, key) == [1, 2, 3, 1]
    starts = [event.at for event in workers.events() if event.kind is Kind.START and (event.key, event.n) == (key, 1)]
    assert (starts[1] - starts[0]) / 1e9 >= 1.45
    assert told["retries"] == 1
    assert datetime.fromisoformat(told["eta"]).timestamp() <= time.time()


def test_a_retry_without_countdown_takes_its_place_behind_what_waits(workers: Fleet, key: str) -> None:
    results = [send(workers, "record", key, 0, 1.0), send(workers, "flaky", key, 1), send(workers, "record", key, 2)]
    for result in results:
        result.get(timeout=30)
    assert runs(workers, key) == [0, 1, 2, 1]
    assert workers.judge().overlaps == ()


def test_every_retry_counts(workers: Fleet, key: str) -> None:
    assert send(workers, "flaky", key, 1, 3).get(timeout=30)["retries"] == 3
    assert runs(workers, key) == [1, 1, 1, 1]


def test_exactly_one_message_waits_for_a_retry_and_its_result_says_so(workers: Fleet) -> None:
    key = lonely_key(workers.app)
    before = deliveries(workers, key)
    result = send(workers, "flaky", key, 1, 1, LONG, priority=6)
    wait_until(lambda: result.state == "RETRY", timeout=30)
    wait_until(lambda: totals(depth_of(workers.app, key)) == (0, 1, 0), message="one deferred message")
    assert runs(workers, key) == [1]
    assert deliveries(workers, key) == before + 1, "the next try has passed through the queue"


def test_a_retry_keeps_its_priority(workers: Fleet, key: str) -> None:
    assert send(workers, "flaky", key, 1, priority=6).get(timeout=30)["priority"] == 6


def test_a_retry_does_not_count_as_a_start_that_came_to_no_end(workers: Fleet, key: str) -> None:
    assert send(workers, "flaky", key, 1, 3).get(timeout=30)["attempt"] == 1


# -- all the ways to retry -------------------------------------------------------------------------


def test_an_automatic_retry_waits_as_its_backoff_says(workers: Fleet, key: str) -> None:
    assert send(workers, "auto", key, 1).get(timeout=30)["retries"] == 1
    starts = [event.at for event in workers.events() if event.kind is Kind.START and event.key == key]
    assert (starts[1] - starts[0]) / 1e9 >= 0.95


def test_after_its_last_retry_a_task_fails_with_its_own_exception(workers: Fleet, key: str) -> None:
    result = send(workers, "auto", key, 1, 9)
    with pytest.raises(LookupError, match=f"{key} 1"):
        result.get(timeout=30)
    assert result.state == "FAILURE"
    assert runs(workers, key) == [1, 1]


def test_a_retry_may_have_other_arguments(workers: Fleet, key: str) -> None:
    result = send(workers, "flaky", key, 1, 1, {"args": [key, 2]})
    assert result.get(timeout=30)["retries"] == 1
    assert runs(workers, key) == [1, 2]


@pytest.mark.parametrize("name", ["OwnRetry", "Silent", "BrokenHook"])
def test_a_class_may_have_a_retry_of_its_own(workers: Fleet, key: str, name: str) -> None:
    sent = send(workers, name, key, 1)
    wait_until(lambda: workers.app.AsyncResult(sent.id).state == "SUCCESS", timeout=30)
    assert workers.app.AsyncResult(sent.id).result["retries"] == 1
    assert runs(workers, key) == [1, 1]


def test_headers_and_stamps_come_along(workers: Fleet, key: str) -> None:
    signature = workers.app.tasks["flaky"].s(key, 1)
    signature.stamp(color="red")
    told = signature.apply_async(headers={"trace": "abc"}).get(timeout=30)
    assert told["retries"] == 1
    assert told["headers"]["trace"] == "abc"
    assert STAMP_HEADER not in told["headers"]
    assert "red" in str(told["stamps"]["color"])


@pytest.mark.parametrize("how", ["caught", "unthrown", "fails"])
def test_a_retry_that_the_task_does_not_raise_is_published(workers: Fleet, key: str, how: str) -> None:
    send(workers, "swallow", key, 1, how)
    wait_until(lambda: runs(workers, key) == [1, 1], timeout=30)


def test_a_retry_is_not_published_besides_a_message_that_gets_another_turn(workers: Fleet) -> None:
    key = lonely_key(workers.app)
    send(workers, "swallow", key, 1, "rejected")
    wait_until(lambda: len(runs(workers, key)) > 1, timeout=30)
    wait_until(lambda: totals(depth_of(workers.app, key)) == (0, 0, 0), message="its slot is empty")
    assert runs(workers, key) == [1, 1]


def test_a_retry_with_another_key_goes_to_the_slot_of_that_key(workers: Fleet) -> None:
    sticky = Sticky.of(workers.app)
    here = lonely_key(workers.app)
    there = next(f"there{n}" for n in range(100) if sticky.slot_for(f"there{n}") != sticky.slot_for(here))
    assert send(workers, "flaky", here, 1, 1, {"args": [there, 2]}).get(timeout=30)["retries"] == 1
    assert (runs(workers, here), runs(workers, there)) == ([1], [2])
    wait_until(lambda: totals(depth_of(workers.app, here)) == (0, 0, 0))


def test_a_task_without_a_key_retries_as_ever(workers: Fleet, key: str) -> None:
    assert send(workers, "flaky-plain", key, 1).get(timeout=30)["retries"] == 1


def test_a_task_without_a_key_retries_under_the_key_of_its_message(workers: Fleet) -> None:
    key = lonely_key(workers.app)
    told = send(workers, "flaky-plain", key, 1, headers={"sticky-key": key}).get(timeout=30)
    assert (told["retries"], told["attempt"]) == (1, 1)
    wait_until(lambda: totals(depth_of(workers.app, key)) == (0, 0, 0), message="its slot is empty")
    assert runs(workers, key) == [1, 1]


# -- canvas ----------------------------------------------------------------------------------------


def test_a_chain_goes_on_after_a_retry(workers: Fleet, key: str) -> None:
    tasks = workers.app.tasks
    told = chain(tasks["flaky"].s(key, 1), tasks["collect"].s()).apply_async().get(timeout=30)
    assert told["retries"] == 1


def test_a_chord_waits_for_its_retries_and_counts_each_task_once(workers: Fleet, key: str) -> None:
    tasks = workers.app.tasks
    header = group(tasks["flaky"].s(f"{key}{n}", n, n % 3) for n in range(6))
    told = chord(header, tasks["collect"].s()).apply_async().get(timeout=30)
    assert [one["retries"] for one in told] == [0, 1, 2, 0, 1, 2]


def test_a_link_is_called_once_the_last_try_succeeds(workers: Fleet, key: str) -> None:
    tasks = workers.app.tasks
    link = tasks["record"].si(f"{key}-link", 9)
    tasks["flaky"].apply_async((key, 1, 2), link=link).get(timeout=30)
    wait_until(lambda: runs(workers, f"{key}-link") == [9], timeout=30)
