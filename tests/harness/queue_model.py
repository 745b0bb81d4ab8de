"""Any sequence of calls has the same answers from a driver as from the reference in memory.

Tags are compared by the order of deliveries in their slot: their numbers are the driver's own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from msgspec.structs import replace

from celery_sticky.errors import Fenced
from celery_sticky.queues import Delivery, Disposition, Fetched, Outcome, SlotQueues, Tag, Tenure, Want
from celery_sticky.queues.base import RunClaim
from celery_sticky.queues.memory import MemoryBroker, MemoryQueues
from celery_sticky.slots import Slot
from celery_sticky.testing.queue_steps import open_slot

SLOTS = range(2)
ELSEWHERE = 2
"""The slot that messages are moved to; nobody fetches there."""
STEPS = [0, 3, 6, 9]
RUNS = ["run 0", "run 1"]
claims = st.builds(RunClaim, st.sampled_from(RUNS), st.booleans())
outcomes = st.tuples(st.sampled_from(Outcome), st.integers(0, 30), st.integers(-2, 4), st.booleans(), claims)
Drawn = tuple[Outcome, int, int, bool, RunClaim]
STARTS, RUNS_ONLY = (Outcome.COUNT_START, Outcome.UNCOUNT_START), (Outcome.CLAIM, Outcome.UNCLAIM)
owners = st.sampled_from(["ann", "bob"])
picks = st.lists(st.integers(0, 30), max_size=6)

Publish = Callable[[Slot, int, bytes], None]
"""Adds a message to a slot, with a priority."""


class Told:
    """One driver, what it was told, and the names of its deliveries."""

    def __init__(self, queues: SlotQueues, publish: Publish) -> None:
        self.queues, self.publish = queues, publish
        self.seen: list[Delivery] = []
        self._names: dict[tuple[Slot, Tag], str] = {}
        self._holders: dict[Tag | None, str] = {None: "finished"}
        self._dead_names: dict[str, str] = {}
        self._counts: Counter[Slot] = Counter()
        self._last: dict[Slot, Tag] = {}

    def name(self, slot: Slot, tag: Tag) -> str:
        """Return which delivery of the slot this is, counted from 1."""
        return self._names[slot, tag]

    def fetch(self, wants: Sequence[Want], dispositions: Sequence[Disposition], now: float) -> dict[str, Any]:
        """Fetch, and return the answer in terms that can be compared."""
        fetched = self.queues.fetch(wants, dispositions, now)
        fetched.deliveries.sort(key=lambda delivery: str(delivery.tenure.slot))  # across slots they have no order
        for delivery in fetched.deliveries:
            self._learn(delivery)
        self.seen = [*self.seen, *fetched.deliveries][-30:]
        return self._plain(fetched)

    def dead(self) -> dict[str, tuple[str, str]]:
        """Return name -> id and info of each buried message."""
        return {self._dead_names[one.id]: (one.id, one.info) for one in self.queues.dead("k")}

    def _learn(self, delivery: Delivery) -> None:
        slot, tag = delivery.tenure.slot, delivery.tag
        assert tag > self._last.get(slot, Tag(0, "")), "tags grow"
        self._last[slot] = tag
        self._counts[slot] += 1
        self._names[slot, tag] = self._holders[tag] = self._dead_names[f"{slot}-{tag.number}"] = (
            f"{slot}-{self._counts[slot]}"
        )

    def _plain(self, fetched: Fetched) -> dict[str, Any]:
        return {
            "deliveries": [
                (self._named(one), one.tenure, one.priority, one.body, one.attempts) for one in fetched.deliveries
            ],
            "confirmed": sorted(self._said(one) for one in fetched.confirmed),
            "refused": sorted(self._said(one) for one in fetched.refused),
            "counted": {(at[1], self._names[at[1], at[2]]): n for at, n in fetched.counted_starts.items()},
            "claims": {(at[1], self._names[at[1], at[2]]): self._holders[tag] for at, tag in fetched.claims.items()},
            "drained": fetched.drained,
            "lost": fetched.lost,
            "due": fetched.due,
            "trouble": (fetched.broken, fetched.failed),
        }

    def _named(self, delivery: Delivery) -> str:
        return self._names[delivery.tenure.slot, delivery.tag]

    def _said(self, disposition: Disposition) -> tuple[str, str, str]:
        plain = replace(disposition, tag=Tag(0, ""))
        return self._names[disposition.tenure.slot, disposition.tag], disposition.outcome, repr(plain)


class Comparison(RuleBasedStateMachine):
    """Two drivers told the same; a slot's messages are named in the order of publishing."""

    start: Callable[[], Told]
    """Returns the driver to compare, with an empty broker."""

    def __init__(self) -> None:
        super().__init__()
        other = type(self).start()
        memory = MemoryBroker("model", other.queues.guarantees.returns)
        reference = Told(MemoryQueues(memory), lambda slot, step, body: memory.publish(("k", slot), body, step))
        self.both = [reference, other]
        self.now, self.published = 1000.0, 0
        self.tenures = [Tenure("k", slot, 0, "nobody", 0) for slot in SLOTS]

    @rule(slot=st.sampled_from(SLOTS), step=st.sampled_from(STEPS), count=st.integers(1, 4))
    def publish(self, slot: int, step: int, count: int) -> None:
        for _ in range(count):
            self.published += 1
            for one in self.both:
                one.publish(slot, step, b"%d" % self.published)

    @rule(slot=st.sampled_from(SLOTS), epoch=st.integers(-1, 1), owner=owners, count=st.integers(0, 2), keep=picks)
    def open(self, slot: int, epoch: int, owner: str, count: int, keep: list[int]) -> None:
        last = self.tenures[slot]
        tenure = Tenure("k", slot, last.epoch + epoch, owner, last.open_count + count - 1)
        mine, theirs = (
            _opened(one, tenure, [d.tag for d in _some(one, keep) if d.tenure.slot == slot]) for one in self.both
        )
        assert mine == theirs
        if isinstance(mine, list):
            self.tenures[slot] = tenure

    @rule(
        limits=st.lists(st.integers(0, 5), min_size=2, max_size=2),
        outcomes=st.lists(outcomes, max_size=6),
        current=st.booleans(),
    )
    def fetch(self, limits: list[int], outcomes: list[Drawn], current: bool) -> None:
        wants = [Want(tenure, limit) for tenure, limit in zip(self.tenures, limits, strict=True)]
        mine, theirs = (one.fetch(wants, self._dispositions(one, outcomes, current), self.now) for one in self.both)
        assert mine == theirs

    def _dispositions(self, one: Told, outcomes: list[Drawn], current: bool) -> list[Disposition]:
        found = []
        for outcome, pick, wait, replaced, claim in outcomes:
            for delivery in _some(one, [pick]):
                tenure = self.tenures[int(delivery.tenure.slot)] if current else delivery.tenure
                body = b"%b'" % delivery.body if replaced else None
                due, starts = self.now + wait, pick % 3 + 1
                info = json.dumps({"run": claim.run})
                bare = outcome in STARTS or (pick % 4 == 0 and outcome not in RUNS_ONLY)
                said = Disposition(outcome, tenure, delivery.tag, due, body, info, ELSEWHERE, starts)
                found.append(said if bare else replace(said, claim=claim))
        return found

    @rule(seconds=st.integers(1, 3))
    def pass_time(self, seconds: int) -> None:
        self.now += seconds

    @rule(pick=st.integers(0, 9), requeue=st.booleans())
    def end_a_death(self, pick: int, requeue: bool) -> None:
        names = sorted(self.both[0].dead())
        name = names[pick % len(names)] if names else ""
        for one in self.both:
            dead_id = one.dead()[name][0] if name else "0-1"
            done = one.queues.requeue("k", dead_id) if requeue else one.queues.drop("k", dead_id)
            assert done == bool(names)

    @rule(age=st.integers(0, 3))
    def trim(self, age: int) -> None:
        mine, theirs = (one.queues.trim_ledger("k", before=self.now - age) for one in self.both)
        assert mine == theirs

    @rule(run=st.sampled_from(RUNS))
    def forget(self, run: str) -> None:
        for one in self.both:
            one.queues.forget_run("k", run)

    @rule()
    def look(self) -> None:
        assert self.both[0].queues.idle(0) == self.both[1].queues.idle(0)

    @invariant()
    def everything_stands_alike(self) -> None:
        mine, theirs = (
            (
                one.queues.depths([("k", slot) for slot in (*SLOTS, ELSEWHERE)]),
                # Those of two slots that were buried in one round trip have no order.
                {name: info for name, (_, info) in one.dead().items()},
            )
            for one in self.both
        )
        assert mine == theirs

    def teardown(self) -> None:
        for one in self.both:
            one.queues.close()


def compare(start: Callable[[], Told], examples: int) -> None:
    """Compare a driver with the reference; `start` returns it with an empty broker."""

    class OnThisBroker(Comparison):
        pass

    OnThisBroker.start = staticmethod(start)
    profile = settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(OnThisBroker, settings=profile)


def _some(one: Told, picks: list[int]) -> list[Delivery]:
    return [one.seen[pick % len(one.seen)] for pick in picks if one.seen]


def _opened(one: Told, tenure: Tenure, keep: list[Tag]) -> list[str] | tuple[int, str]:
    try:
        return sorted(one.name(tenure.slot, tag) for tag in open_slot(one.queues, tenure, keep))
    except Fenced as refusal:
        return refusal.epoch, refusal.incarnation
