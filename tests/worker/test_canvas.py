"""Canvas with keyed tasks: each of them goes to the slot of its own key, wherever it is sent from."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from celery import chain, chord, group
from harness.kinds import KindsFleet

from celery_sticky import InvalidKey
from celery_sticky.testing.waiting import wait_until


@pytest.fixture(scope="module")
def workers(shared_kinds: Callable[..., KindsFleet]) -> Iterator[KindsFleet]:
    """Two workers, so that the tasks of most canvases run in both."""
    fleet = shared_kinds()
    fleet.worker("w1")
    fleet.worker("w2", pool="threads")
    yield fleet
    assert fleet.dead() == []


@pytest.mark.smoke
def test_a_chain_goes_from_key_to_key_with_the_results(workers: KindsFleet, key: str) -> None:
    add = workers.app.tasks["add"]
    steps = chain(add.s(1, 1, key=f"{key}-{n}") if n == 0 else add.s(1, key=f"{key}-{n}") for n in range(6))
    assert steps.apply_async().get(timeout=30) == 7


def test_a_chain_of_one_key_runs_in_its_order(workers: KindsFleet, key: str) -> None:
    record = workers.app.tasks["record"]
    chain(record.si(key, n) for n in range(5)).apply_async().get(timeout=30)
    assert workers.runs(key) == [0, 1, 2, 3, 4]


def test_a_chain_ends_where_a_task_of_it_fails(workers: KindsFleet, key: str) -> None:
    tasks = workers.app.tasks
    result = chain(tasks["fails"].si(key, 1), tasks["record"].si(key, 2)).apply_async()
    wait_until(lambda: result.parent.state == "FAILURE", timeout=30)
    workers.send(key, 3).get(timeout=30)
    assert workers.runs(key) == [1, 3]


def test_a_group_runs_all_over_the_keys_and_brings_every_result(workers: KindsFleet, key: str) -> None:
    add = workers.app.tasks["add"]
    result = group(add.s(n, n, key=f"{key}-{n % 5}") for n in range(20)).apply_async()
    assert result.get(timeout=30) == [2 * n for n in range(20)]


def test_a_group_of_one_key_runs_one_at_a_time_in_order(workers: KindsFleet, key: str) -> None:
    record = workers.app.tasks["record"]
    for n in range(6):
        workers.history.published(key, n, str(n))
    group(record.s(key, n, 0.02) for n in range(6)).apply_async().get(timeout=30)
    assert workers.runs(key) == [0, 1, 2, 3, 4, 5]
    assert workers.judge().overlaps == ()


@pytest.mark.smoke
def test_a_chord_gives_all_results_to_a_keyed_body(workers: KindsFleet, key: str) -> None:
    tasks = workers.app.tasks
    header = [tasks["add"].s(n, 1, key=f"{key}-{n % 4}") for n in range(12)]
    assert chord(header)(tasks["total"].s(key=key)).get(timeout=30) == sum(range(12)) + 12


def test_a_chord_may_have_the_key_of_its_own_header(workers: KindsFleet, key: str) -> None:
    tasks = workers.app.tasks
    header = [tasks["add"].s(n, key=key) for n in range(5)]
    assert chord(header)(tasks["total"].s(key=key)).get(timeout=30) == 10


def test_a_chord_whose_header_fails_does_not_run_its_body(workers: KindsFleet, key: str) -> None:
    tasks = workers.app.tasks
    result = chord([tasks["add"].s(1, key=key), tasks["fails"].s(key)])(tasks["total"].s(key=key))
    with pytest.raises(Exception, match=key):
        result.get(timeout=30)


def test_a_chord_inside_a_chain_mixes_keyed_and_unkeyed_tasks(workers: KindsFleet, key: str) -> None:
    tasks = workers.app.tasks
    made = chain(
        tasks["plain"].s(5),
        group(tasks["add"].s(n, key=f"{key}-{n}") for n in range(4)),
        tasks["total"].s(key=key),
        tasks["collect"].s(),
    )
    assert made.apply_async().get(timeout=30) == 26


def test_a_map_of_one_key_is_one_message_and_runs_under_that_key(workers: KindsFleet, key: str) -> None:
    made = workers.app.tasks["record"].starmap([(key, n, 0.05) for n in range(4)]).apply_async()
    workers.send(key, 4).get(timeout=30)
    assert made.get(timeout=30) == [0, 1, 2, 3]
    assert workers.runs(key) == [0, 1, 2, 3, 4]
    assert workers.judge().overlaps == ()
    ran_in = {event.pid for event in workers.starts(key)}
    assert any(ran_in <= set(worker.processes) for worker in workers.workers.values())


def test_chunks_of_one_key_run_and_those_of_several_are_refused_at_the_caller(workers: KindsFleet, key: str) -> None:
    record = workers.app.tasks["record"]
    made = record.chunks(((key, n) for n in range(6)), 3)
    assert made.apply_async().get(timeout=30) == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(InvalidKey, match="use a group"):
        record.starmap([(f"{key}-a", 1), (f"{key}-b", 2)]).apply_async()


def test_a_task_may_be_replaced_by_one_of_another_key(workers: KindsFleet, key: str) -> None:
    assert workers.call("replaced", key, f"{key}-other").get(timeout=30) == 23
    workers.send(key, 1).get(timeout=30)


def test_a_task_may_be_replaced_by_one_of_its_own_key(workers: KindsFleet, key: str) -> None:
    assert workers.call("replaced", key, key).get(timeout=30) == 23


def test_a_task_may_add_to_the_chord_it_is_in(workers: KindsFleet, key: str) -> None:
    tasks = workers.app.tasks
    header = [tasks["extends"].s(key), tasks["add"].s(10, key=key)]
    assert chord(header)(tasks["total"].s(key=key)).get(timeout=30) == 111


def test_the_links_of_a_task_go_to_their_own_keys(workers: KindsFleet, key: str) -> None:
    tasks = workers.app.tasks
    links = [tasks["record"].si(f"{key}-{n}", n) for n in range(2)]
    tasks["add"].apply_async((1, 2), {"key": key}, link=links).get(timeout=30)
    wait_until(lambda: [workers.runs(f"{key}-{n}") for n in range(2)] == [[0], [1]], timeout=30)


def test_the_error_link_of_a_task_goes_to_its_own_key(workers: KindsFleet, key: str) -> None:
    workers.call("fails", key, 1, link_error=workers.app.tasks["errback"].s(key=f"{key}-err"))
    wait_until(lambda: workers.runs(f"{key}-err") == [0], timeout=30)


def test_stamps_come_along_from_key_to_key(workers: KindsFleet, key: str) -> None:
    tasks = workers.app.tasks
    made = chain(tasks["add"].si(1, 1, key=key), tasks["flaky"].si(f"{key}-2", 1, 0))
    made.stamp(color="red")
    assert "red" in str(made.apply_async().get(timeout=30)["stamps"]["color"])


def test_a_task_sent_by_a_task_goes_to_its_own_key(workers: KindsFleet, key: str) -> None:
    workers.call("relay", "record", [key, 7]).get(timeout=30)
    wait_until(lambda: workers.runs(key) == [7], timeout=30)
