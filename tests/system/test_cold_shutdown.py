"""SIGQUIT in every pool: what it cuts off runs again elsewhere, and is not blamed for it."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from harness.keyed_fleet import KeyedFleet, node

from celery_sticky.testing.history import Kind


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent", "eventlet"])
def test_a_task_cut_off_by_a_cold_shutdown_runs_again_elsewhere(crew: Callable[..., KeyedFleet], pool: str) -> None:
    """Guards: an end without a disposition is no acknowledgement, and an attempt only if the task is to blame."""
    fleet = crew()
    fleet.workers_up("a", "b", pool=pool)
    key = fleet.keys_of(fleet.wait_members("a", "b"), "a")[0]
    fleet.publish(key, 3.0)
    fleet.publish(key)
    fleet.wait_started(key, 0)
    fleet.workers["a"].kill(signal.SIGQUIT)
    fleet.wait_finished(timeout=40)
    runs = [event for event in fleet.events() if event.kind is Kind.START]
    assert [event.n for event in runs][-1] == 1
    assert {event.worker for event in runs if event.n == 1} == {node("b")}
    assert max(event.attempt for event in runs) <= 2
    judgement = fleet.judge()
    assert not judgement.lost and not judgement.inversions


def test_a_busy_worker_survives_none_of_its_cold_shutdowns(crew: Callable[..., KeyedFleet]) -> None:
    """Guards: the shutdown runs in a signal handler; it must not wait for a lock or a loop that it has interrupted."""
    fleet = crew()
    fleet.workers_up("a", "b")
    for _ in range(4):
        fleet.publish_many(800, 40, 0.001)
        worker = fleet.workers["a"]
        worker.wait_for_log("received")
        worker.kill(signal.SIGQUIT)
        worker.wait(timeout=30)
        worker.start().wait_ready()
    fleet.wait_finished(timeout=60)
    judgement = fleet.judge()
    assert judgement.ok, judgement.describe()


@pytest.mark.parametrize("pool", ["prefork", "threads"])  # in gevent's loop Celery cannot wait
def test_a_soft_shutdown_lets_tasks_end_in_time_and_cuts_off_the_others(
    crew: Callable[..., KeyedFleet], pool: str
) -> None:
    """Guards: while Celery waits, slots whose tasks have ended move; what ended in time does not run again."""
    fleet = crew(worker_soft_shutdown_timeout=6.0)
    fleet.workers_up("a", "b", pool=pool)
    short, long = fleet.keys_of(fleet.wait_members("a", "b"), "a", count=2)
    fleet.publish(short, 4.0)  # it must run still when the signal comes, also where that takes its time
    fleet.publish(long, 14.0)
    for key in (short, long):
        fleet.publish(key)
        fleet.wait_started(key, 0)
    fleet.workers["a"].kill(signal.SIGQUIT)
    fleet.wait_finished(timeout=40)
    starts = [event for event in fleet.events() if event.kind is Kind.START]
    runs = [(event.key, event.n, event.worker) for event in starts]
    assert [run for run in runs if run[0] == short] == [(short, 0, node("a")), (short, 1, node("b"))]
    if pool == "threads":  # with prefork Celery's loop stands still meanwhile, and sees no child end
        cut_off = next(event for event in fleet.events() if event.kind is Kind.END and event.key == long)
        assert next(event for event in starts if (event.key, event.n) == (short, 1)).at < cut_off.at
    assert [n for key, n, _ in runs if key == long] == [0, 0, 1]
    judgement = fleet.judge()
    assert judgement.ok, judgement.describe()
