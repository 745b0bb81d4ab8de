"""`celery sticky drain` with real workers: everything moves in order, nothing comes back before that is undone."""

# Celery has no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result
from harness.keyed_fleet import node
from harness.placed_fleet import PlacedFleet
from harness.placed_jobs import PlacedJobs

from celery_sticky import slot_for
from celery_sticky.cli.main import sticky
from celery_sticky.ownership.view import View
from celery_sticky.testing.history import Kind
from celery_sticky.testing.waiting import wait_until

Placed = Callable[..., PlacedFleet]


def run(fleet: PlacedFleet, *words: str) -> Result:
    return CliRunner().invoke(sticky, words, obj=CLIContext(fleet.app, True, None), catch_exceptions=False)


def state_of(fleet: PlacedFleet, worker: str) -> Any:
    """Return what `status` shows of a worker."""
    (keyspace,) = json.loads(run(fleet, "status", "--json", "--keyspace", fleet.keyspace).stdout)["keyspaces"]
    return next((member for member in keyspace["members"] if member["name"] == node(worker)), None)


def key_of(view: View, worker: str) -> str:
    return next(f"k{i}" for i in range(99) if view.owner[slot_for(f"k{i}", view.slots)] == node(worker))


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_gives_everything_away_in_order_and_takes_nothing(placed: Placed, pool: str) -> None:
    fleet = placed("pinned", jobs=True)
    jobs = PlacedJobs(fleet)
    a, _ = fleet.up("a", "b", pool=pool)
    key = key_of(fleet.view(), "a")
    jobs.dispatch(key, "pinned")
    fleet.on("a", "pin", "pinned", "pinned", True)
    jobs.wait_at({key: "a", "pinned": "a"})
    fleet.call(key, 6.0)
    fleet.call(key)
    wait_until(lambda: fleet.ran(key), 30, "a task runs")
    begun = run(fleet, "drain", node("a"), "--timeout", "0")
    assert begun.exit_code == 1 and "keyed tasks running 1" in begun.output, begun.output
    assert state_of(fleet, "a")["draining"] is True
    done = run(fleet, "drain", node("a"))
    assert done.exit_code == 0 and done.output.endswith("or until it restarts\n"), done.output
    assert node("a") not in fleet.view().members and set(fleet.view().owner) == {node("b")}
    jobs.wait_at({key: "b", "pinned": "b"})
    ended = next(event for event in fleet.events() if event.kind is Kind.END and event.key == key)
    assert ended.at < jobs.runs(key)[0].until, "jobs stop after the tasks of their slot"
    for _ in range(3):
        fleet.call(key)
        fleet.call("pinned")
    fleet.wait_finished()
    assert fleet.ran(key) == ["a", *["b"] * 4] and fleet.ran("pinned") == ["b"] * 3
    assert fleet.empty("a") and fleet.judge().ok, fleet.judge().describe()
    assert fleet.on("a", "owns", key, "pinned") is False, "it runs tasks without a key all the same"
    jobs.check()
    assert run(fleet, "drain", "--undo", node("a")).output == f"{node('a')} takes slots and keys again\n"
    fleet.wait_members("a", "b")
    assert state_of(fleet, "a")["draining"] is False
    a.stop()


def test_what_cannot_be_drained_is_told(placed: Placed) -> None:
    fleet = placed("pinned")
    fleet.up("a", pool="threads")
    done = run(fleet, "drain", "nobody@here")
    assert done.exit_code == 1 and "'nobody@here' does not answer" in done.output
    fleet.call("k", 5.0)
    wait_until(lambda: fleet.ran("k"), 30, "a task runs")
    done = run(fleet, "drain", node("a"), "--timeout", "0.5", "--json")
    assert (done.exit_code, json.loads(done.stdout)["drained"]) == (1, False)
    assert run(fleet, "drain", node("a")).exit_code == 0, "without others its slots have no owner"
    assert fleet.view().unowned == frozenset(range(fleet.view().slots))
