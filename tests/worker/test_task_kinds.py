"""Every way to write and to send a keyed task, and every way in which its message can come to an end."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from harness.kinds import SLOTS, KindsFleet

from celery_sticky import slot_for
from celery_sticky.keys import queue_name
from celery_sticky.message import STAMP_HEADER, Stamp
from celery_sticky.testing.waiting import wait_until
from celery_sticky.testing.worker import WorkerProcess

TOO_DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.fixture(scope="module")
def workers(shared_kinds: Callable[..., KindsFleet]) -> KindsFleet:
    """One worker in both keyspaces; it gives up on a task after three starts."""
    fleet = shared_kinds({"sticky_max_attempts": 3, "worker_lost_wait": 0.2})
    fleet.worker("w1")
    return fleet


@pytest.fixture
def stranger(workers: KindsFleet) -> Iterator[Celery]:
    """An app that knows neither celery-sticky nor the tasks."""
    with Celery("stranger", broker=workers.config.broker, set_as_current=False) as app:
        yield app


def put(app: Celery, slot: int, task: str, args: Any, task_id: str, headers: dict[str, Any] | None = None) -> None:
    """Put a message into a slot queue by hand."""
    message = app.amqp.as_task_v2(task_id, task, args, {})
    with app.producer_or_acquire() as producer:
        producer.publish(
            message.body,
            exchange="",
            routing_key=queue_name("default", slot),
            serializer="json",
            declare=[],
            headers={**message.headers, **(headers or {})},
            **message.properties,
        )


# -- what a task sees ------------------------------------------------------------------------------


@pytest.mark.smoke
def test_a_task_sees_its_key_slot_epoch_attempt_and_worker(workers: KindsFleet, key: str) -> None:
    sticky = workers.call("context", key).get(timeout=30)["sticky"]
    assert sticky["key"] == key and sticky["keyspace"] == "default"
    assert sticky["slot"] == slot_for(key, SLOTS)
    assert sticky["attempt"] == 1
    assert sticky["worker"] == next(iter(workers.app.control.inspect(timeout=1).ping()))
    with_epoch = workers.starts(key)[0]
    assert with_epoch.epoch == sticky["epoch"] >= 1


def test_an_unkeyed_task_sees_no_key(workers: KindsFleet) -> None:
    assert workers.call("no-key", 1).get(timeout=30)["sticky"] is None


def test_a_task_run_in_place_sees_no_key(workers: KindsFleet, key: str) -> None:
    told = workers.app.tasks["context"].apply((key,)).get()
    assert told["sticky"] is None


def test_the_key_is_found_however_it_is_passed(workers: KindsFleet, key: str) -> None:
    context = workers.app.tasks["context"]
    results = [context.delay(key), context.delay(key=key), context.delay()]
    assert [r.get(timeout=30)["sticky"]["key"] for r in results] == [key, key, "by-default"]


# -- ways to write a task --------------------------------------------------------------------------


def test_a_class_based_task_works(workers: KindsFleet, key: str) -> None:
    assert workers.app.tasks["by-class"].delay(key, n=2).get(timeout=30)["sticky"]["key"] == key


def test_a_shared_task_works(workers: KindsFleet, key: str) -> None:
    task_id = workers.call("relay", "shared", [key]).get(timeout=30)
    assert workers.app.AsyncResult(task_id).get(timeout=30)["sticky"]["key"] == key


def test_a_task_with_a_base_class_and_a_request_class_of_its_own_works(workers: KindsFleet, key: str) -> None:
    result = workers.call("own-base", key)
    assert result.get(timeout=30)["sticky"]["slot"] == slot_for(key, SLOTS)
    workers.workers["w1"].wait_for_log(f"own request accepted {result.id}")


def test_a_key_function_takes_the_key_from_the_arguments_into_another_keyspace(workers: KindsFleet, key: str) -> None:
    sticky = workers.call("order", {"customer": key}).get(timeout=30)["sticky"]
    assert (sticky["key"], sticky["keyspace"]) == (key, "orders")


def test_an_affine_task_runs_beside_others_of_its_key_and_each_message_once(workers: KindsFleet, key: str) -> None:
    results = [workers.call("affine", key, n, 0.7) for n in range(4)]
    for result in results:
        result.get(timeout=30)
    starts, ends = workers.starts(key), workers.ends(key)
    assert sorted(event.n for event in starts) == [0, 1, 2, 3]
    assert starts[1].at < ends[0].at, "two of them ran at the same time"
    assert len({(event.slot, event.worker) for event in starts}) == 1


# -- ways to send ----------------------------------------------------------------------------------


@pytest.mark.smoke
def test_a_process_without_the_code_sends_with_an_explicit_key(workers: KindsFleet, key: str) -> None:
    code = (
        "import sys; from celery import Celery; from celery_sticky import Sticky\n"
        "app = Celery(broker=sys.argv[1], backend=sys.argv[1]); app.conf.sticky_slots = int(sys.argv[2]); Sticky(app)\n"
        "r = app.send_task('no-key', (1,), headers={'sticky-key': sys.argv[3]})\n"
        "s = app.send_task('order', ({'customer': 'nobody'},), headers={'sticky-key': sys.argv[3], "
        "'sticky-keyspace': 'orders'})\n"
        "print(r.get(timeout=30)['sticky']['key'], s.get(timeout=30)['sticky'])"
    )
    command = [sys.executable, "-c", code, workers.config.broker, str(SLOTS), key]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{key} ") and "'keyspace': 'orders'" in done.stdout


def test_an_explicit_key_goes_before_that_of_the_arguments(workers: KindsFleet, key: str) -> None:
    result = workers.call("context", "other", headers={"sticky-key": key})
    assert result.get(timeout=30)["sticky"]["key"] == key


def test_tasks_without_a_key_of_their_own_are_serial_under_an_explicit_one(workers: KindsFleet, key: str) -> None:
    plain = workers.app.tasks["plain"]
    results = [plain.apply_async((n, 0.1), headers={"sticky-key": key}) for n in (9001, 9002, 9003)]
    for result in results:
        result.get(timeout=30)
    spans = {e.n: e.at for e in workers.starts("plain")}, {e.n: e.at for e in workers.ends("plain")}
    assert spans[1][9001] < spans[0][9002] and spans[1][9002] < spans[0][9003]
    wait_until(lambda: workers.depth(key).in_flight == 0, message="they are settled after they ran")


def test_a_foreign_producer_without_stamps_uses_the_right_queue(
    workers: KindsFleet, stranger: Celery, key: str
) -> None:
    put(stranger, slot_for(key, SLOTS), "context", [key], f"foreign-{key}")
    assert workers.app.AsyncResult(f"foreign-{key}").get(timeout=30)["sticky"]["key"] == key


def test_beat_sends_keyed_tasks(kinds: Callable[..., KindsFleet], key: str) -> None:
    fleet = kinds({"beat_schedule": {"often": {"task": "record", "schedule": 0.5, "args": [key, 1]}}})
    schedule = fleet.config.history.parent / "schedule"
    fleet.worker("w1", pool="solo", args=("--beat", "--schedule", str(schedule)))
    wait_until(lambda: len(fleet.runs(key)) >= 3, 20, f"it ran three times {fleet}")
    assert {event.slot for event in fleet.starts(key)} == {slot_for(key, SLOTS)}


# -- messages that cannot run ----------------------------------------------------------------------


@pytest.mark.smoke
def test_a_task_that_the_worker_does_not_know_is_buried(workers: KindsFleet, key: str) -> None:
    result = workers.app.send_task("no-such-task", (1,), headers={"sticky-key": key})
    info = workers.wait_buried(result.id)
    assert "no task 'no-such-task'" in info["reason"] and info["key"] == key
    workers.send(key, 2).get(timeout=30)


def test_a_message_in_the_wrong_slot_is_buried(workers: KindsFleet, stranger: Celery, key: str) -> None:
    wrong = (slot_for(key, SLOTS) + 1) % SLOTS
    put(stranger, wrong, "record", [key, 1], f"unstamped-{key}")
    right = slot_for(key, SLOTS)
    stamp = Stamp(key, "default", right, SLOTS, time.time()).to_header()
    put(stranger, wrong, "record", [key, 1], f"stamped-{key}", {STAMP_HEADER: stamp})
    for task_id in (f"unstamped-{key}", f"stamped-{key}"):
        assert "is in keyspace 'default', slot" in workers.wait_buried(task_id)["reason"]
    assert workers.runs(key) == []


def test_a_message_that_is_garbage_is_buried_and_its_slot_goes_on(workers: KindsFleet, key: str) -> None:
    before = len(workers.dead())
    garbage = ["not json", "[]", '{"headers": 1}', '{"body": "x"}', '{"body": "%%%", "headers": {"task": "record"}}']
    garbage += ['{"body": 1, "properties": {}}', '{"properties": ' + TOO_DEEP.decode() + "}"]
    with workers.app.connection_for_write() as connection:
        for text in garbage:
            connection.default_channel.client.lpush(queue_name("default", slot_for(key, SLOTS)), text)
    wait_until(lambda: len(workers.dead()) == before + len(garbage), 30, "all are buried")
    assert all(info["reason"] for info in workers.dead())
    workers.send(key, 1).get(timeout=30)


@pytest.mark.parametrize("wrong", ["content type", "body", "arguments", "stamp", "depth"])
def test_a_task_that_cannot_be_decoded_is_buried(workers: KindsFleet, stranger: Celery, key: str, wrong: str) -> None:
    slot, task_id = slot_for(key, SLOTS), f"undecodable-{key}"
    stamp = Stamp(key, "default", slot, SLOTS, time.time()).to_header()
    headers = {**stranger.amqp.as_task_v2(task_id, "record", [key, 1], {}).headers, STAMP_HEADER: stamp}
    body: Any = b'[["k", 1], {}, {}]'
    content = "application/json"
    if wrong == "content type":
        content = "application/x-python-serialize"
    elif wrong == "body":
        body = b"{{{"
    elif wrong == "arguments":
        body = b'[{"no": "list"}, 3, null]'
    elif wrong == "depth":
        body = b"[[%b], {}, {}]" % TOO_DEEP
    else:
        headers[STAMP_HEADER] = {"v": 99}
    with stranger.producer_or_acquire() as producer:
        producer.publish(
            body,
            exchange="",
            routing_key=queue_name("default", slot),
            content_type=content,
            content_encoding="utf-8",
            declare=[],
            headers=headers,
        )
    assert workers.wait_buried(task_id)["reason"]
    workers.send(key, 2).get(timeout=30)
    assert workers.runs(key) == [2]


# -- ends ------------------------------------------------------------------------------------------


def test_a_rejected_message_is_buried_with_its_reason(workers: KindsFleet, key: str) -> None:
    result = workers.call("rejects", key, 1, 9, False)
    assert "not wanted" in workers.wait_buried(result.id)["reason"]
    workers.send(key, 2).get(timeout=30)
    assert workers.runs(key) == [1, 2]


def test_a_requeued_message_runs_again_in_its_place_and_is_counted(workers: KindsFleet, key: str) -> None:
    result, after = workers.call("rejects", key, 1, 2, True), workers.send(key, 2)
    after.get(timeout=30)
    assert result.get(timeout=30) == 3
    assert workers.runs(key) == [1, 1, 1, 2]


def test_a_message_that_is_requeued_again_and_again_waits_longer_each_time_and_is_not_buried(
    workers: KindsFleet, key: str
) -> None:
    result, after = workers.call("rejects", key, 1, 4, True), workers.send(key, 2)  # the limit of attempts is 3
    workers.send(f"{key}-other", 1).get(timeout=30)
    assert result.get(timeout=30) == 5
    after.get(timeout=30)
    assert workers.runs(key) == [1, 1, 1, 1, 1, 2]
    starts = [event.at / 1e9 for event in workers.starts(key)][1:5]
    assert starts[3] - starts[2] > starts[2] - starts[1] > 0.4, "0.5 s, then 1 s"
    assert workers.buried(result.id) is None
    assert f"[{result.id!r}]" in workers.workers["w1"].log and "asked to be requeued" in workers.workers["w1"].log


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_a_task_whose_process_dies_runs_again_in_its_place(workers: KindsFleet, key: str, how: str) -> None:
    result, after = workers.call("dies", key, 1, 1, how), workers.send(key, 2)
    assert result.get(timeout=30) == 2
    after.get(timeout=30)
    assert workers.runs(key) == [1, 1, 2]


@pytest.mark.smoke
def test_a_task_that_kills_its_process_each_time_is_buried_at_the_limit(workers: KindsFleet, key: str) -> None:
    result = workers.call("dies", key, 1, 99, "exit")
    info = workers.wait_buried(result.id)
    assert "started 3 times" in info["reason"] and info["task"] == "dies"
    workers.send(key, 2).get(timeout=30)
    assert workers.runs(key) == [1, 1, 1, 2]


def test_a_task_that_wants_to_acknowledge_early_is_kept_all_the_same(workers: KindsFleet, key: str) -> None:
    assert workers.call("early", key, 1).get(timeout=30)["sticky"]["attempt"] == 2
    assert workers.runs(key) == [1, 1]


def test_unkeyed_tasks_run_while_every_key_is_busy(workers: KindsFleet, key: str) -> None:
    busy = workers.send(key, 1, 2.0)
    workers.wait_started(key, 1)
    waiting = [workers.send(key, n) for n in range(2, 12)]
    workers.send_plain(1).get(timeout=30)
    assert not busy.ready()
    for result in (busy, *waiting):
        result.get(timeout=30)


def slots_told(worker: WorkerProcess, what: str) -> tuple[set[int], set[int]]:
    """Return the slots that a worker's receiver of a signal was told of, and those it owned at that moment."""
    told, owned = set[int](), set[int]()
    for found in re.finditer(rf": {what} default (\[.*?\]) owned (\[.*?\])\.", worker.log):
        told |= set(json.loads(found[1]))
        owned |= set(json.loads(found[2]))
    return told, owned


# -- who takes part --------------------------------------------------------------------------------


def test_a_worker_takes_part_only_in_the_keyspaces_it_is_told(kinds: Callable[..., KindsFleet], key: str) -> None:
    fleet = kinds()
    fleet.worker("w1", pool="solo", args=("--sticky-keyspaces", "orders"))
    assert set(fleet.ask("w1", "sticky")["keyspaces"]) == {"orders"}
    default = fleet.send(key, 1)
    fleet.call("order", {"customer": key}).get(timeout=30)
    fleet.send_plain(1).get(timeout=30)
    assert fleet.depth(key).waiting == 1
    fleet.worker("w2", pool="solo", args=("--sticky-keyspaces", "default"))
    assert default.get(timeout=30) == 1
    assert fleet.starts(key)[0].worker.startswith("w2@")


def test_a_worker_without_sticky_runs_unkeyed_tasks_alone(kinds: Callable[..., KindsFleet], key: str) -> None:
    fleet = kinds()
    fleet.worker("w1", pool="solo", args=("--without-sticky",))
    fleet.send(key, 1)
    fleet.send_plain(1).get(timeout=30)
    assert fleet.depth(key).waiting == 1 and fleet.runs(key) == []
    assert fleet.ask("w1", "sticky")["keyspaces"] == {}
    assert "sticky" not in fleet.ask("w1", "stats")


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_signals_and_owns_tell_of_slots_that_come_and_go(kinds: Callable[..., KindsFleet], key: str, pool: str) -> None:
    fleet = kinds()
    first = fleet.worker("w1", pool=pool)
    everything, half = set(range(SLOTS)), SLOTS // 2
    wait_until(lambda: slots_told(first, "gained") == (everything, everything), 20, "all are gained, and owned then")
    others = [f"{key}-{n}" for n in range(40)]
    assert fleet.call("owns", key, others).get(timeout=30) == [True] * 41

    second = fleet.worker("w2", pool=pool)
    wait_until(lambda: len(slots_told(second, "gained")[0]) == half, 20, "half of them move")
    moved = slots_told(second, "gained")[0]
    assert slots_told(first, "lost") == (moved, set()), "lost before the other gains them, and not owned any more"
    owned_by = {fleet.call("context", one).get(timeout=30)["sticky"]["worker"]: one for one in others}
    here, there = owned_by.values()
    assert fleet.call("owns", here, [there]).get(timeout=30) == [True, False]
    assert first.stop() == 0
    assert slots_told(first, "lost") == (everything, set())
