"""Jobs of a worker whose store does not answer for longer than its lease lasts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness.jobs_fleet import JobsFleet

from celery_sticky.testing.history import Kind
from celery_sticky.testing.servers.valkey import ValkeyServer
from celery_sticky.testing.waiting import wait_until

KEYS = [f"t-{n}" for n in range(4)]


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_jobs_are_stopped_in_order_before_the_end_of_trust_and_start_again_with_the_store(
    jobs_fleet: Callable[..., JobsFleet], valkey: Callable[..., ValkeyServer], pool: str
) -> None:
    server = valkey()
    made = jobs_fleet(server)
    worker = made.worker("a", pool=pool)
    for key in KEYS:
        made.jobs.dispatch("sync", key, timeout=20)
    made.jobs.dispatch("poll", "in-threads", timeout=20)
    server.freeze()
    try:
        worker.wait_for_log(r"the lease of keyspace default ends within .* and is not renewed: stopping \d+ jobs", 40)
        ended = wait_until(
            lambda: {event.key for event in made.events() if event.kind is Kind.END} == {*KEYS, "in-threads"},
            20,
            "every job is stopped by its own code",
        )
        assert ended
    finally:
        server.thaw()
    made.wait_running({*KEYS, "in-threads"})
    wait_until(lambda: len(made.job_events(Kind.START)) == 2 * len(KEYS) + 2, 20, "each is started once more")
    assert "has ended itself" not in worker.log
    assert made.overlaps() == [] and worker.stop() == 0


@pytest.mark.parametrize("loss", ["terminate", "finish"])
def test_a_job_that_stops_slowly_is_killed_at_the_end_of_trust_or_may_finish_its_stop(
    jobs_fleet: Callable[..., JobsFleet], valkey: Callable[..., ValkeyServer], loss: str
) -> None:
    server = valkey()
    made = jobs_fleet(server, sticky_on_lease_loss=loss, sticky_job_stop_timeout=20.0)
    worker = made.worker("a")
    made.jobs.dispatch("poll", "slow", {"slow_stop": 2.0}, timeout=20)
    server.freeze()
    try:
        if loss == "terminate":
            worker.wait_for_log("the job host has ended itself, because the lease of keyspace default has ended", 40)
            assert not [event for event in made.events() if event.kind is Kind.END]
        else:
            wait_until(lambda: any(event.kind is Kind.END for event in made.events()), 40, "its stop has returned")
            assert "has ended itself" not in worker.log
    finally:
        server.thaw()
    wait_until(lambda: len(made.job_events(Kind.START)) == 2, 40, "it runs again")
    assert made.overlaps() == []
