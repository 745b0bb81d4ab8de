"""SIGQUIT in every pool: what it cuts off runs again elsewhere, and is not blamed for it."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from harness.keyed_fleet import KeyedFleet, node

from celery_sticky.testing.history import Kind


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent", "eventlet"])
def test_a_task_cut_off_by_a_cold_shutdown_runs_again_elsewhere(crew: Callable[..., KeyedFleet], pool: str) -> None:
    """Guards: an end without a verdict is no acknowledgement, and counts as an attempt only if the task is to blame."""
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
