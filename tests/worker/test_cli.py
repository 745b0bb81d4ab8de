"""The commands of `celery sticky` against a real server and real workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.fleet import Fleet
from harness.hang import ENDS

from celery_sticky.keys import queue_name, slot_for
from celery_sticky.message import STAMP_HEADER, Stamp
from celery_sticky.slots import Slot, WorkerQueue
from celery_sticky.testing.servers.valkey import ValkeyServer
from celery_sticky.testing.waiting import wait_until

TESTS = Path(__file__).parent.parent
SLOTS = 8
CONF = {"sticky_slots": SLOTS, "sticky_lease_ttl": 3.0, "sticky_lease_margin": 0.8, "sticky_settle": 0.2}


def celery(fleet: Fleet, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **fleet.config.environ(), "PYTHONPATH": os.pathsep.join((str(TESTS), str(TESTS.parent)))}
    command = [sys.executable, "-m", "celery", "-A", "harness.worker_app", *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)


def facts(fleet: Fleet, *words: str, status: int = 0) -> Any:
    done = celery(fleet, "sticky", *words, "--json")
    assert done.returncode == status, done.stdout + done.stderr
    return json.loads(done.stdout)


def publish(fleet: Fleet, slot: Slot, task_id: str, args: list[Any], headers: dict[str, Any] | None = None) -> None:
    """Put a message into a slot queue as a producer of one's own would."""
    message = fleet.app.amqp.as_task_v2(task_id, "record", args, {})
    with fleet.app.producer_or_acquire() as producer:
        producer.publish(
            message.body,
            exchange="",
            routing_key=queue_name("default", slot),
            serializer="json",
            declare=[],
            headers={**message.headers, **(headers or {})},
            **message.properties,
        )


def buried(fleet: Fleet) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = facts(fleet, "dead", "list")["messages"]
    return found


def test_status_tells_of_a_live_worker_what_it_owns_and_runs(fleet: Callable[..., Fleet]) -> None:
    made = fleet(conf=CONF)
    assert celery(made, "sticky", "init").returncode == 0
    made.worker("w1")
    wait_until(lambda: facts(made, "status")["keyspaces"][0]["unowned"] == 0, 30, "the worker owns every slot", 0.2)
    made.send("t-1", 1, seconds=600)
    made.wait_started("t-1", 1)

    (found,) = facts(made, "status")["keyspaces"]
    (member,) = found["members"]
    assert member["name"].startswith("w1@") and member["alive"] and member["state"] == "active"
    assert (member["slots"], member["running"], member["in_flight"]) == (SLOTS, 1, 1)
    assert 0 <= member["lease_age"] < 3.0
    assert facts(made, "owner", "t-1")["owner"] == member["name"]

    shown = json.loads(celery(made, "inspect", "sticky", "--json").stdout)
    keyspace = shown[member["name"]]["keyspaces"]["default"]
    assert (keyspace["slots"], keyspace["running"], keyspace["incarnation"]) == (SLOTS, 1, member["incarnation"])
    stats = json.loads(celery(made, "inspect", "stats", "--json").stdout)
    assert stats[member["name"]]["sticky"]["keyspaces"]["default"]["slots"] == SLOTS

    made.workers["w1"].kill_all()
    found = facts(made, "status", "--timeout", "0.1", status=1)
    assert found["problems"] == [f"keyspace default: {member['name']} does not answer and sends no heartbeats"]


def test_a_worker_whose_loop_hangs_is_a_problem_for_status_and_doctor(fleet: Callable[..., Fleet]) -> None:
    made = fleet(conf={**CONF, "sticky_loop_timeout": 1.0})
    celery(made, "sticky", "init")
    worker = made.worker("w1", app="harness.fault_app")
    (member,) = wait_until(lambda: facts(made, "status")["keyspaces"][0]["members"], 30, "it has joined", 0.2)
    assert 0 <= member["answer_age"] < 1.0 and member["stalled"] is None
    worker.kill(signal.SIGUSR2)
    worker.wait_for_log("Celery's loop does not answer")
    found = wait_until(lambda: facts(made, "status", "--timeout", "0.1", status=1), 10, "it is a problem")
    (problem,) = found["problems"]
    assert problem.startswith(f"keyspace default: {member['name']} has been unable to run tasks for ")
    assert problem.endswith("s: Celery's loop does not answer. See its log for the stack of its main thread")
    texts = [one["text"] for one in facts(made, "doctor", status=1)["findings"] if one["level"] == "wrong"]
    assert len(texts) == 1 and "has been unable to run tasks for" in texts[0]
    (made.config.history.parent / ENDS).touch()
    worker.wait_for_log("answers and can run tasks")
    wait_until(lambda: celery(made, "sticky", "status").returncode == 0, 10, "all is well again")


def test_a_message_buried_for_its_wrong_slot_runs_once_it_is_retried(fleet: Callable[..., Fleet]) -> None:
    made = fleet(conf=CONF)
    celery(made, "sticky", "init")
    made.worker("w1")
    key = next(f"t-{n}" for n in range(100) if slot_for(f"t-{n}", 7) != slot_for(f"t-{n}", SLOTS))
    wrong = slot_for(key, 7)
    publish(made, wrong, "id-1", [key, 1], {STAMP_HEADER: Stamp(key, "default", wrong, 7, time.time()).to_header()})
    made.history.published(key, 1, "id-1")
    wait_until(lambda: buried(made), 30, "the message is buried", 0.3)

    (done,) = facts(made, "dead", "retry", "id-1")["retried"]
    assert done["queue"] == queue_name("default", slot_for(key, SLOTS))
    assert made.wait_started(key, 1).slot == slot_for(key, SLOTS)
    made.wait_finished()
    assert made.judge().ok and not buried(made)


def test_a_message_without_a_stamp_finds_its_slot_by_its_task_and_others_stay(fleet: Callable[..., Fleet]) -> None:
    made = fleet(conf=CONF)
    celery(made, "sticky", "init")
    made.worker("w1")
    wrong = (slot_for("t-1", SLOTS) + 1) % SLOTS
    publish(made, wrong, "id-1", ["t-1", 1])
    publish(made, wrong, "id-2", [["no", "key"], 1])
    wait_until(lambda: len(buried(made)) == 2, 30, "both are buried", 0.3)

    found = facts(made, "dead", "retry", "--all", status=1)
    assert [one["queue"] for one in found["retried"]] == [queue_name("default", slot_for("t-1", SLOTS))]
    (left,) = buried(made)
    assert left["name"] == found["failed"][0]["name"] and "a key is a str" in found["failed"][0]["error"]
    assert made.wait_started("t-1", 1)
    assert facts(made, "dead", "drop", left["name"])["dropped"] == [left["name"]]


def test_doctor_finds_messages_that_no_worker_will_fetch(fleet: Callable[..., Fleet]) -> None:
    made = fleet(conf=CONF)
    celery(made, "sticky", "init")
    assert facts(made, "doctor")["ok"]
    publish(made, SLOTS + 3, "id-1", ["t-1", 1])
    publish(made, 0, "id-2", ["t-1", 1])
    texts = [one["text"] for one in facts(made, "doctor", status=1)["findings"] if one["level"] == "wrong"]
    assert len(texts) == 2
    assert texts[0].startswith(f"keyspace default: 1 messages are in 1 slot queues from number {SLOTS + 3} on")
    assert texts[1] == "keyspace default: 1 messages wait, but no worker takes part in it"


def test_doctor_sees_a_prefix_with_a_colon_and_lists_of_former_priority_steps(fleet: Callable[..., Fleet]) -> None:
    made = fleet(conf={**CONF, "sticky_key_prefix": "shop:eu"})
    celery(made, "sticky", "init")
    with made.app.connection_for_write() as connection:
        client = connection.default_channel.client
        client.lpush(queue_name("default", SLOTS + 3, "shop:eu"), "1")
        client.lpush(queue_name("default", 2, "shop:eu") + "\x06\x165", "2")
    texts = [one["text"] for one in facts(made, "doctor", status=1)["findings"] if one["level"] == "wrong"]
    assert any("slot queues hold messages of priorities 5" in text for text in texts)
    assert any(f"1 messages are in 1 slot queues from number {SLOTS + 3} on" in text for text in texts)


def test_doctor_finds_messages_that_were_left_when_a_keyspace_became_plain_again(fleet: Callable[..., Fleet]) -> None:
    made = fleet(conf=CONF)
    celery(made, "sticky", "init")
    publish(made, WorkerQueue("w1@here"), "id-1", ["t-1", 1])
    texts = [one["text"] for one in facts(made, "doctor", status=1)["findings"] if one["level"] == "wrong"]
    assert texts[0].startswith("keyspace default: 1 messages are in worker queues")


def test_doctor_finds_two_workers_of_one_name(fleet: Callable[..., Fleet]) -> None:
    first, second = fleet(conf=CONF), fleet(conf=CONF)
    celery(first, "sticky", "init")
    first.worker("w1")
    assert facts(first, "doctor")["ok"]
    second.worker("w1", args=("--without-sticky",))  # one that takes part would refuse to start
    texts = [one["text"] for one in facts(first, "doctor", status=1)["findings"] if one["level"] == "wrong"]
    assert len(texts) == 1 and texts[0].startswith("2 workers have the node name w1@")


@pytest.mark.parametrize(
    ("config", "status", "said"),
    [
        ({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, 1, "maxmemory-policy is allkeys-lru"),
        ({"appendonly": "no", "save": ""}, 0, "a restart loses every message"),
        ({"save": "3600 1"}, 0, "a crash loses everything since the last snapshot"),
    ],
    ids=["eviction", "no durability", "snapshots"],
)
def test_doctor_examines_the_server(
    fleet: Callable[..., Fleet],
    valkey: Callable[..., ValkeyServer],
    config: dict[str, str],
    status: int,
    said: str,
) -> None:
    server = valkey(config=config)
    found = facts(fleet(broker=server.url), "doctor", status=status)
    assert any(said in one["text"] for one in found["findings"])
    broker = found["servers"]["broker"]
    assert broker["server"].startswith("Valkey ") and broker["run_id"] and broker["wakes_clients"]


def test_a_broker_that_is_down_is_told_in_one_line(
    fleet: Callable[..., Fleet], valkey: Callable[..., ValkeyServer]
) -> None:
    server = valkey()
    made = fleet(broker=server.url)
    server.kill()
    for command in (["status"], ["owner", "7"], ["plan"], ["dead", "list"], ["init"]):
        done = celery(made, "sticky", *command)
        assert done.returncode == 1 and done.stderr.startswith("Error: ") and done.stderr.count("\n") == 1, done.stderr
    found = facts(made, "doctor", status=1)
    assert "Connection refused" in found["servers"]["broker"]["error"] and len(found["findings"]) >= 1
