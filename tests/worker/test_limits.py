"""What cuts a keyed task short or keeps it waiting: time limits, expiry, ETA, rate limits, revokes."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
import redis
from celery.exceptions import TaskRevokedError, TimeLimitExceeded
from harness.kinds import KindsFleet

from celery_sticky import Sticky
from celery_sticky.queues import Depth
from celery_sticky.testing.waiting import wait_until


@pytest.fixture(scope="module")
def workers(shared_kinds: Callable[..., KindsFleet]) -> Iterator[KindsFleet]:
    """One worker, in a pool of two processes."""
    fleet = shared_kinds()
    fleet.worker("w1")
    yield fleet
    assert fleet.dead() == []


def epoch_of(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def wait_settled(fleet: KindsFleet, key: str) -> None:
    """Wait until nothing stands in the slot of a key."""
    wait_until(lambda: totals(fleet.depth(key)) == (0, 0, 0), 20, f"its message is settled\n{fleet}")


def totals(depth: Depth) -> tuple[int, int | None, int | None]:
    return depth.waiting, depth.deferred, depth.in_flight


# -- time limits -----------------------------------------------------------------------------------


def test_a_soft_time_limit_is_raised_into_the_task_and_its_key_goes_on(workers: KindsFleet, key: str) -> None:
    result, after = workers.call("soft", key, 1), workers.send(key, 2)
    assert result.get(timeout=30) == "softly"
    after.get(timeout=30)
    assert workers.runs(key) == [1, 2]


def test_a_soft_time_limit_may_be_given_with_the_call(workers: KindsFleet, key: str) -> None:
    result = workers.call("record", key, 1, 60, soft_time_limit=1)
    with pytest.raises(Exception, match="SoftTimeLimitExceeded"):
        result.get(timeout=30)
    workers.send(key, 2).get(timeout=30)


@pytest.mark.smoke
def test_a_hard_time_limit_ends_a_task_for_good_and_frees_its_key(workers: KindsFleet, key: str) -> None:
    result, after = workers.call("record", key, 1, 60, time_limit=1), workers.send(key, 2)
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=30)
    after.get(timeout=30)
    assert workers.runs(key) == [1, 2]
    wait_settled(workers, key)


def test_the_next_task_of_a_key_waits_until_one_past_its_time_limit_is_dead(workers: KindsFleet, key: str) -> None:
    result, after = workers.call("stubborn", key, 1, 20.0, time_limit=1), workers.send(key, 2)
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=30)
    after.get(timeout=30)
    last_sign_of_life = int((workers.config.history.parent / f"{key}.alive").read_text())
    assert workers.runs(key) == [1, 2]
    assert workers.starts(key)[1].at > last_sign_of_life


# -- expiry ----------------------------------------------------------------------------------------


def test_a_task_that_expires_before_it_is_fetched_does_not_run(workers: KindsFleet, key: str) -> None:
    result = workers.call("record", key, 1, expires=datetime.now(UTC) - timedelta(seconds=1))
    with pytest.raises(TaskRevokedError, match="expired"):
        result.get(timeout=30)
    workers.send(key, 2).get(timeout=30)
    assert workers.runs(key) == [2]


def test_a_task_that_expires_while_it_waits_for_its_key_does_not_run(workers: KindsFleet, key: str) -> None:
    workers.send(key, 1, 1.5)
    expiring, last = workers.call("record", key, 2, expires=0.5), workers.send(key, 3)
    with pytest.raises(TaskRevokedError, match="expired"):
        expiring.get(timeout=30)
    last.get(timeout=30)
    assert workers.runs(key) == [1, 3]


# -- ETA -------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_an_eta_waits_in_the_broker_and_not_in_the_worker(workers: KindsFleet, key: str) -> None:
    result = workers.call("context", key, 1, countdown=3)
    queue = Sticky.of(workers.app).queue_for(key)
    with redis.Redis.from_url(workers.config.broker) as client:
        wait_until(lambda: client.zcard(f"{queue}:deferred") == 1, 2.5, "it stands among the deferred")
        assert client.hlen(f"{queue}:flight") == 0 == client.llen(queue)
    assert workers.ask("w1", "sticky")["tasks"] == {
        "running": 0,
        "runnable": 0,
        "waiting": 0,
        "limited": 0,
        "unconfirmed": 0,
        "keys": 0,
        "discarded": 0,
        "abandoned": 0,
    }
    assert workers.ask("w1", "scheduled") == []

    due = epoch_of(result.get(timeout=30)["eta"])
    assert time.time() >= due
    assert workers.runs(key) == [1]


def test_a_countdown_lets_others_of_its_key_pass_and_takes_its_place_when_due(workers: KindsFleet, key: str) -> None:
    late = workers.call("record", key, 1, countdown=1)
    first, busy = workers.send(key, 2), workers.send(key, 3, 1.5)
    last = workers.send(key, 4)
    for result in (first, busy, last, late):
        result.get(timeout=30)
    assert workers.runs(key) == [2, 3, 4, 1]


def test_an_eta_in_the_past_runs_at_once(workers: KindsFleet, key: str) -> None:
    workers.call("record", key, 1, eta=datetime.now(UTC) - timedelta(hours=1)).get(timeout=30)


def test_an_eta_that_no_worker_has_seen_survives_until_one_is_there(kinds: Callable[..., KindsFleet], key: str) -> None:
    fleet = kinds()
    fleet.worker("w1", pool="solo")
    result = fleet.call("context", key, 1, countdown=4)
    wait_until(lambda: fleet.depth(key).deferred == 1, 3, "deferred")
    fleet.workers["w1"].kill_all()
    fleet.worker("w2", pool="solo")
    due = epoch_of(result.get(timeout=30)["eta"])
    assert time.time() >= due
    assert fleet.runs(key) == [1]


# -- rate limits -----------------------------------------------------------------------------------


def test_a_rate_limit_holds_and_keeps_the_order_of_a_key(workers: KindsFleet, key: str) -> None:
    results = [workers.call("limited", key, n) for n in range(5)]
    other = workers.send(f"{key}-other", 1)
    other.get(timeout=30)
    assert len(workers.runs(key)) < 5, "a task without a limit is not held up"
    for result in results:
        result.get(timeout=30)
    assert workers.runs(key) == [0, 1, 2, 3, 4]
    starts = workers.starts(key)
    assert (starts[4].at - starts[0].at) / 1e9 >= 0.9, "five at 4/s take a second"


def test_a_rate_limit_counts_over_all_keys_of_a_worker(workers: KindsFleet, key: str) -> None:
    for result in [workers.call("limited", f"{key}-{n}", n) for n in range(5)]:
        result.get(timeout=30)
    starts = sorted(workers.starts(f"{key}-{n}")[0].at for n in range(5))
    assert (starts[4] - starts[0]) / 1e9 >= 0.9


# -- revokes ---------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_a_running_task_that_is_terminated_does_not_come_again_and_frees_its_key(workers: KindsFleet, key: str) -> None:
    result, after = workers.send(key, 1, 60), workers.send(key, 2)
    workers.wait_started(key, 1)
    result.revoke(terminate=True)
    with pytest.raises(TaskRevokedError):
        result.get(timeout=30)
    after.get(timeout=30)
    assert workers.runs(key) == [1, 2]
    wait_settled(workers, key)


def test_a_running_task_may_be_terminated_with_sigkill(workers: KindsFleet, key: str) -> None:
    result, after = workers.send(key, 1, 60), workers.send(key, 2)
    workers.wait_started(key, 1)
    result.revoke(terminate=True, signal="SIGKILL")
    after.get(timeout=30)
    assert workers.runs(key) == [1, 2]
    wait_until(lambda: result.state == "REVOKED", 30, "a result is written in a thread of its own")


def test_a_terminated_task_that_takes_no_notice_keeps_its_key_until_it_ends(workers: KindsFleet, key: str) -> None:
    result, after = workers.call("stubborn", key, 1, 1.5), workers.send(key, 2)
    workers.wait_started(key, 1)
    result.revoke(terminate=True)
    after.get(timeout=30)
    assert workers.runs(key) == [1, 2]
    assert workers.starts(key)[1].at > int((workers.config.history.parent / f"{key}.alive").read_text())


def test_a_running_task_that_is_only_revoked_runs_to_its_end(workers: KindsFleet, key: str) -> None:
    result = workers.send(key, 1, 1.0)
    workers.wait_started(key, 1)
    result.revoke()
    assert result.get(timeout=30) == 1


def test_a_waiting_task_that_is_revoked_does_not_run(workers: KindsFleet, key: str) -> None:
    workers.send(key, 1, 1.0)
    workers.wait_started(key, 1)
    result, after = workers.send(key, 2), workers.send(key, 3)
    result.revoke()
    after.get(timeout=30)
    assert workers.runs(key) == [1, 3]
    with pytest.raises(TaskRevokedError):
        result.get(timeout=30)


def test_a_task_that_waits_for_its_time_can_be_revoked(workers: KindsFleet, key: str) -> None:
    result = workers.call("record", key, 1, countdown=2)
    wait_until(lambda: workers.depth(key).deferred == 1, 2, "deferred")
    result.revoke()
    wait_settled(workers, key)
    assert workers.runs(key) == []
    wait_until(lambda: result.state == "REVOKED", 30, "a result is written in a thread of its own")


def test_a_task_revoked_before_it_was_fetched_does_not_run(workers: KindsFleet, key: str) -> None:
    task_id = f"revoked-early-{key}"
    workers.ask("w1", "revoke", task_id=task_id)
    workers.call("record", key, 1, task_id=task_id)
    workers.send(key, 2).get(timeout=30)
    assert workers.runs(key) == [2]


def test_a_task_can_be_revoked_by_its_stamp(workers: KindsFleet, key: str) -> None:
    workers.send(key, 1, 3.0)
    workers.wait_started(key, 1)
    signature = workers.app.tasks["record"].s(key, 2)
    signature.stamp(batch=key)
    result, after = signature.apply_async(), workers.send(key, 3)
    workers.app.control.revoke_by_stamped_headers({"batch": [key]}, reply=True)
    after.get(timeout=30)
    assert workers.runs(key) == [1, 3]
    wait_until(lambda: result.state == "REVOKED", 30, "a result is written in a thread of its own")


def test_a_worker_that_joins_later_knows_what_was_revoked(kinds: Callable[..., KindsFleet], key: str) -> None:
    fleet = kinds()
    first = fleet.worker("w1", pool="solo")
    result = fleet.call("record", key, 1, countdown=5)
    wait_until(lambda: fleet.depth(key).deferred == 1, 5, "deferred")
    result.revoke()
    with redis.Redis.from_url(fleet.config.broker) as client:
        wait_until(lambda: client.exists("sticky:revoked"), 5, "the store knows")
    assert first.stop() == 0
    assert fleet.depth(key).deferred == 1
    fleet.worker("w2", pool="solo")
    wait_settled(fleet, key)
    assert fleet.runs(key) == []
    wait_until(lambda: result.state == "REVOKED", 30, "a result is written in a thread of its own")


def test_another_worker_gets_the_slot_of_a_task_past_its_time_limit_only_when_that_is_dead(
    kinds: Callable[..., KindsFleet], key: str
) -> None:
    fleet = kinds()
    first = fleet.worker("w1")
    fleet.call("stubborn", key, 1, 20.0, time_limit=3)
    fleet.wait_started(key, 1)
    after = fleet.send(key, 2)
    fleet.worker("w2", ready=False)
    first.kill(signal.SIGTERM)  # its slots go to the other as soon as nothing of them runs
    after.get(timeout=30)
    start = fleet.starts(key)[1]
    assert start.worker.startswith("w2@")
    assert start.at > int((fleet.config.history.parent / f"{key}.alive").read_text())
