"""What travels when a keyed task retries, and what the fence makes of it: no worker, a real broker."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Reject, Retry
from harness.app import AppConfig, make_app

from celery_sticky import Sticky
from celery_sticky.drivers import open_queues
from celery_sticky.envelope import parse
from celery_sticky.execution.retry import DeferredRetry, fence_retry
from celery_sticky.message import STAMP_HEADER
from celery_sticky.queues import Depth, Disposition, Outcome, SlotQueues, Tenure, Want
from celery_sticky.testing.queue_steps import open_slot


def totals(depth: Depth) -> tuple[int, int | None, int | None]:
    return depth.waiting, depth.deferred, depth.in_flight


@pytest.fixture
def app(redis_url: str, tmp_path: Path) -> Iterator[Celery]:
    """An app whose tasks are wrapped as in a worker."""
    app = make_app(AppConfig(redis_url, tmp_path / "history.jsonl", redis_url, {"sticky_slots": 8}))
    for task in app.tasks.values():
        fence_retry(task)
        fence_retry(task)
    yield app
    app.close()


@pytest.fixture
def queues(app: Celery) -> Iterator[SlotQueues]:
    queues = open_queues(app.connection_for_read(), prefix="sticky", socket_timeout=5.0)
    yield queues
    queues.close()


def retry_of(app: Celery, body: bytes, **options: Any) -> Any:
    """Run the `retry` of the task of this message, and return what it raises."""
    envelope = parse(body)
    task, stamp = app.tasks[envelope.task], envelope.headers[STAMP_HEADER]
    queue = f"sticky.{stamp['keyspace']}.{stamp['slot']}"
    task.push_request(
        **{**envelope.headers, STAMP_HEADER: {**stamp, "epoch": 1, "membership": 1}},
        args=["a", 1],
        kwargs={},
        called_directly=False,
        delivery_info={"exchange": "", "routing_key": queue, "priority": 0},
    )
    try:
        task.retry(**options)
    except (Retry, Reject) as raised:
        return raised
    finally:
        task.pop_request()
    raise AssertionError("it did not raise")


def test_a_retry_brings_its_message_to_the_main_process_and_publishes_nothing(app: Celery, queues: SlotQueues) -> None:
    tenure, (delivery,) = delivered(app, queues)
    retry = pickle.loads(pickle.dumps(retry_of(app, delivery.body, countdown=60, args=["a", 2])))

    assert isinstance(retry, DeferredRetry)
    envelope = parse(retry.sticky_body)
    assert (envelope.task_id, envelope.headers["retries"]) == (parse(delivery.body).task_id, 1)
    assert datetime.fromisoformat(envelope.headers["eta"]).timestamp() == retry.sticky_due
    assert time.time() + 50 < retry.sticky_due < time.time() + 70
    assert b'["a", 2]' in envelope.body
    assert totals(queues.depths([("default", tenure.slot)])["default", tenure.slot]) == (0, 0, 1)


def test_the_retry_of_a_worker_that_lost_the_slot_leaves_no_second_message(app: Celery, queues: SlotQueues) -> None:
    tenure, (delivery,) = delivered(app, queues)
    retry = retry_of(app, delivery.body, countdown=0)
    owner = Tenure("default", tenure.slot, 2, "other", 1)
    open_slot(queues, owner)

    disposition = Disposition(Outcome.DEFER, tenure, delivery.tag, retry.sticky_due, retry.sticky_body)
    assert queues.fetch([], [disposition], time.time()).refused == [disposition]
    (again,) = queues.fetch([Want(owner, 10)], [], time.time() + 60).deliveries
    assert again.body == delivery.body


def test_a_retry_to_a_queue_of_the_callers_choice_is_refused(app: Celery, queues: SlotQueues) -> None:
    _, (delivery,) = delivered(app, queues)
    raised = retry_of(app, delivery.body, queue="elsewhere")
    assert isinstance(raised, Reject)
    assert "leave out queue='elsewhere'" in str(raised)


def delivered(app: Celery, queues: SlotQueues) -> tuple[Tenure, list[Any]]:
    """Send a task of key `a`, take its slot and fetch the message."""
    app.tasks["flaky"].apply_async(("a", 1))
    tenure = Tenure("default", Sticky.of(app).slot_for("a"), 1, "one", 1)
    open_slot(queues, tenure)
    return tenure, list(queues.fetch([Want(tenure, 10)], [], time.time()).deliveries)
