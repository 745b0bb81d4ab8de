"""Tasks that run at most once, or not again once they have finished, with real workers that are killed and stopped."""

# Celery has no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from celery.bin.base import CLIContext
from celery.exceptions import TimeoutError as NoResult
from click.testing import CliRunner
from harness.keyed_fleet import KeyedFleet

from celery_sticky.cli.main import sticky
from celery_sticky.errors import RunAbandoned
from celery_sticky.testing.history import Kind
from celery_sticky.testing.waiting import wait_until

Crew = Callable[..., KeyedFleet]


@pytest.fixture(params=["redis", "postgresql"])
def once(request: pytest.FixtureRequest, crew: Crew, tmp_path: Any) -> Callable[..., KeyedFleet]:
    """Makes fleets on a broker of each kind, with a result backend of files."""
    results = tmp_path / "results"
    results.mkdir()

    def make(**settings: Any) -> KeyedFleet:
        if request.param == "redis":
            return crew(**settings)
        url = request.getfixturevalue(f"{request.param}_url")
        options = {"socket_timeout": 10, "table_prefix": f"t{uuid.uuid4().hex[:12]}_"}
        return crew(broker=f"sticky+{url}", broker_transport_options=options, **settings)

    return make


def send(fleet: KeyedFleet, task: str, key: str, n: int, *args: Any, **options: Any) -> str:
    """Send a task; return its id."""
    return str(fleet.app.tasks[task].apply_async((key, n, *args), **options).id)


def starts(fleet: KeyedFleet) -> Counter[tuple[str, int]]:
    """Return how often each task has started."""
    return Counter((event.key, event.n) for event in fleet.events() if event.kind is Kind.START)


def ends(fleet: KeyedFleet) -> Counter[tuple[str, int]]:
    """Return how often each task has finished."""
    return Counter((event.key, event.n) for event in fleet.events() if event.kind is Kind.END)


def abandoned(fleet: KeyedFleet, *command: str) -> Mapping[str, Any]:
    """Run a command of `celery sticky abandoned`, and return what it prints."""
    done = CliRunner().invoke(
        sticky, ["abandoned", *(command or ("list",)), "--json"], obj=CLIContext(fleet.app, True, None)
    )
    assert done.exit_code == 0, done.output
    found: Mapping[str, Any] = json.loads(done.output)
    return found


def ids(found: Mapping[str, Any]) -> Sequence[str]:
    return sorted(one["id"] for one in found["messages"])


@pytest.mark.parametrize(
    ("once", "pool"), [("redis", "prefork"), ("sqlite", "threads"), ("postgresql", "threads")], indirect=["once"]
)
def test_what_a_killed_worker_had_begun_is_listed_and_runs_again_only_when_asked(
    once: Callable[..., KeyedFleet], pool: str
) -> None:
    fleet = once(sticky_claim_ahead=1)
    fleet.worker("w1", pool=pool, concurrency=2)
    begun = [send(fleet, "once", f"k{n}", n, 60.0) for n in range(2)]
    wait_until(lambda: len(starts(fleet)) == 2, 60, f"both start\n{fleet}")
    behind = [send(fleet, "once", f"k{n}", n + 10) for n in range(2)]
    fleet.workers["w1"].kill_all()
    fleet.worker("w2", pool=pool, concurrency=2)
    wait_until(lambda: ids(abandoned(fleet)) and len(ends(fleet)) >= 1, 60, f"\n{fleet}")
    wait_until(lambda: len(ids(abandoned(fleet))) + len(ends(fleet)) == 4, 60, f"all are settled\n{fleet}")
    listed = ids(abandoned(fleet))
    assert set(begun) <= set(listed)
    assert len(set(listed) & set(behind)) <= 1, "only what was claimed ahead is lost"
    assert max(starts(fleet).values()) == 1
    assert "is abandoned" in fleet.workers["w2"].log
    told = abandoned(fleet, "retry", "--all")
    assert len(told["retried"]) == len(listed)
    fleet.workers["w2"].kill_all()


def test_a_task_whose_process_dies_is_abandoned_and_the_next_of_its_key_runs(once: Callable[..., KeyedFleet]) -> None:
    fleet = once()
    fleet.worker("w1", pool="prefork", concurrency=1)
    dies = send(fleet, "once", "k", 1, 0.0, "exit")
    send(fleet, "once", "k", 2)
    wait_until(lambda: ends(fleet)["k", 2], 60, f"the next runs\n{fleet}")
    wait_until(lambda: ids(abandoned(fleet)) == [dies], 30)
    assert starts(fleet) == {("k", 1): 1, ("k", 2): 1}
    assert fleet.workers["w1"].stop() == 0


def test_the_caller_of_an_abandoned_task_is_told(crew: Crew, redis_url: str) -> None:
    fleet = crew(result_backend=redis_url, task_ignore_result=False)
    fleet.worker("w1", pool="prefork", concurrency=1)
    result = fleet.app.tasks["once"].apply_async(("k", 1, 0.0, "exit"))
    with pytest.raises((RunAbandoned, NoResult)) as raised:
        result.get(timeout=30)
    assert raised.type is RunAbandoned, fleet


def test_failures_and_retries_end_a_run(once: Callable[..., KeyedFleet]) -> None:
    fleet = once()
    fleet.worker("w1", pool="threads", concurrency=2)
    send(fleet, "once", "k", 1, 0.0, "retry")
    send(fleet, "once", "r", 2, 0.0, "raise")
    send(fleet, "once", "k", 3)
    wait_until(lambda: ends(fleet) == {("k", 1): 2, ("r", 2): 1, ("k", 3): 1}, 60, f"all run\n{fleet}")
    assert fleet.workers["w1"].stop() == 0
    assert abandoned(fleet)["messages"] == []


@pytest.mark.parametrize("task", ["once", "deduplicated"])
def test_a_message_that_is_sent_twice_runs_once(once: Callable[..., KeyedFleet], task: str) -> None:
    """A sender that gets no answer sends again: the broker has the message twice."""
    fleet = once()
    fleet.worker("w1", pool="threads", concurrency=2)
    task_id = send(fleet, task, "k", 1, 0.2)
    send(fleet, task, "k", 1, 0.2, task_id=task_id)
    send(fleet, task, "k", 2)
    wait_until(lambda: ends(fleet)["k", 2], 60, f"the last runs\n{fleet}")
    send(fleet, task, "k", 1, task_id=task_id)
    send(fleet, task, "k", 3)
    wait_until(lambda: ends(fleet)["k", 3], 60, f"the last runs\n{fleet}")
    assert max(starts(fleet).values()) == 1
    assert abandoned(fleet)["messages"] == []


def test_a_warm_stop_leaves_nothing_abandoned(once: Callable[..., KeyedFleet]) -> None:
    fleet = once(sticky_claim_ahead=8)
    fleet.worker("w1", pool="threads", concurrency=1)
    for n in range(12):
        send(fleet, "once", f"k{n}", n, 0.3)
    wait_until(lambda: starts(fleet), 60, f"one starts\n{fleet}")
    assert fleet.workers["w1"].stop() == 0
    fleet.worker("w2", pool="threads", concurrency=4)
    wait_until(lambda: len(ends(fleet)) == 12, 60, f"all run\n{fleet}")
    assert max(starts(fleet).values()) == 1
    assert abandoned(fleet)["messages"] == []
    assert fleet.workers["w2"].stop() == 0


def test_a_deduplicated_task_of_a_killed_worker_runs_again(once: Callable[..., KeyedFleet]) -> None:
    fleet = once()
    fleet.worker("w1", pool="threads", concurrency=1)
    send(fleet, "deduplicated", "k", 1, 5.0)
    wait_until(lambda: starts(fleet), 60, f"it starts\n{fleet}")
    fleet.workers["w1"].kill_all()
    fleet.worker("w2", pool="threads", concurrency=1)
    wait_until(lambda: ends(fleet)["k", 1] == 1, 60, f"it runs again\n{fleet}")
    assert starts(fleet)["k", 1] == 2
