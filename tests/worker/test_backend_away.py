"""The result backend is away: tasks run once, keys and slots are let go of, and what cannot run yet waits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from harness.kinds import KindsFleet

from celery_sticky.testing.waiting import wait_until

POOLS = ["prefork", "threads", "solo", "gevent"]


@pytest.fixture
def away(kinds: Callable[..., KindsFleet], tmp_path: Path) -> Callable[..., tuple[KindsFleet, Path]]:
    """Makes a fleet with a result backend that is away while the returned file is there."""

    def make(**conf: Any) -> tuple[KindsFleet, Path]:
        folder = tmp_path / "results"
        folder.mkdir()
        (folder / "away").touch()
        return kinds({"result_backend": f"away://{folder}", **conf}), folder / "away"

    return make


def nothing_reserved(fleet: KindsFleet) -> bool:
    counts = fleet.ask("w1", "sticky")["tasks"]
    return all(counts[name] == 0 for name in ("running", "runnable", "waiting", "unconfirmed", "keys"))


@pytest.mark.smoke
@pytest.mark.parametrize("pool", POOLS)
def test_what_has_ended_here_never_runs_again_and_frees_its_key(
    away: Callable[..., tuple[KindsFleet, Path]], key: str, pool: str
) -> None:
    fleet, _ = away(task_track_started=True)
    worker = fleet.worker("w1", pool=pool, concurrency=2)
    keys = [f"{key}-{one}" for one in range(3)]
    for n in range(4):
        for one in keys:
            fleet.call("fails" if n == 1 else "record", one, n)
    wait_until(lambda: all(len(fleet.runs(one)) >= 4 for one in keys), 60, "all run")
    wait_until(lambda: nothing_reserved(fleet), 30, "nothing is left reserved")
    assert [fleet.runs(one) for one in keys] == [[0, 1, 2, 3]] * 3, "each once, in order"
    assert fleet.dead() == []
    assert "has ended, but Celery failed after it" in worker.log
    assert "Restarting" not in worker.log
    assert worker.stop() == 0


@pytest.mark.parametrize("pool", POOLS)
def test_what_expires_is_revoked_or_unknown_restarts_nothing_and_another_key_runs_once(
    away: Callable[..., tuple[KindsFleet, Path]], key: str, pool: str
) -> None:
    fleet, flag = away()
    worker = fleet.worker("w1", pool=pool, concurrency=2)
    fleet.ask("w1", "revoke", task_id=f"revoked-{key}")
    fleet.call("record", f"{key}-a", 1, task_id=f"revoked-{key}")
    expired = fleet.call("record", f"{key}-b", 1, expires=datetime.now(UTC) - timedelta(seconds=1))
    unknown = fleet.app.send_task("no-such-task", (1,), headers={"sticky-key": f"{key}-c"})
    for one in "abcd":
        fleet.send(f"{key}-{one}", 2)
    wait_until(lambda: all(fleet.runs(f"{key}-{one}") == [2] for one in "abcd"), 30, "the others run, once")
    assert "no task 'no-such-task'" in fleet.wait_buried(unknown.id)["reason"]
    wait_until(lambda: nothing_reserved(fleet), 30, "nothing is left reserved")
    assert "Connection to broker lost" not in worker.log and "the courier met an unexpected error" not in worker.log
    flag.unlink()
    expired = fleet.call("record", f"{key}-b", 3, expires=datetime.now(UTC) - timedelta(seconds=1))
    wait_until(lambda: expired.state == "REVOKED", 30, "results are stored again")
    assert fleet.runs(f"{key}-b") == [2]
    assert worker.stop() == 0


@pytest.mark.parametrize("pool", POOLS)
def test_results_are_stored_later_where_celery_is_told_to_retry(
    away: Callable[..., tuple[KindsFleet, Path]], key: str, pool: str
) -> None:
    retrying = {"result_backend_always_retry": True, "result_backend_max_sleep_between_retries_ms": 200}
    fleet, flag = away(**retrying)
    fleet.worker("w1", pool=pool, concurrency=2)
    result = fleet.send(key, 1)
    fleet.wait_started(key, 1)
    expired = fleet.call("record", f"{key}-b", 1, expires=datetime.now(UTC) - timedelta(seconds=1))
    other = fleet.send(f"{key}-c", 2) if pool != "solo" else None
    if other is not None:
        fleet.wait_started(f"{key}-c", 2)
    wait_until(lambda: len((flag.parent / "tries").read_bytes()) > 3, 20, "it is tried again")
    flag.unlink()
    assert result.get(timeout=30) == 1
    wait_until(lambda: expired.state == "REVOKED", 30, "this one too")
    assert fleet.runs(key) == [1]


@pytest.mark.parametrize("pool", POOLS)
def test_a_retry_whose_state_cannot_be_stored_is_made_once(
    away: Callable[..., tuple[KindsFleet, Path]], key: str, pool: str
) -> None:
    fleet, _ = away()
    fleet.worker("w1", pool=pool, concurrency=2)
    fleet.call("flaky", key, 1, 2)
    wait_until(lambda: len(fleet.runs(key)) >= 3, 30, "two retries and a success")
    fleet.send(key, 9)
    wait_until(lambda: 9 in fleet.runs(key), 30)
    wait_until(lambda: nothing_reserved(fleet), 30, "nothing is left reserved")
    assert fleet.runs(key).count(1) == 3
