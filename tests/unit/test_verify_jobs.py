"""The findings of verify on jobs: each broken promise in a made-up history, and what faults excuse."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import pytest
from harness.outcomes import SECOND, fault, outcome, ran, sent
from rich.console import Console

from celery_sticky.cli.verify.checker import reach
from celery_sticky.cli.verify.job_checker import JobFindings, reach_of_jobs
from celery_sticky.cli.verify.observer import all_ran_at
from celery_sticky.cli.verify.report import draw, facts
from celery_sticky.cli.verify.site import node
from celery_sticky.cli.verify.timeline import EVERYBODY, Done, Frozen
from celery_sticky.testing.history import Event, Kind
from celery_sticky.testing.slot_log import SlotEvent

END = 30.0
KILL = fault("kill", 5, 11, "w1")


def want(at: float = 0.0, job: str = "j1-0") -> Event:
    return Event(kind=Kind.PUBLISHED, key="j1", n=0, task_id=job, at=int(at * SECOND))


def withdraw(at: float, job: str = "j1-0") -> Event:
    return Event(kind=Kind.WITHDRAWN, key="j1", n=0, task_id=job, at=int(at * SECOND))


def alive(at: float, pid: int = 10, waited: float = 0.0) -> Event:
    since_its_start = int(waited * SECOND)
    return Event(kind=Kind.ALIVE, key="", n=0, task_id="", at=int(at * SECOND), pid=pid, waited=since_its_start)


def runs(n: int, since: float, until: float | None = END + 1, **options: Any) -> list[Event]:
    """Return a run of the dispatch `j1-n`."""
    return ran(n, since, until, key="j1", **options)


def moved(at: float, *workers: str) -> list[SlotEvent]:
    return [SlotEvent("gained", node(worker), 0, int(at * SECOND)) for worker in workers]


def judged(*groups: Sequence[Event], done: Sequence[Done] = (), **options: Any) -> JobFindings:
    events = [event for group in groups for event in group]
    found = reach_of_jobs(outcome(job_events=events, done=done, jobs_seen=END, **options))
    assert found is not None
    return found


TAKEOVER = (runs(0, 0.1, None), [alive(5.0)], runs(0, 9.2, worker="w2", pid=20, epoch=2))


def test_a_job_that_runs_all_the_time_is_well() -> None:
    found = judged([want()], runs(0, 0.1))
    assert found.ok and found.accusations() == []
    assert found.findings() == {
        "wanted": 1,
        "overlaps": 0,
        "zombie_overlaps": 0,
        "stale_epoch": 0,
        "late": 0,
        "lost": 0,
        "needless_starts": 0,
        "notes_lost": 0,
        "bad_unseen": 0,
        "bad_left": 0,
    }
    assert found.figures()["not_running_seconds"] == {"dispatch": {"count": 1, "p50": 0.1, "p99": 0.1, "max": 0.1}}


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ("overlaps", judged([want()], runs(0, 0, 9.5), runs(0, 9.2, worker="w2", pid=20, epoch=2), done=[KILL])),
        ("late", judged([want()], runs(0, 0, 5), runs(0, 11, worker="w2", pid=20, epoch=2), done=[KILL])),
        ("late", judged([want()], runs(0, 6))),
        ("lost", judged([want()], runs(0, 0, 29), done=[fault("kill", 28, END, "w1")])),
        ("lost", judged([want()])),
        ("stale_epoch", judged([want()], runs(0, 0, 5, epoch=2), runs(0, 9, worker="w2", pid=20), done=[KILL])),
        ("stale_epoch", judged([want()], runs(0, 0, 5), runs(0, 9, worker="w2", pid=20), done=[KILL])),
        ("needless_starts", judged([want()], runs(0, 0, 5), runs(0, 5.2, epoch=2))),
        ("needless_starts", judged([want()], runs(0, 0, 5), runs(0, 5.2, pid=11), done=[fault("kill", 5, 9, "w3")])),
        ("needless_starts", judged([want()], runs(0, 0, 5), runs(0, 5.2, worker="w2", pid=20, epoch=2))),
    ],
)
def test_a_broken_promise_is_found(what: str, found: JobFindings) -> None:
    figures = found.findings()
    assert figures.pop(what) == 1 and figures.pop("wanted") == 1
    assert set(figures.values()) == {0}
    assert not found.ok and len(found.accusations()) == 1


def test_a_takeover_is_timed_from_the_last_sign_of_life_and_has_its_cause() -> None:
    found = judged([want()], *TAKEOVER, done=[KILL])
    assert found.ok
    assert found.figures()["not_running_seconds"]["kill"] == {"count": 1, "p50": 4.2, "p99": 4.2, "max": 4.2}
    assert (found.figures()["starts"], found.figures()["starts_minimum"]) == (2, 2)


def test_a_gap_without_a_fault_is_unexplained() -> None:
    assert "unexplained" in judged([want()], *TAKEOVER).figures()["not_running_seconds"]


def test_what_starts_while_the_workers_are_ended_is_not_counted() -> None:
    found = judged([want()], runs(0, 0, END + 0.5), runs(0, END + 0.6, END + 1, worker="w2", pid=20, epoch=2))
    assert found.ok and found.starts == 1


def last_seen(*groups: Sequence[Event], ids: Sequence[str] = ("j1-0",)) -> float:
    return all_ran_at([event for group in groups for event in group], ids) / SECOND


def test_a_job_runs_until_its_end_or_another_run_as_far_as_signs_of_life_prove_it() -> None:
    first, second = runs(0, 0, 5), runs(0, 6, None, pid=20)
    assert last_seen([want(), first[0], alive(4)]) == 4
    assert last_seen([want(), first[0]]) == 0, "its process may have died at once"
    assert last_seen([want(), alive(4)], first) == 0
    assert last_seen(second, first, [alive(7), alive(4)]) == 0, "of the old process"
    assert last_seen(second, [alive(5, 20)]) == 0, "of the time before the start"
    overlapping = runs(0, 0, 7)
    assert last_seen(overlapping, second, [alive(8, 20)]) == 8, "a zombie's end does not end the newer run"
    assert last_seen([first[0], alive(4)], runs(1, 1, None, pid=20), [alive(3, 20)], ids=["j1-0", "j1-1"]) == 3
    assert last_seen([first[0], alive(4)], ids=["j1-0", "j1-1"]) == 0


def test_a_process_that_dies_right_after_the_last_look_at_its_jobs_loses_none() -> None:
    events = [want(), *runs(0, 0.1, None), alive(END - 0.1), alive(END)]
    seen = last_seen(events)
    found = reach_of_jobs(outcome(job_events=events, jobs_seen=seen))
    assert found is not None and found.ok and seen == END


def test_a_job_may_be_missing_while_a_server_is() -> None:
    gap = ([want()], runs(0, 0, 5), runs(0, 16, worker="w2", pid=20, epoch=2))
    assert judged(*gap, done=[fault("broker-freeze", 4, 12, EVERYBODY)]).ok
    assert len(judged(*gap, done=[fault("broker-freeze", 4, 6, EVERYBODY)]).late) == 1


def test_a_job_that_is_wanted_no_more_need_not_run_and_its_next_dispatch_must() -> None:
    first = [want(), withdraw(10)], runs(0, 0, 10.1)
    assert judged(*first).ok
    again = judged(*first, [want(10.05, "j1-1")], runs(1, 10.3))
    assert again.ok and again.findings()["wanted"] == 2
    assert len(judged(*first, [want(10.05, "j1-1")]).lost) == 1
    assert len(judged([want(), withdraw(10)], runs(0, 0, 10.4), [want(10.05, "j1-1")], runs(1, 10.3)).overlaps) == 1


def test_a_slot_that_was_elsewhere_for_a_moment_explains_a_start() -> None:
    back = ([want()], runs(0, 0, 5), runs(0, 5.2, epoch=2))
    change = fault("rolling", 4, 9)
    assert judged(*back, done=[change], slot_events=moved(5.1, "w2", "w1")).ok
    assert not judged(*back, done=[change], slot_events=moved(5.1, "w1")).ok
    assert not judged(*back, slot_events=moved(5.1, "w2", "w1")).ok, "there was no reason to move it"


def test_a_slot_whose_owner_changed_twice_explains_a_start_though_the_other_one_never_opened_it() -> None:
    change = fault("rolling", 4, 9)
    for epoch, explained in ((2, False), (3, True)):
        back = ([want()], runs(0, 0, 5), runs(0, 5.2, epoch=epoch))
        assert judged(*back, done=[change]).ok is explained
        assert not judged(*back).ok, "there was no reason to move it"


# -- a busy machine ------------------------------------------------------------------------------

LATE = ([want()], runs(0, 0, 5), runs(0, 12, worker="w2", pid=20, epoch=2))
"""A job that did not run for 7 s, where 5.8 s are allowed."""


def test_what_the_process_of_a_job_waits_for_a_cpu_does_not_count() -> None:
    waits = [alive(8, 20), alive(12, 20, 1.3)]
    found = judged(*LATE, waits, done=[KILL])
    assert found.ok and found.figures()["waited_for_cpu_seconds"] == 1.3
    assert found.figures()["not_running_seconds"]["kill"]["max"] == 7.0, "it did not run all the same"


@pytest.mark.parametrize(
    "waits",
    [
        [alive(8, 20), alive(12, 20, 1.0)],
        [alive(1, 20), alive(4, 20, 3.0), alive(12, 20, 3.0)],
        [alive(8, 30), alive(12, 30, 3.0)],
        [alive(8, 20), alive(12, 20, 0.1), alive(15, 20, 3.0)],
        [alive(8, 20)],
    ],
    ids=["too little", "before", "another process", "afterwards", "not known"],
)
def test_a_job_that_is_late_is_found_whatever_else_waited_for_a_cpu(waits: list[Event]) -> None:
    assert len(judged(*LATE, waits, done=[KILL]).late) == 1


def test_the_last_sign_of_a_process_that_died_at_once_tells_what_it_waited() -> None:
    assert judged(*LATE, [alive(8, 20), alive(11.9, 20, 1.3)], done=[KILL]).ok


def test_the_report_tells_how_much_of_a_late_job_the_machine_explains() -> None:
    (line,) = judged(*LATE, [alive(8, 20), alive(12, 20, 0.5)], done=[KILL]).accusations()
    assert line.endswith("6.50 s count without 0.50 s in which its process waited for a CPU, 5.8 s are allowed")


# -- zombies -------------------------------------------------------------------------------------

FROZEN = Frozen("w1", frozenset({10}), 5 * SECOND, 10 * SECOND)
STOP = fault("stop", 5, 11, "w1")


def test_a_job_in_a_frozen_process_does_not_run_and_is_a_zombie_when_it_goes_on() -> None:
    zombie = ([want()], runs(0, 0, 10.1), runs(0, 9, worker="w2", pid=20, epoch=2))
    found = judged(*zombie, frozen=[FROZEN], done=[STOP])
    assert found.ok and found.findings()["zombie_overlaps"] == 1
    assert found.figures()["not_running_seconds"]["stop"]["max"] == 4.0
    (line,) = found.zombie_lines()
    assert "epoch 1" in line and "epoch 2" in line
    assert not judged(*zombie, done=[STOP]).ok, "it was not frozen"


# -- the report ----------------------------------------------------------------------------------


@pytest.mark.parametrize("events", [[want()], [want(), *runs(0, 0.1)]])
def test_jobs_stand_in_the_json_and_in_the_tables_and_count_for_the_exit_status(events: list[Event]) -> None:
    one = outcome([sent(0)], ran(0, 1, 2), job_events=events, jobs_seen=END)
    findings = reach(one)
    found = json.loads(json.dumps(facts(one, findings)))
    assert found["ok"] == findings.ok == (len(events) > 1)
    assert found["findings"]["jobs"]["lost"] == (not findings.ok)
    assert found["figures"]["jobs"]["limit_seconds"] == 5.8
    console = Console(file=io.StringIO(), width=100)
    for part in draw(found):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "job lost" in shown and "job needless starts" in shown and "dispatch" in shown
    assert ("j1 (j1-0) did not run" in shown) == (not findings.ok)


def test_a_run_without_jobs_says_nothing_of_them() -> None:
    assert reach_of_jobs(outcome([sent(0)])) is None
