"""The broker comes back with an older copy of its data than the workers have seen; the store does not."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from harness.keyed_fleet import KeyedFleet

from celery_sticky.testing.history import Event, Kind
from celery_sticky.testing.servers.valkey import ValkeyServer
from celery_sticky.testing.waiting import wait_until


@dataclass(frozen=True, slots=True)
class OneSlot:
    """A worker with two places and one slot; its broker writes what it knows to a file when it is told to."""

    fleet: KeyedFleet
    broker: ValkeyServer

    def runs(self, key: str, n: int) -> list[Event]:
        return [e for e in self.fleet.events() if e.kind is Kind.START and (e.key, e.n) == (key, n)]

    def before_they_are_fetched(self, *tasks: tuple[str, float]) -> None:
        """Publish tasks (key, seconds), and have the broker write its copy while no courier looks."""
        os.kill(self.fleet.workers["a"].pid, signal.SIGSTOP)
        for key, seconds in tasks:
            self.fleet.publish(key, seconds)
        with self.broker.client() as client:
            client.save()
        os.kill(self.fleet.workers["a"].pid, signal.SIGCONT)


@pytest.fixture(params=["prefork", "threads"])
def one_slot(
    crew: Callable[..., KeyedFleet], valkey: Callable[..., ValkeyServer], request: pytest.FixtureRequest
) -> OneSlot:
    broker, store = valkey(), valkey()
    fleet = crew(broker=broker.url, sticky_store=store.url, sticky_slots=1)
    fleet.workers_up("a", pool=request.param, concurrency=2)
    return OneSlot(fleet, broker)


def test_what_the_broker_kept_is_not_deleted_by_the_acknowledgement_of_another(one_slot: OneSlot) -> None:
    """Guards: the identity of a delivery. Tags counted again named other messages, and a message was lost unrun."""
    fleet, broker = one_slot.fleet, one_slot.broker
    fleet.publish("p", 2.0)
    fleet.publish("a", 6.0)
    for key in ("p", "a"):
        fleet.wait_started(key, 0)
    one_slot.before_they_are_fetched(("a", 0.0), ("b", 3.0))
    wait_until(lambda: one_slot.runs("b", 0), 20, f"b starts when p has ended\n{fleet}")
    broker.restart()
    fleet.wait_finished()
    judged = fleet.judge()
    assert judged.ok, judged.describe()
    wait_until(lambda: left(broker) == 0, 20, f"every message is settled\n{fleet}")
    for task in (("a", 0), ("b", 0)):
        assert len(one_slot.runs(*task)) == 1, f"{task} ran while the broker went back, and has ended here"
    assert len(one_slot.runs("a", 1)) == 1


def left(broker: ValkeyServer) -> int:
    queue = "sticky.default.0"
    with broker.client() as client:
        return int(client.llen(queue)) + int(client.hlen(f"{queue}:flight"))
