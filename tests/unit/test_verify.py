"""The findings of verify: what it finds in an outcome, what it excuses, and the form in which it says so."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness.outcomes import SECOND, SLOTS, fault, outcome, ran, sent
from rich.console import Console

from celery_sticky.cli.verify.app import ATTEMPTS
from celery_sticky.cli.verify.checker import Findings, reach
from celery_sticky.cli.verify.outcome import VerifyRun
from celery_sticky.cli.verify.picture import paint, spells
from celery_sticky.cli.verify.report import draw, facts
from celery_sticky.cli.verify.site import node
from celery_sticky.cli.verify.timeline import EVERYBODY, Done, Frozen
from celery_sticky.ownership import changes
from celery_sticky.ownership.view import Member, View
from celery_sticky.testing.history import Event, Kind
from celery_sticky.testing.slot_log import SlotEvent


def findings(*groups: Sequence[Event], **options: Any) -> Findings:
    return reach(outcome(*groups, **options))


GOOD = ([sent(0), sent(1)], ran(0, 1, 2), ran(1, 2, 3))


def test_a_run_in_which_all_is_well_is_clean() -> None:
    found = findings(*GOOD)
    assert found.ok and found.accusations() == []
    assert found.figures() == {
        "tasks": 2,
        "lost": 0,
        "forgotten": 0,
        "overlaps": 0,
        "zombie_overlaps": 0,
        "zombie_starts": 0,
        "out_of_order": 0,
        "stale_epoch": 0,
        "stuck": 0,
        "duplicates": {},
        "jobs": None,
        "placed": None,
    }


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ("lost", findings([sent(0)])),
        ("stuck", findings([sent(0)], stuck=["k1-0"])),
        ("overlaps", findings([sent(0), sent(1)], ran(0, 1, 3), ran(1, 2, 4))),
        ("out_of_order", findings([sent(0), sent(1)], ran(1, 1, 2), ran(0, 3, 4))),
        ("stale_epoch", findings([sent(0), sent(1)], ran(0, 1, 2, epoch=2), ran(1, 3, 4, epoch=1))),
        ("stale_epoch", findings([sent(0), sent(1)], ran(0, 1, 2), ran(1, 3, 4, worker="w2"))),
    ],
)
def test_a_broken_promise_is_found(what: str, found: Findings) -> None:
    assert not found.ok and found.accusations()
    figures = found.figures()
    assert figures.pop(what) == 1
    assert {value for name, value in figures.items() if name not in ("tasks", "duplicates", "jobs", "placed")} == {0}


def test_what_the_broker_forgot_is_no_loss_of_ours() -> None:
    went_back = replace(fault("broker-rollback", 0.5, 9, EVERYBODY), forgot_until=2 * SECOND)
    found = findings([sent(0, at=1)], done=[went_back])
    assert found.ok and found.figures()["forgotten"] == 1
    for at in (0.4, 2.5):
        assert findings([sent(0, at=at)], done=[went_back]).figures()["lost"] == 1, (
            "it was in the copy, or came after it"
        )
    assert not findings([sent(0, at=1)], done=[went_back], stuck=["k1-0"]).ok, "the broker has it, and it was not run"


def test_a_worker_that_ends_by_itself_is_told() -> None:
    assert not findings(*GOOD, crashes=["w1 ended with 1"]).ok


# -- runs again ----------------------------------------------------------------------------------

AGAIN = ([sent(0)], ran(0, 1, None), ran(0, 6, 7, worker="w2", pid=20, epoch=2))


@pytest.mark.parametrize(
    ("cause", "done"),
    [
        ("kill", fault("kill", 2, 6, "w1")),
        ("broker-freeze", fault("broker-freeze", 2, 6, EVERYBODY)),
        ("unexplained", fault("kill", 2, 6, "w3")),
        ("unexplained", fault("kill", 0.2, 0.5, "w1")),
        ("unexplained", fault("join", 2, 6)),
    ],
)
def test_a_run_again_has_the_fault_of_its_worker_as_its_cause(cause: str, done: Done) -> None:
    found = findings(*AGAIN, done=[done])
    assert found.duplicates == {cause: 1}
    assert found.ok == (cause != "unexplained")


def test_a_run_that_ended_well_before_the_fault_is_not_excused_by_it() -> None:
    runs = ([sent(0)], ran(0, 1, 2), ran(0, 9, 10, worker="w2", pid=20, epoch=2))
    assert findings(*runs, done=[fault("kill", 2.5, 9, "w1")]).duplicates == {"kill": 1}, "not acknowledged yet"
    assert findings(*runs, done=[fault("kill", 4, 9, "w1")]).duplicates == {"unexplained": 1}


def test_a_retry_that_was_asked_for_is_no_run_again() -> None:
    tries = ran(0, 1, 2, key="retry1", finished=False), ran(0, 3, 4, key="retry1")
    assert findings([sent(0, key="retry1")], *tries).duplicates == {}
    assert not findings([sent(0, key="retry1")], *tries, ran(0, 5, 6, key="retry1")).ok


def test_poison_is_accounted_for_in_the_dead_queue_only() -> None:
    tries = [event for at in range(1, ATTEMPTS + 1) for event in ran(0, at, None, key="oom1", pid=at)]
    assert findings([sent(0, key="oom1")], tries, buried=["oom1-0"]).ok
    found = findings([sent(0, key="oom1")], tries)
    assert not found.ok and found.not_buried == ("oom1",) and found.duplicates == {"poison": ATTEMPTS - 1}


def test_a_task_that_is_dead_without_having_run_is_lost() -> None:
    found = findings([sent(0)], ran(0, 1, None), buried=["k1-0"])
    assert not found.ok and found.figures()["lost"] == 1
    assert "buried without enough starts" in found.accusations()[0]


# -- zombies -------------------------------------------------------------------------------------

FROZEN = Frozen("w1", frozenset({10}), 2 * SECOND, 7 * SECOND)
ZOMBIE = ([sent(0), sent(1)], ran(0, 1, 7.1), ran(1, 6, 6.5, worker="w2", pid=20, epoch=2))


def test_the_overlap_of_a_process_that_was_frozen_in_its_task_is_reported_apart_with_both_epochs() -> None:
    found = findings(*ZOMBIE, frozen=[FROZEN])
    assert found.ok and found.figures()["zombie_overlaps"] == 1
    (line,) = found.zombie_lines()
    assert "epoch 1" in line and "epoch 2" in line


@pytest.mark.parametrize(
    "frozen",
    [replace(FROZEN, pids=frozenset({11})), replace(FROZEN, since=8 * SECOND, until=9 * SECOND)],
    ids=["another process", "at another time"],
)
def test_an_overlap_without_a_frozen_process_is_a_broken_promise(frozen: Frozen) -> None:
    assert len(findings(*ZOMBIE, frozen=[frozen]).overlaps) == 1


def test_an_overlap_that_no_token_would_fence_is_a_broken_promise_even_of_a_frozen_process() -> None:
    same = (ZOMBIE[0], ZOMBIE[1], ran(1, 6, 6.5, worker="w2", pid=20, epoch=1))
    assert len(findings(*same, frozen=[FROZEN]).overlaps) == 1


ELSEWHERE = ([sent(0), sent(1), sent(2)], ran(0, 1, 1.5), ran(1, 6, 6.5, worker="w2", pid=20, epoch=2))


def test_what_a_process_that_was_frozen_on_its_way_into_a_task_begins_is_reported_apart() -> None:
    found = findings(*ELSEWHERE, ran(1, 7.1, 7.2), ran(2, 8, 9, worker="w2", pid=20, epoch=2), frozen=[FROZEN])
    assert found.figures()["zombie_starts"] == 1 and not found.stale
    (line,) = found.zombie_lines()
    assert "epoch 1" in line and "after epoch 2" in line
    overlapping = findings(*ELSEWHERE, ran(1, 7.1, 7.2), ran(2, 7.15, 9, worker="w2", pid=20, epoch=2), frozen=[FROZEN])
    assert not overlapping.overlaps and len(overlapping.zombies) == 1


@pytest.mark.parametrize(
    "late",
    [ran(1, 7.1, 7.2, pid=11), ran(1, 9, 9.1), [*ran(1, 7.05, 7.06, epoch=3), *ran(1, 7.1, 7.2)]],
    ids=["another process", "long after its thaw", "its second start"],
)
def test_another_start_under_a_stale_epoch_is_a_broken_promise(late: Sequence[Event]) -> None:
    found = findings(*ELSEWHERE, late, ran(2, 10, 11, worker="w2", pid=20, epoch=3), frozen=[FROZEN])
    assert len(found.stale) == 1 and not found.zombie_starts


# -- order ---------------------------------------------------------------------------------------


def test_tasks_that_take_their_place_when_due_are_not_checked_for_order() -> None:
    swapped = [sent(0, key="eta1"), sent(1, key="eta1")], ran(1, 1, 2, key="eta1"), ran(0, 3, 4, key="eta1")
    assert findings(*swapped).ok


def test_two_senders_are_in_order_where_one_sent_after_the_broker_had_accepted_the_other() -> None:
    first, second = sent(1, 0.0, sender=1), sent(0, 0.5, sender=0)
    assert not findings([first, second], ran(0, 1, 2), ran(1, 3, 4)).ok
    at_once = replace(second, sent=first.at - 1)
    assert findings([first, at_once], ran(0, 1, 2), ran(1, 3, 4)).ok


def test_nothing_is_said_of_a_task_of_which_the_sender_does_not_know_whether_it_was_accepted() -> None:
    unsure = sent(0, kind=Kind.UNSURE)
    assert findings([unsure, sent(1)], ran(1, 1, 2), ran(0, 3, 4)).ok
    assert findings([unsure, sent(1)], ran(1, 1, 2)).ok


# -- the report ----------------------------------------------------------------------------------


def views() -> tuple[View, View]:
    before = changes.fresh(slots=SLOTS, hash="h", generation=1, version=1, store_id="s")
    for name in ("w1", "w2"):
        before = changes.join(before, Member(node(name), name))
        for member in before.members:
            before = changes.release(before, member, before.giving(member))
    return before, changes.evict(before, node("w1"))


def whole() -> VerifyRun:
    before, after = views()
    mine = sorted(before.owned_by(node("w1")))
    log = [
        *(SlotEvent("gained", str(before.owner[slot]), slot, 0) for slot in range(SLOTS)),
        *(SlotEvent("gained", node("w2"), slot, 5 * SECOND) for slot in mine),
    ]
    killed = fault("kill", 2, 6, "w1", before=before, after=after)
    return outcome(*GOOD, done=[killed], slot_events=log)


def test_the_json_has_the_form_that_is_documented() -> None:
    one = whole()
    found = json.loads(json.dumps(facts(one, reach(one))))
    assert {"findings", "figures", "faults", "seed", "versions"} <= set(found)
    figures = found["figures"]
    assert figures["takeover_seconds"] == {"p50": 3.0, "p99": 3.0, "max": 3.0}
    assert figures["moved_share"] == figures["moved_minimum"] == 0.5
    assert figures["throughput"] == 2.0 and figures["latency_seconds"]["p50"] is not None
    assert figures["handover_seconds"] == {"p50": None, "p99": None}
    assert found["faults"][0]["fault"] == "kill" and (found["faults"][0]["at"], found["faults"][0]["until"]) == (2, 6)
    assert found["faults_left_out"] == {"clock": "libfaketime is not installed"}


@pytest.mark.parametrize("one", [whole(), outcome([sent(0)]), outcome(*ZOMBIE, frozen=[FROZEN])])
def test_the_tables_say_what_was_found_and_what_was_left_out(one: VerifyRun) -> None:
    found = facts(one, reach(one))
    console = Console(file=io.StringIO(), width=100)
    for part in draw(found):
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert ("clean" in shown) == found["ok"] and ("✗" in shown) == (not found["ok"])
    assert "left out: clock: libfaketime is not installed" in shown and "not checked for order" in shown
    assert ("zombie: k1 #0" in shown) == bool(found["zombies"])


def test_a_slot_of_a_killed_worker_is_with_nobody_until_its_next_owner_opens_it() -> None:
    drawn = sorted(spells(whole()))
    slots = {slot for _, slot, *_ in drawn}
    assert slots == set(range(SLOTS))
    (gone, *_) = [spell for spell in drawn if spell[0] == "w1"]
    (successor,) = [spell for spell in drawn if spell[:2] == ("w2", gone[1])]
    assert gone[2:] == (0.0, 2.0) and successor[2:] == (5.0, 5.0)


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_picture_is_painted(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"slots{suffix}"
    paint(whole(), file)
    assert file.stat().st_size > 1000
