"""Whatever stands in a slot queue is run or dead in the end, and the worker lives: mutated messages in every pool.

`STICKY_FUZZ` says how many messages for each pool (2,500), `STICKY_FUZZ_SEED` which ones: fresh ones each time, else.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest
import redis
from harness.kinds import KindsFleet
from harness.mutants import SLOTS, mutants
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from celery_sticky.keys import queue_name
from celery_sticky.testing.waiting import wait_until

BATCH = 50
MESSAGES = int(os.environ.get("STICKY_FUZZ", "2500"))


class Target:
    """A worker, and what became of the messages that were put before it."""

    def __init__(self, fleet: KindsFleet, pool: str, directory: Path) -> None:
        self._fleet, self._runs = fleet, directory / "runs"
        self._runs.touch()
        environ = {"STICKY_FUZZ_RUNS": str(self._runs)}
        self.worker = fleet.worker("w1", app="harness.fuzz_app", pool=pool, concurrency=2, env=environ)
        self._open = fleet.queues()
        self._queues = self._open.__enter__()
        self._client = redis.Redis.from_url(fleet.config.broker)
        self.sent = self.dead = 0

    def put(self, batch: list[bytes]) -> None:
        """Put messages into slots by turns: most belong elsewhere, and are refused for that; so each into its own."""
        for raw in batch:
            self._client.lpush(queue_name("default", _slot_of(raw)), raw)
        self.sent += len(batch)

    def settled(self) -> bool:
        """Whether everything is run or dead."""
        assert self.worker.alive, self.worker.tail(30)
        depths = self._queues.depths([("default", slot) for slot in range(SLOTS)]).values()
        if any(one.waiting or one.in_flight or one.deferred for one in depths):
            return False
        for one in self._queues.dead("default"):
            self.dead += self._queues.drop("default", one.id)
        return self.run + self.dead == self.sent

    @property
    def run(self) -> int:
        return self._runs.stat().st_size

    def close(self) -> None:
        self._open.__exit__(None, None, None)
        self._client.close()


def _slot_of(raw: bytes) -> int:
    for slot in range(SLOTS):
        if b'"slot": %d,' % slot in raw:
            return slot
    return 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_every_mutated_message_is_run_or_dead_and_the_worker_lives(
    kinds: Callable[..., KindsFleet], tmp_path: Path, pool: str
) -> None:
    seed = int(os.environ.get("STICKY_FUZZ_SEED") or random.randrange(2**32))
    print(f"seed {seed}: repeat with STICKY_FUZZ_SEED={seed}")  # noqa: T201
    target = Target(kinds(), pool, tmp_path)
    pid = target.worker.pid

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=max(1, MESSAGES // BATCH),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(hypothesis.Phase.generate,),
    )
    @given(st.lists(mutants(), min_size=BATCH, max_size=BATCH))
    def batches(batch: list[bytes]) -> None:
        target.put(batch)
        wait_until(target.settled, 40, f"{target.sent} sent, {target.run} run, {target.dead} dead", 0.01)

    batches()
    assert target.sent >= MESSAGES and target.run > MESSAGES // 10 and target.dead > MESSAGES // 10
    assert target.worker.pid == pid
    assert target.worker.stop() == 0
    target.close()
