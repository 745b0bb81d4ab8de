"""The dead queue within its bounds: what is dropped, what is said."""

from __future__ import annotations

import logging

import pytest

from celery_sticky.delivery import dead_trimmer
from celery_sticky.delivery.dead_trimmer import LOOK, DeadTrimmer
from celery_sticky.keyspace import DeadBounds
from celery_sticky.queues import Disposition, Outcome, Tenure, Want
from celery_sticky.queues.memory import MemoryBroker, MemoryQueues
from celery_sticky.stores.flow import serve
from celery_sticky.testing.queue_steps import open_slot

TENURE = Tenure("ks", 1, 1, "a", 1)


def buried(count: int, at: float = 0.0) -> MemoryQueues:
    broker = MemoryBroker()
    for _ in range(count):
        broker.publish(("ks", 1), b"x")
    queues = MemoryQueues(broker)
    open_slot(queues, TENURE)
    brought = queues.fetch([Want(TENURE, count)], [], 0.0).deliveries
    queues.fetch(
        [], [Disposition(Outcome.BURY, TENURE, d.tag, info=f'{{"at": {at + i}}}') for i, d in enumerate(brought)], 0.0
    )
    return queues


def keep(bounds: DeadTrimmer, queues: MemoryQueues, now: float) -> None:
    serve(bounds.keep(["ks"], now), queues)


def test_the_oldest_go_until_the_limit_is_kept_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    queues, bounds = buried(10), DeadTrimmer({"ks": DeadBounds(4)})
    keep(bounds, queues, 100.0)
    keep(bounds, queues, 100.0)
    assert queues.dead_counts(["ks"])["ks"] == 4
    assert "dropped its 6 oldest" in caplog.text


def test_what_is_too_old_goes_at_the_next_look() -> None:
    queues, bounds = buried(10, at=100.0), DeadTrimmer({"ks": DeadBounds(ttl=50.0)})
    keep(bounds, queues, 150.0)
    assert queues.dead_counts(["ks"])["ks"] == 10
    keep(bounds, queues, 151.0)
    assert queues.dead_counts(["ks"])["ks"] == 10, "it is not time to look again"
    keep(bounds, queues, 155.0 + LOOK)
    assert queues.dead_counts(["ks"])["ks"] == 0


def test_without_bounds_nothing_goes_and_many_are_warned_of_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_trimmer, "MANY", 10)
    queues, bounds = buried(10), DeadTrimmer({})
    with caplog.at_level(logging.WARNING):
        for look in range(3):
            keep(bounds, queues, 1000.0 * look)
    assert caplog.text.count("10 messages are buried") == 1
    assert queues.dead_counts(["ks"])["ks"] == 10
