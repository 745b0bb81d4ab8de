"""Messages that nobody can read go to the dead queue at the first try, in every pool, and harm nobody else."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable

import pytest
import redis
from harness.kinds import SLOTS, KindsFleet

from celery_sticky.cli.verify.malformed import MALFORMED, malformed
from celery_sticky.keys import queue_name, slot_for
from celery_sticky.testing.waiting import wait_until


@pytest.mark.smoke
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent", "eventlet"])
def test_what_cannot_be_read_is_dead_at_the_first_try_and_innocents_of_its_batch_run(
    kinds: Callable[..., KindsFleet], key: str, pool: str
) -> None:
    fleet = kinds()
    queue = queue_name("default", slot_for(key, SLOTS))
    bad = {wrong: malformed(wrong, "record", [key, 0, 0.0], key=key, slots=SLOTS) for wrong in MALFORMED}
    innocents = []
    with redis.Redis.from_url(fleet.config.broker) as client:
        for n, raw in enumerate(bad.values(), 1):
            client.lpush(queue, raw)
            innocents.append(fleet.send(key, n))
    worker = fleet.worker("w1", pool=pool, concurrency=2)
    pid = worker.pid
    wait_until(lambda: len(fleet.runs(key)) == len(innocents), 60, f"the innocents run\n{fleet}")
    wait_until(lambda: len(fleet.dead()) == len(bad), 30, f"the others are dead\n{fleet}")
    assert fleet.runs(key) == sorted(fleet.runs(key)), "in order, each once"
    assert all(info["reason"] for info in fleet.dead())
    with fleet.queues() as queues:
        found = [queues.dead_message("default", one.id) for one in queues.dead("default")]
        assert {one.body for one in found if one is not None} == {*bad.values()}
    counts = fleet.ask("w1", "sticky")["tasks"]
    assert (counts["running"], counts["runnable"], counts["waiting"], counts["keys"]) == (0, 0, 0, 0)
    assert worker.pid == pid and worker.alive
    assert "Traceback" not in worker.log and "Restarting" not in worker.log
    assert worker.stop() == 0


def test_who_waits_for_a_message_that_cannot_be_read_is_told(kinds: Callable[..., KindsFleet], key: str) -> None:
    fleet = kinds()
    fleet.worker("w1", pool="threads")
    task_id = str(uuid.uuid4())
    raw = json.loads(malformed("timelimit text", "record", [key, 0], key=key, slots=SLOTS, task_id=task_id))
    raw["headers"]["ignore_result"] = False
    with redis.Redis.from_url(fleet.config.broker) as client:
        client.lpush(queue_name("default", slot_for(key, SLOTS)), json.dumps(raw))
    with pytest.raises(Exception, match="timelimit"):
        fleet.app.AsyncResult(task_id).get(timeout=30)
    assert "'timelimit' is not a pair of seconds but 'ab'" in fleet.wait_buried(task_id)["reason"]
