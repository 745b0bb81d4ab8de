"""Workers with a broker that is full, or holds a key of a wrong type, or messages that are big."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.fleet import Fleet
from worker.test_cli import CONF, SLOTS, facts

from celery_sticky.keys import slot_for
from celery_sticky.queues.redis.access import line
from celery_sticky.testing.servers.valkey import ValkeyServer
from celery_sticky.testing.waiting import wait_until

QUIET = {**CONF, "task_ignore_result": True}


def ended(fleet: Fleet) -> int:
    """Return how many runs have come to an end."""
    path = fleet.config.history
    return path.read_bytes().count(b'"kind":"end"') if path.exists() else 0


def key_of(slot: int) -> str:
    return next(f"k{n}" for n in range(1000) if slot_for(f"k{n}", SLOTS) == slot)


def test_a_key_of_a_wrong_type_stops_its_slot_and_the_others_go_on(
    fleet: Callable[..., Fleet], valkey: Callable[..., ValkeyServer]
) -> None:
    server = valkey()
    made = fleet(broker=server.url, conf=QUIET)
    with server.client() as client:
        client.set("sticky.default.3", "oops")
        worker = made.worker("w1")
        for slot in set(range(SLOTS)) - {3}:
            made.send(key_of(slot), 0)
        wait_until(lambda: ended(made) == SLOTS - 1, 30, "the others have run")
        found = facts(made, "status", status=1)
        (keyspace,) = found["keyspaces"]
        error = "key sticky.default.3 is a string, not a list"
        assert keyspace["broken"] == [{"slot": 3, "error": error}]
        assert any(error in text for text in found["problems"])
        assert any(error in one["text"] for one in facts(made, "doctor", status=1)["findings"])
        assert f"slot 3 of keyspace default: {error}" in worker.log and "broker lost" not in worker.log
        client.delete("sticky.default.3")
        made.send(key_of(3), 0)
        wait_until(lambda: ended(made) == SLOTS, 40, "the slot works again")
        assert "slot 3 of keyspace default works again" in worker.log


def test_a_worker_drains_a_full_broker(fleet: Callable[..., Fleet], valkey: Callable[..., ValkeyServer]) -> None:
    broker = valkey(config={"maxmemory-policy": "noeviction"})
    made = fleet(broker=broker.url, conf=QUIET)  # heartbeats go to the same server
    made.worker("w1")  # before: Celery itself does not start on a full broker
    for n in range(200):
        made.send(f"k{n % 20}", n // 20, 0.05)
    with broker.client() as client:
        client.config_set("maxmemory", 1)
        assert ended(made) < 150
        wait_until(lambda: ended(made) == 200, 60, "all have run")
        wait_until(lambda: not _left(client), 20, "all are settled")


def test_a_worker_starts_and_connects_again_while_its_broker_is_full(
    fleet: Callable[..., Fleet], valkey: Callable[..., ValkeyServer]
) -> None:
    """Stock Celery exits at the first command that the server refuses, the declaration of its own queue."""
    broker = valkey(config={"maxmemory-policy": "noeviction"})
    made = fleet(broker=broker.url, conf=QUIET)
    connected = made.worker("w1")
    for n in range(20):
        made.send(f"k{n}", 0)
    wait_until(lambda: ended(made) == 20, 30, "the worker works")
    with broker.client() as client:
        client.config_set("maxmemory", 1)
        client.client_kill_filter(_type="normal", skipme=True)
        started = made.worker("w2", ready=False)
        refused = "the broker refuses Celery's own connection: OOM"
        wait_until(lambda: refused in connected.log and refused in started.log, 30, "both are refused")
        client.config_set("maxmemory", 0)
    for n in range(20):
        made.send(f"k{n}", 1)
    wait_until(lambda: ended(made) == 40, 30, "they work again")
    assert connected.alive and started.alive


def _left(client: Any) -> list[str]:
    return [key for key in client.scan_iter("sticky.default.*") if not key.endswith(":fence")]


def test_a_worker_runs_as_a_user_who_may_do_what_doctor_lists_and_nothing_else(
    fleet: Callable[..., Fleet], valkey: Callable[..., ValkeyServer]
) -> None:
    server = valkey()
    with server.client() as client:
        client.execute_command(*line("keyed").replace(">PASSWORD", ">secret").split())
        made = fleet(broker=f"redis://keyed:secret@127.0.0.1:{server.port}/0", conf=CONF)
        worker = made.worker("w1")
        for slot in range(SLOTS):
            made.send(key_of(slot), 0)
        wait_until(lambda: ended(made) == SLOTS, 30, "all have run")
        texts = [one["text"] for one in facts(made, "doctor")["findings"]]
        assert not any("may not run" in text for text in texts), texts
        facts(made, "status")
        refused = [one for one in client.execute_command("ACL LOG") if one["reason"] == "command"]
        assert not refused, refused
        client.execute_command("ACL", "SETUSER", "keyed", "-time", "-memory")
        texts = [one["text"] for one in facts(made, "doctor", status=1)["findings"] if "may not run" in one["text"]]
        assert "may not run time. Create one that may: ACL SETUSER celery on" in texts[0]
        assert "may not run memory" in texts[1]
        assert "Traceback" not in worker.log
