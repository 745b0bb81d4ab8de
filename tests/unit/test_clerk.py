"""What the clerk of a member does where the store takes a heartbeat and refuses what comes with it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import closing

import pytest
from celery.worker import state as worker_state

from celery_sticky.errors import DocumentDamaged, RecordUnusable, StoreRefused, StoreUnavailable
from celery_sticky.execution.hooks import WorkerHooks
from celery_sticky.membership.clerk import Clerk
from celery_sticky.ownership.events import BeatDone, Read, SendBeat, StoreFailed
from celery_sticky.stores.base import Reading
from celery_sticky.stores.memory.store import MemoryServer, MemoryStore
from celery_sticky.testing.store_contract import first_view, joined

KS = "ks"


class Refusing(MemoryStore):
    """A store that refuses what has to do with revokes, or a read, as often as it is told to."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server, KS)
        self.refusals: list[Exception] = []
        self.damage: Exception | None = None
        self.told: list[set[str]] = []

    def _refuse(self) -> None:
        if self.refusals:
            raise self.refusals.pop()

    def revoke(self, task_ids: Collection[str], *, ttl: float, limit: int) -> None:
        self._refuse()
        self.told.append(set(task_ids))
        super().revoke(task_ids, ttl=ttl, limit=limit)

    def revoked(self) -> Collection[str]:
        self._refuse()
        return super().revoked()

    def read(self) -> Reading:
        if self.damage is not None:
            raise self.damage
        return super().read()


@pytest.fixture(autouse=True)
def no_revokes() -> Iterator[None]:
    worker_state.revoked.clear()
    yield
    worker_state.revoked.clear()


@pytest.fixture
def store() -> Iterator[Refusing]:
    with closing(Refusing(MemoryServer())) as store:
        joined(store, first_view(store), "a")
        yield store


@pytest.fixture
def clerk(store: Refusing) -> Clerk:
    clerk = Clerk(
        KS,
        lambda: store,
        WorkerHooks(None),
        lambda _store, _incarnation: None,
        lambda _now: "It matters",
        revoke_ttl=60.0,
        revoke_limit=10,
    )
    clerk.connect()
    return clerk


def heartbeats(clerk: Clerk) -> bool:
    answer = clerk.ask(SendBeat("a-1", announce=True), "")
    return isinstance(answer, BeatDone) and answer.alive


@pytest.mark.parametrize("error", [StoreRefused("OOM"), StoreUnavailable("no answer"), RecordUnusable("WRONGTYPE")])
def test_a_revoke_that_was_refused_is_told_again_and_costs_no_heartbeat(
    clerk: Clerk, store: Refusing, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    worker_state.revoked.add("one")
    store.refusals = [error]
    with caplog.at_level(logging.INFO):
        assert heartbeats(clerk), "the store has counted it"
        assert store.revoked() == frozenset()
        assert "revokes of keyspace ks" in caplog.text and str(error) in caplog.text
        assert heartbeats(clerk)
    assert set(store.revoked()) == {"one"}
    assert "answers again" in caplog.text


def test_what_was_taken_is_not_told_again(clerk: Clerk, store: Refusing) -> None:
    for task_id in ("one", "two"):
        worker_state.revoked.add(task_id)
        assert heartbeats(clerk) and heartbeats(clerk)
    clerk.learn_revokes(store)
    worker_state.revoked.discard("one")
    worker_state.revoked.add("three")
    assert heartbeats(clerk)
    assert store.told == [{"one"}, {"two"}, {"three"}]


def test_a_key_in_the_way_of_revokes_keeps_nobody_from_joining(
    clerk: Clerk, store: Refusing, caplog: pytest.LogCaptureFixture
) -> None:
    store.refusals = [RecordUnusable("sticky:revoked is a string")]
    clerk.learn_revokes(store)
    assert "without knowing which tasks were revoked: sticky:revoked is a string" in caplog.text
    store.refusals = [StoreUnavailable("no answer")]
    with pytest.raises(StoreUnavailable):
        clerk.learn_revokes(store)


def test_a_document_that_cannot_be_read_is_told_once(
    clerk: Clerk, store: Refusing, caplog: pytest.LogCaptureFixture
) -> None:
    store.damage = DocumentDamaged("sticky:ks:view: it is neither")
    for _ in range(20):
        assert isinstance(clerk.ask(Read(), ""), StoreFailed)
    [record] = [record for record in caplog.records if "sticky:ks:view" in record.getMessage()]
    assert record.exc_info is None and "cannot be used" in record.getMessage()
