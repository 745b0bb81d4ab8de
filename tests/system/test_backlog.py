"""The acceptance: two workers, a backlog over many keys, and one fault in the middle of it.

Each time: nothing is lost, no key overlaps or runs out of order, only the slots that must move do, those that stay see
no pause, and a dead worker's slots are open elsewhere within `ttl + margin` and half a second. `STICKY_TEST_TASKS` and
`STICKY_TEST_KEYS` make it larger; what was measured is printed (`pytest -s`).

Guards: Trust, Eviction, refused fences, in-flight messages back to the front in order, forget what is not started.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from harness.keyed_fleet import SLOTS, TIMEOUT, KeyedFleet, node

from celery_sticky.testing.history import Kind
from celery_sticky.testing.judge import Judgement, takeovers
from celery_sticky.testing.measure import (
    SECOND,
    changed_owner,
    figures,
    handovers,
    longest_pause,
    opened_after,
    steps_back,
)
from celery_sticky.testing.waiting import wait_until

TASKS = int(os.environ.get("STICKY_TEST_TASKS", "2400"))
KEYS = int(os.environ.get("STICKY_TEST_KEYS", "200"))
SECONDS = 0.004
LOADED = float(os.environ.get("STICKY_TEST_SLACK", "2.0"))
"""Seconds a loaded machine may add to what the protocol bounds."""


def tell(text: str) -> None:
    """Write a figure down; it is seen with `pytest -s`."""
    sys.stdout.write(f"{text}\n")


def backlog(crew: Callable[..., KeyedFleet], **settings: object) -> KeyedFleet:
    fleet = crew(**settings)
    fleet.workers_up("a", "b")
    fleet.publish_many(TASKS // 2, KEYS, SECONDS)
    return fleet


def finish(fleet: KeyedFleet) -> Judgement:
    """Publish the other half, wait until everything has run, and say what is to be said of it."""
    fleet.publish_many(TASKS - TASKS // 2, KEYS, SECONDS)
    fleet.wait_ended(TASKS, timeout=100)
    fleet.wait_finished()
    judged = fleet.judge()
    tell("\n" + judged.describe())
    return judged


def says_all_is_well(fleet: KeyedFleet, judged: Judgement) -> None:
    assert judged.ok, judged.describe()
    assert not steps_back(fleet.events()), "a key went on before the broker had confirmed what it had done"


def says_no_pause(fleet: KeyedFleet, slots: set[int], since: int) -> None:
    """The slots that did not move went on while they had something to do."""
    events = [e for e in fleet.events() if e.slot in slots]
    until = min(max(e.at for e in events), since + int((TIMEOUT + 1) * SECOND))
    pause = longest_pause(events, slots, since, until)
    tell(f"longest pause of {len(slots)} slots that stay: {pause * 1000:.0f} ms")
    assert pause < LOADED


def says_takeover(fleet: KeyedFleet, slots: set[int], since: int) -> None:
    opened = opened_after(fleet.slot_events(), since, slots)
    first_runs = takeovers(fleet.events(), node("a"), since).values()
    tell(f"slots open elsewhere: {figures(opened.values())}; first task: {figures(t / SECOND for t in first_runs)}")
    assert set(opened) == slots
    assert max(opened.values()) <= TIMEOUT + 0.5 + LOADED


def test_a_killed_worker_is_taken_over_and_nothing_is_lost(crew: Callable[..., KeyedFleet]) -> None:
    fleet = backlog(crew)
    before = fleet.wait_members("a", "b")
    dead, alive = before.owned_by(node("a")), before.owned_by(node("b"))
    since = time.monotonic_ns()
    fleet.workers["a"].kill()
    fleet.workers["a"].wait_gone()
    says_all_is_well(fleet, finish(fleet))
    says_takeover(fleet, set(dead), since)
    says_no_pause(fleet, set(alive), since)
    assert changed_owner(fleet.observer.since(since)) == dead


def test_a_worker_told_to_stop_hands_over_at_once(crew: Callable[..., KeyedFleet]) -> None:
    fleet = backlog(crew)
    before = fleet.wait_members("a", "b")
    leaving, alive = before.owned_by(node("a")), before.owned_by(node("b"))
    since = time.monotonic_ns()
    fleet.workers["a"].kill(signal.SIGTERM)
    says_all_is_well(fleet, finish(fleet))
    assert fleet.workers["a"].wait() == 0
    gaps = handovers(fleet.slot_events())
    tell(f"handover under load: {figures(gaps)}")
    assert len(gaps) >= len(leaving)
    opened = opened_after(fleet.slot_events(), since, leaving)
    tell(f"from SIGTERM to open elsewhere: {figures(opened.values())}")
    assert max(opened.values()) < TIMEOUT, "it waited for the lease"
    says_no_pause(fleet, set(alive), since)
    assert changed_owner(fleet.observer.since(since)) == leaving
    assert not fleet.judge().duplicates, "a warm shutdown runs nothing twice"


def test_a_worker_frozen_past_its_lease_comes_back_without_harm(crew: Callable[..., KeyedFleet]) -> None:
    fleet = backlog(crew)
    before = fleet.wait_members("a", "b")
    frozen = before.owned_by(node("a"))
    since = time.monotonic_ns()
    fleet.workers["a"].freeze()
    still = time.monotonic_ns()
    fleet.publish_many(KEYS, KEYS, SECONDS)  # so that something waits in its slots, however fast it has been
    fleet.wait_members("b")
    wait_until(lambda: takeovers(fleet.events(), node("a"), since), 60, "b runs what a has left", 0.2)
    thawed = time.monotonic_ns()
    fleet.workers["a"].thaw()
    judged = finish(fleet)
    # The documented limit: a process that was frozen inside a task, or on its way into it, may do a little more of it
    # when it is thawed.
    starts = [e for e in fleet.events() if e.kind is Kind.START and e.worker == node("a") and e.at > thawed]
    ran = [e for e in starts if e.epoch is not None and e.slot is not None and e.epoch > before.epoch[e.slot]]
    late = [e for e in starts if e not in ran and e.at < thawed + LOADED * SECOND]
    zombies = [o for o in judged.overlaps if o.first.start.at < still and o.first.until < thawed + LOADED * SECOND]
    zombies += [o for o in judged.overlaps if o not in zombies and (o.first.start in late or o.second.start in late)]
    stale = tuple(s for s in judged.stale if s.start not in late)
    others = tuple(o for o in judged.overlaps if o not in zombies)
    says_all_is_well(fleet, replace(judged, overlaps=others, stale=stale))
    assert all(e in late or e in ran for e in starts), "under its old epochs it starts nothing later"
    doubtful = [o.first.start for o in zombies] + late
    assert len({e.pid for e in doubtful}) <= 2 and len(late) <= 2, "no more than one for each process of its pool"
    fleet.wait_members("a", "b")
    says_takeover(fleet, set(frozen), since)


def test_a_worker_that_joins_takes_its_share_and_no_more(crew: Callable[..., KeyedFleet]) -> None:
    fleet = backlog(crew)
    fleet.wait_members("a", "b")
    since = time.monotonic_ns()
    fleet.worker("c", ready=False)
    says_all_is_well(fleet, finish(fleet))
    after = fleet.wait_members("a", "b", "c")
    moved = changed_owner(fleet.observer.since(since))
    tell(f"moved {len(moved)} of {SLOTS}, the least is {SLOTS // 3}; handover under load: "
          f"{figures(handovers(fleet.slot_events()))}")  # fmt: skip
    assert moved == after.owned_by(node("c")) and len(moved) == SLOTS // 3
    says_no_pause(fleet, set(range(SLOTS)) - moved, since)
    assert not fleet.judge().duplicates, "a handover between the living runs nothing twice"


def test_idle_slots_change_hands_in_the_blink_of_an_eye(crew: Callable[..., KeyedFleet]) -> None:
    fleet = crew(sticky_slots=256)
    fleet.workers_up("a", "b")
    fleet.worker("c")
    fleet.wait_members("a", "b", "c")
    fleet.workers["c"].kill(signal.SIGTERM)
    fleet.wait_members("a", "b")
    gaps = handovers(fleet.slot_events())
    tell(f"\nhandover of idle slots: {figures(gaps)}")
    assert len(gaps) >= 2 * 85
    assert sorted(gaps)[int(0.99 * len(gaps))] < LOADED
