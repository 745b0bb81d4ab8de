"""Results, task events, inspection and handlers: what the rest of Celery gets to see of a keyed task."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from celery.result import ResultSet
from harness.kinds import SLOTS, KindsFleet

from celery_sticky import Sticky
from celery_sticky.testing.waiting import wait_until


@pytest.fixture(scope="module")
def workers(shared_kinds: Callable[..., KindsFleet]) -> Iterator[KindsFleet]:
    """One worker that sends events."""
    fleet = shared_kinds({"task_send_sent_event": True, "result_extended": True, "task_track_started": True})
    fleet.worker("w1", args=("-E",))
    yield fleet
    # Where only some of these tests run, the one that rejects may be left out.
    assert {info["reason"] for info in fleet.dead()} <= {"reject requeue=False: not wanted"}


@contextmanager
def captured(fleet: KindsFleet) -> Iterator[list[dict[str, Any]]]:
    """Collect the task events that are sent while the block is open."""
    events: list[dict[str, Any]] = []
    with fleet.app.connection_for_read() as connection:
        receiver = fleet.app.events.Receiver(connection, handlers={"*": events.append})
        ready, stop = threading.Event(), threading.Event()

        def listen() -> None:
            with receiver.consumer_context(wakeup=False) as (consuming, *_):
                while not stop.is_set():
                    with suppress(TimeoutError):
                        consuming.drain_events(timeout=0.1)
                    ready.set()  # only with the first look does Kombu subscribe

        thread = threading.Thread(target=listen)
        thread.start()
        assert ready.wait(10)
        try:
            yield events
        finally:
            stop.set()
            thread.join()


def kinds_of(events: list[dict[str, Any]], task_id: str) -> list[str]:
    return [event["type"] for event in events if event.get("uuid") == task_id]


# -- results ---------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_the_result_of_a_keyed_task_is_stored_with_all_that_celery_knows(workers: KindsFleet, key: str) -> None:
    result = workers.send(key, 7)
    assert result.get(timeout=30) == 7
    assert (result.state, result.name, result.args) == ("SUCCESS", "record", [key, 7, 0.0])
    assert result.queue == Sticky.of(workers.app).queue_for(key)
    assert result.worker == next(iter(workers.app.control.inspect(timeout=1).ping()))


def test_a_running_task_is_seen_as_started(workers: KindsFleet, key: str) -> None:
    result = workers.send(key, 1, 0.5)
    wait_until(lambda: result.state == "STARTED", 10)
    result.get(timeout=30)


def test_a_failure_is_stored_with_its_exception_and_frees_the_key(workers: KindsFleet, key: str) -> None:
    result, after = workers.call("fails", key, 1), workers.send(key, 2)
    with pytest.raises(ValueError, match=f"{key} 1"):
        result.get(timeout=30)
    assert result.state == "FAILURE" and "ValueError" in result.traceback
    after.get(timeout=30)


def test_the_results_of_many_keys_come_together(workers: KindsFleet, key: str) -> None:
    results = ResultSet([workers.send(f"{key}-{n % 7}", n) for n in range(30)])
    assert results.get(timeout=30) == list(range(30))


def test_no_result_is_stored_for_a_task_that_ignores_it(workers: KindsFleet, key: str) -> None:
    result = workers.call("quiet", key, 1)
    workers.send(key, 2).get(timeout=30)
    assert workers.runs(key) == [1, 2]
    assert result.state == "PENDING"
    assert workers.app.backend.get(workers.app.backend.get_key_for_task(result.id)) is None


def test_ignoring_in_the_task_settles_its_message(workers: KindsFleet, key: str) -> None:
    workers.call("ignores", key, 1)
    workers.send(key, 2).get(timeout=30)
    wait_until(lambda: workers.depth(key).in_flight == 0)
    assert workers.runs(key) == [1, 2]


def test_a_rejected_task_is_told_as_failed_and_is_in_the_dead_queue(workers: KindsFleet, key: str) -> None:
    result = workers.call("rejects", key, 1, 9, False)
    workers.send(key, 2).get(timeout=30)
    info = workers.wait_buried(result.id)
    assert (info["task"], info["key"], info["reason"]) == ("rejects", key, "reject requeue=False: not wanted")


# -- events ----------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_the_events_of_a_keyed_task_come_once_and_in_order(workers: KindsFleet, key: str) -> None:
    with captured(workers) as events:
        result = workers.send(key, 1)
        wait_until(lambda: {"task-sent", "task-succeeded"} <= set(kinds_of(events, result.id)), 10)
    assert sorted(kinds_of(events, result.id)) == ["task-received", "task-sent", "task-started", "task-succeeded"]
    told = {event["type"]: event for event in events if event.get("uuid") == result.id}
    assert told["task-received"]["name"] == "record" and key in told["task-received"]["args"]
    assert told["task-sent"]["queue"] == Sticky.of(workers.app).queue_for(key)
    assert told["task-succeeded"]["result"] == "1"


def test_a_waiting_task_is_received_only_when_its_key_is_free(workers: KindsFleet, key: str) -> None:
    with captured(workers) as events:
        first, second = workers.send(key, 1, 0.3), workers.send(key, 2)
        wait_until(lambda: "task-succeeded" in kinds_of(events, second.id), 10)
    order = [(event["uuid"], event["type"]) for event in events if event["type"].startswith("task-")]
    assert order.index((first.id, "task-succeeded")) < order.index((second.id, "task-started"))


def test_failure_retry_and_revoke_send_their_events(workers: KindsFleet, key: str) -> None:
    with captured(workers) as events:
        failed, retried = workers.call("fails", key, 1), workers.call("flaky", f"{key}-2", 1, 1)
        running = workers.send(f"{key}-3", 1, 60)
        workers.wait_started(f"{key}-3", 1)
        running.revoke(terminate=True)
        wait_until(lambda: "task-failed" in kinds_of(events, failed.id), 10)
        wait_until(lambda: {"task-retried", "task-succeeded"} <= set(kinds_of(events, retried.id)), 10)
        wait_until(lambda: "task-revoked" in kinds_of(events, running.id), 10)
    assert kinds_of(events, running.id).count("task-revoked") == 1


# -- inspection ------------------------------------------------------------------------------------


def test_inspect_shows_the_running_task_and_what_waits_behind_it(workers: KindsFleet, key: str) -> None:
    before = workers.ask("w1", "stats")["total"].get("record", 0)
    running = workers.send(key, 1, 3.0)
    waiting = [workers.send(key, n) for n in (2, 3)]
    workers.wait_started(key, 1)
    wait_until(lambda: workers.ask("w1", "sticky")["tasks"]["waiting"] == 2, 10)
    (active,) = workers.ask("w1", "active")
    assert (active["id"], active["name"]) == (running.id, "record")
    assert active["delivery_info"]["routing_key"] == Sticky.of(workers.app).queue_for(key)
    assert workers.ask("w1", "query_task", ids=[running.id])[running.id][0] == "active"
    wait_until(lambda: workers.ask("w1", "sticky")["tasks"]["running"] == 1, 10)
    described = workers.ask("w1", "sticky")
    assert described["keyspaces"]["default"]["slots"] == SLOTS
    assert described["keyspaces"]["default"]["running"] == 1
    for result in (running, *waiting):
        result.get(timeout=30)
    stats = workers.ask("w1", "stats")
    assert stats["total"]["record"] == before + 3
    assert stats["sticky"]["keyspaces"]["default"]["phase"] == "in"


def test_the_worker_does_not_consume_slot_queues_by_itself(workers: KindsFleet, key: str) -> None:
    workers.send(key, 1).get(timeout=30)
    assert [queue["name"] for queue in workers.ask("w1", "active_queues")] == ["celery"]


# -- handlers --------------------------------------------------------------------------------------


def test_the_handlers_of_a_base_class_and_of_a_request_class_are_called(workers: KindsFleet, key: str) -> None:
    good, bad = workers.call("own-base", key), workers.call("own-base", key, True)
    good.get(timeout=30)
    with pytest.raises(ValueError, match=key):
        bad.get(timeout=30)
    worker = workers.workers["w1"]
    for line in ("before_start", "on_success"):
        worker.wait_for_log(f"own {line} {good.id}")
    worker.wait_for_log(f"own on_failure {bad.id} ValueError")
    worker.wait_for_log(f"own request accepted {good.id}")
    worker.wait_for_log(f"own request failed {bad.id}")
    assert f"own request failed {good.id}" not in worker.log


def test_the_own_failure_handler_is_called_at_a_hard_time_limit(workers: KindsFleet, key: str) -> None:
    bad = workers.call("own-base", key, False, 60, time_limit=1)
    workers.workers["w1"].wait_for_log(f"own on_failure {bad.id} TimeLimitExceeded")
    workers.send(key, 2).get(timeout=30)
