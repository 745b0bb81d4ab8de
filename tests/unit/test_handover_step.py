"""The last step of a worker: how long it may take."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from celery_sticky.bootsteps import handover
from celery_sticky.bootsteps.handover import LEAST, STOP_TIMEOUT, Handover


class Clock:
    """Time passes when something is waited for."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Lasting:
    """Is never done."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def finish(self, timeout: float) -> bool:
        self._clock.now += timeout
        return False


@pytest.mark.parametrize("jobs", [False, True])
def test_all_keyspaces_have_one_time_together_to_give_their_last_slots_away(
    monkeypatch: pytest.MonkeyPatch, jobs: bool
) -> None:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    ten: dict[str, Any] = {f"k{n}": Lasting(clock) for n in range(10)}
    ended: list[float] = []

    def await_stops(*, cold: bool) -> None:
        clock.now += 100.0 * (not cold)

    part = SimpleNamespace(
        runs={},
        has_processes=False,
        ending=False,
        members=ten,
        placers=ten,
        jobs=SimpleNamespace(await_stops=await_stops, finish=ended.append) if jobs else None,
        courier=SimpleNamespace(shutdown=ended.append),
        results=SimpleNamespace(finish=ended.append),
        trust_watch=SimpleNamespace(stop=lambda: None),
    )
    step = Handover(SimpleNamespace(controller=SimpleNamespace(sticky=part)))
    step.shutdown(None)
    assert ended[-1] == handover.STOP_TIMEOUT
    assert clock.now == pytest.approx(100.0 * jobs + 2 * STOP_TIMEOUT + 18 * LEAST), "the jobs stop before"
