"""Any sequence of calls has the same answers from Redis as from the reference driver in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from kombu import Connection

from celery_sticky.drivers import open_queues
from celery_sticky.errors import Fenced
from celery_sticky.queues import Dead, Delivery, Disposition, Outcome, SlotQueues, Tag, Tenure, Want
from celery_sticky.queues.memory import MemoryBroker, MemoryQueues
from celery_sticky.queues.redis import Layout
from celery_sticky.redis_clients import client_from_connection
from celery_sticky.testing.queue_steps import open_slot

SLOTS = range(2)
ELSEWHERE = 2
"""The slot that messages are moved to; nobody fetches there."""
STEPS = [0, 3, 6, 9]
outcomes = st.tuples(st.sampled_from(Outcome), st.integers(0, 30), st.integers(-2, 4), st.booleans())
owners = st.sampled_from(["ann", "bob"])
picks = st.lists(st.integers(0, 30), max_size=6)


class Comparison(RuleBasedStateMachine):
    """Two drivers told the same; a slot's messages are named in the order of publishing."""

    client: Any
    connection: Any

    def __init__(self) -> None:
        super().__init__()
        for key in self.client.scan_iter("model.*"):
            self.client.delete(key)
        self.memory = MemoryBroker("model")
        redis_queues = open_queues(self.connection, prefix="model", socket_timeout=5.0)
        self.both: list[SlotQueues] = [MemoryQueues(self.memory), redis_queues]
        self.now, self.published = 1000.0, 0
        self.tenures = [Tenure("k", slot, 0, "nobody", 0) for slot in SLOTS]
        self.seen: list[Delivery] = []

    @rule(slot=st.sampled_from(SLOTS), step=st.sampled_from(STEPS), count=st.integers(1, 4))
    def publish(self, slot: int, step: int, count: int) -> None:
        for _ in range(count):
            self.published += 1
            body = b"%d" % self.published
            self.memory.publish(("k", slot), body, step)
            self.client.lpush(Layout("model").lists("k", slot)[STEPS.index(step)], body)

    @rule(slot=st.sampled_from(SLOTS), epoch=st.integers(-1, 1), owner=owners, count=st.integers(0, 2), keep=picks)
    def open(self, slot: int, epoch: int, owner: str, count: int, keep: list[int]) -> None:
        last = self.tenures[slot]
        tenure = Tenure("k", slot, last.epoch + epoch, owner, last.open_count + count - 1)
        tags = [d.tag for d in self._some(keep) if d.tenure.slot == slot]
        outcomes = [_opened(queues, tenure, tags) for queues in self.both]
        assert outcomes[0] == outcomes[1]
        if isinstance(outcomes[0], list):
            self.tenures[slot] = tenure

    @rule(
        limits=st.lists(st.integers(0, 5), min_size=2, max_size=2),
        outcomes=st.lists(
            st.tuples(st.sampled_from(Outcome), st.integers(0, 30), st.integers(-2, 4), st.booleans()), max_size=6
        ),
        current=st.booleans(),
    )
    def fetch(self, limits: list[int], outcomes: list[tuple[Outcome, int, int, bool]], current: bool) -> None:
        dispositions = []
        for outcome, pick, wait, replaced in outcomes:
            for delivery in self._some([pick]):
                tenure = self.tenures[int(delivery.tenure.slot)] if current else delivery.tenure
                body = b"%b'" % delivery.body if replaced else None
                due, starts = self.now + wait, pick % 3 + 1
                dispositions.append(
                    Disposition(outcome, tenure, delivery.tag, due, body, '{"a": 1}', ELSEWHERE, starts)
                )
        wants = [Want(tenure, limit) for tenure, limit in zip(self.tenures, limits, strict=True)]
        mine, theirs = (queues.fetch(wants, dispositions, self.now) for queues in self.both)
        for answer in (mine, theirs):  # across slots the order has no meaning
            answer.confirmed.sort(key=lambda v: dispositions.index(v))
            answer.refused.sort(key=lambda v: dispositions.index(v))
        assert mine == theirs
        self.seen = [*self.seen, *mine.deliveries][-30:]

    @rule(seconds=st.integers(1, 3))
    def pass_time(self, seconds: int) -> None:
        self.now += seconds

    @rule(pick=st.integers(0, 9), requeue=st.booleans())
    def end_a_death(self, pick: int, requeue: bool) -> None:
        dead = self.both[0].dead("k")
        name = _by_id(dead)[pick % len(dead)].id if dead else "0-1"
        done = [queues.requeue("k", name) if requeue else queues.drop("k", name) for queues in self.both]
        assert done == [bool(dead)] * 2

    @rule()
    def look(self) -> None:
        assert self.both[0].idle(0) == self.both[1].idle(0)

    @invariant()
    def everything_stands_alike(self) -> None:
        mine, theirs = ((queues.depth("k", [*SLOTS, ELSEWHERE]), _by_id(queues.dead("k"))) for queues in self.both)
        assert mine == theirs

    def teardown(self) -> None:
        for queues in self.both:
            queues.close()

    def _some(self, picks: list[int]) -> list[Delivery]:
        return [self.seen[pick % len(self.seen)] for pick in picks if self.seen]


def _by_id(dead: Sequence[Dead]) -> list[Dead]:
    # Those of two slots that were buried in one round trip have no order.
    return sorted(dead, key=lambda one: one.id)


def _opened(queues: SlotQueues, tenure: Tenure, keep: list[Tag]) -> list[Tag] | tuple[int, str]:
    try:
        return sorted(open_slot(queues, tenure, keep))
    except Fenced as refusal:
        return refusal.epoch, refusal.incarnation


@pytest.mark.timeout(120)
def test_redis_answers_as_the_reference_does(redis_url: str) -> None:
    connection = Connection(redis_url)

    class OnThisServer(Comparison):
        pass

    OnThisServer.connection = connection
    OnThisServer.client = client_from_connection(connection, socket_timeout=5.0)
    profile = settings(
        max_examples=60, stateful_step_count=40, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(OnThisServer, settings=profile)
