"""Each rule of placed keyspaces that the simulator can judge is taken away in turn: it names what then breaks."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from harness.rules import Rule, broken_without, rule
from simulator.invariants import Invariant
from simulator.placer import SteppedPlacer
from simulator.scenario import Kind

from celery_sticky.delivery.gate import Entry, Gate
from celery_sticky.delivery.key_claims import KeyClaims
from celery_sticky.ownership.view import View
from celery_sticky.placement import worker_queues
from celery_sticky.placement.claiming import Decisions
from celery_sticky.placement.lost_pins import LostPins
from celery_sticky.placement.state import PlacementState
from celery_sticky.placement.worker_queues import WorkerQueues
from celery_sticky.queues.base import Disposition, Fetched, Outcome
from celery_sticky.queues.memory import MemoryQueues
from celery_sticky.stores.memory.placement import MemoryPlacementStore
from celery_sticky.stores.placement import Answer, Pinned, Said, Version, Wish

answer_wish, settle = MemoryPlacementStore._answer, MemoryQueues._settle
unpin, joined = MemoryPlacementStore.unpin, LostPins.joined
prepare, unstarted = KeyClaims.prepare, KeyClaims.unstarted


# -- The directory without … -------------------------------------------------------------------


def granted_to_all(self: MemoryPlacementStore, incarnation: str, wish: Wish) -> Answer:
    if wish.run:
        self._book().claims.pop(wish.key, None)
    return answer_wish(self, incarnation, wish)


def held_by_the_dead(self: MemoryPlacementStore, incarnation: str, wish: Wish) -> Answer:
    holder = self._holder(wish.key)
    if wish.run and holder not in ("", incarnation):
        return Answer(Said.HELD, by=holder)
    return answer_wish(self, incarnation, wish)


def whatever_the_pin(self: MemoryPlacementStore, incarnation: str, wish: Wish) -> Answer:
    return answer_wish(self, incarnation, Wish(wish.key, self._pin(wish.key), wish.run))


def whatever_the_document(self: MemoryPlacementStore, known: Version) -> tuple[bool, View | None]:
    return False, None


def one_token_for_all(self: MemoryPlacementStore, incarnation: str, wish: Wish) -> Answer:
    answer = answer_wish(self, incarnation, wish)
    return Answer(answer.said, 7, answer.by) if answer.said is Said.GRANTED else answer


def whichever_pin(self: MemoryPlacementStore, worker: str, key: str, pinned: Pinned | None = None) -> bool:
    return unpin(self, worker, key)


def nothing(*_: Any, **__: Any) -> None:
    return None


def says_nothing(*_: Any, **__: Any) -> Generator[Any, Any, None]:
    yield from ()


# -- A worker without … ------------------------------------------------------------------------


def unclaimed(self: KeyClaims, entry: Entry) -> None:
    prepare(self, entry)
    entry.pending = False


def never(self: Gate, entry: Entry) -> bool:
    return False


def last_first(self: KeyClaims, keyspace: str, key: str) -> list[Entry]:
    return unstarted(self, keyspace, key)[::-1]


def in_the_same_document(self: LostPins, incarnation: str, generation: int) -> None:
    joined(self, incarnation, 0)


def closed_at_once(self: WorkerQueues) -> bool:
    self._queues.pop(self._mine, None)
    self._courier.close((self._name, self._mine))
    return True


def moved_and_dropped(self: MemoryQueues, disposition: Disposition, fetched: Fetched, now: float) -> None:
    settle(self, disposition, fetched, now)
    if disposition.outcome is Outcome.MOVE and disposition in fetched.confirmed:
        for line in self.broker.slot(disposition.tenure.keyspace, disposition.to).lists.values():
            if line and line[-1].body == disposition.body:
                line.pop()


RULES = [
    rule(
        "nothing starts before its key is claimed", KeyClaims, "prepare", unclaimed, breaks={Invariant.UNCLAIMED_START}
    ),
    rule(
        "one worker has a key claimed",
        MemoryPlacementStore,
        "_answer",
        granted_to_all,
        breaks={Invariant.TWO_CLAIMS, Invariant.OVERLAP_TRUSTED},
    ),
    rule(
        "a claim ends with its worker",
        MemoryPlacementStore,
        "_answer",
        held_by_the_dead,
        breaks={Invariant.NOT_DRAINED},
    ),
    rule(
        "a claim names the pin it was thought out with",
        MemoryPlacementStore,
        "_answer",
        whatever_the_pin,
        breaks={Invariant.MISDIRECTED},
    ),
    rule(
        "a claim names the document it was thought out with",
        MemoryPlacementStore,
        "_compared",
        whatever_the_document,
        breaks={Invariant.MISDIRECTED},
    ),
    rule(
        "a token is higher than those before it",
        MemoryPlacementStore,
        "_answer",
        one_token_for_all,
        breaks={Invariant.CLAIM_BACK, Invariant.CLAIM_SHARED},
    ),
    rule(
        "a request that arrives late is refused",
        MemoryPlacementStore,
        "_in_turn",
        lambda *_: True,
        breaks={Invariant.NOT_GIVEN_BACK},
        losses=0.2,
        first=74,
    ),
    rule(
        "a store that may have lost claims grants nothing: another run, or one that has counted fewer heartbeats",
        MemoryPlacementStore,
        "_may_act",
        MemoryPlacementStore._lives,
        SteppedPlacer,
        "heartbeat_done",
        says_nothing,
        breaks={Invariant.TWO_CLAIMS, Invariant.OVERLAP_TRUSTED},
        kinds=(Kind.FAIL_OVER, Kind.RESTART),
        first=2860,
    ),
    rule(
        "by a fresh document nobody runs a key: it may be lost before all members have seen it",
        View,
        "fresh",
        False,
        breaks={Invariant.TWO_CLAIMS},
        first=806665756,
    ),
    rule(
        "a key is given back",
        Decisions,
        "give_back",
        says_nothing,
        breaks={Invariant.NOT_DRAINED, Invariant.NOT_GIVEN_BACK},
    ),
    rule(
        "messages are passed on in their order",
        KeyClaims,
        "unstarted",
        last_first,
        breaks={Invariant.MOVED_OUT_OF_ORDER},
    ),
    rule(
        "nothing is passed on before a message whose run is about to begin",
        Gate,
        "is_behind_unbegun",
        never,
        View,
        "fresh",
        False,  # this world needs keys that are claimed at its very beginning, and no other one is known
        breaks={Invariant.MOVED_OUT_OF_ORDER},
        first=13203140,
    ),
    rule("messages are passed on, not lost", MemoryQueues, "_settle", moved_and_dropped, breaks={Invariant.LOST}),
    rule(
        "the queue of a worker that is gone has an successor",
        worker_queues,
        "successor",
        lambda view, worker: None,
        breaks={Invariant.NOT_DRAINED},
    ),
    rule("a worker enlists before it joins", MemoryPlacementStore, "enlist", nothing, breaks={Invariant.NOT_DRAINED}),
    rule(
        "who leaves waits for what runs of its worker queue",
        WorkerQueues,
        "_stop_mine",
        closed_at_once,
        breaks={Invariant.RERUN_WITHOUT_FAULT, Invariant.OVERLAP_TRUSTED, Invariant.OVERLAP_ZOMBIE},
        kinds=(Kind.LEAVE,),
    ),
    rule(
        "a claimed key is looked at again",
        KeyClaims,
        "review",
        nothing,
        KeyClaims,
        "doubt",
        nothing,
        KeyClaims,
        "reviewed",
        nothing,
        breaks={Invariant.RUN_ELSEWHERE},
        kinds=(),
        first=560,
    ),
    rule(
        "a worker queue that is closed lets its worker depart",
        PlacementState,
        "_depart",
        nothing,
        breaks={Invariant.NOT_LEFT},
        kinds=(Kind.LEAVE,),
    ),
    rule(
        "a fence is outbid",
        WorkerQueues,
        "refused",
        nothing,
        breaks={Invariant.NOT_OWNED},
        kinds=(Kind.WIPE, Kind.FAIL_OVER),
        first=88,
    ),
    rule("lost pins are told", LostPins, "look_after", says_nothing, breaks={Invariant.UNTOLD_PIN}),
    rule(
        "a pin ends by its own token only", MemoryPlacementStore, "unpin", whichever_pin, breaks={Invariant.UNTOLD_PIN}
    ),
    rule(
        "that the store has forgotten pins is told",
        LostPins,
        "joined",
        in_the_same_document,
        breaks={Invariant.UNTOLD_PIN},
        kinds=(Kind.WIPE, Kind.FAIL_OVER),
    ),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_without_the_rule_its_promise_is_broken(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_without(rule, monkeypatch, placed=True)
