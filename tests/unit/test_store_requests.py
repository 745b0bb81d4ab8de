"""What a member does where the store takes a heartbeat and refuses what comes with it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from celery.worker import state as worker_state

from celery_sticky.errors import DocumentDamaged, RecordUnusable, StoreRefused, StoreUnavailable
from celery_sticky.execution.hooks import WorkerHooks
from celery_sticky.flows import run_flow
from celery_sticky.membership.clerk import Clerk
from celery_sticky.membership.flow import Surroundings
from celery_sticky.membership.lease import boottime
from celery_sticky.membership.name_lock import NameLock
from celery_sticky.membership.store_requests import StoreRequests
from celery_sticky.ownership.events import BeatDone, Event, Read, SendBeat, StoreFailed
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


class Asking:
    """A member that asks the store for what one likes."""

    def __init__(self, store: Refusing, name_lock: NameLock) -> None:
        here = Surroundings(KS, MagicMock(), MagicMock(), WorkerHooks(None), boottime, revoke_ttl=60.0, revoke_limit=10)
        self._requests = StoreRequests(here, "a", lambda _: "It matters")
        clerk = Clerk(here, MagicMock(), deque(), name_lock, "a")
        self._perform = partial(clerk.perform, store=store)

    def ask(self, effect: Read | SendBeat) -> Event:
        return run_flow(self._requests.ask(effect, ""), self._perform)

    def heartbeats(self) -> bool:
        answer = self.ask(SendBeat("a-1", announce=True))
        return isinstance(answer, BeatDone) and answer.alive

    def prepares(self) -> None:
        """Do what comes before the swap that joins."""
        run_flow(self._requests._prepare("a-1"), self._perform)


@pytest.fixture
def member(store: Refusing, tmp_path: Path) -> Asking:
    return Asking(store, NameLock(tmp_path, "store", KS, "a"))


@pytest.mark.parametrize("error", [StoreRefused("OOM"), StoreUnavailable("no answer"), RecordUnusable("WRONGTYPE")])
def test_a_revoke_that_was_refused_is_told_again_and_costs_no_heartbeat(
    member: Asking, store: Refusing, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    worker_state.revoked.add("one")
    store.refusals = [error]
    with caplog.at_level(logging.INFO):
        assert member.heartbeats(), "the store has counted it"
        assert store.revoked() == frozenset()
        assert "revokes of keyspace ks" in caplog.text and str(error) in caplog.text
        assert member.heartbeats()
    assert set(store.revoked()) == {"one"}
    assert "answers again" in caplog.text


def test_what_was_taken_is_not_told_again(member: Asking, store: Refusing) -> None:
    for task_id in ("one", "two"):
        worker_state.revoked.add(task_id)
        assert member.heartbeats() and member.heartbeats()
    member.prepares()
    worker_state.revoked.discard("one")
    worker_state.revoked.add("three")
    assert member.heartbeats()
    assert store.told == [{"one"}, {"two"}, {"three"}]


def test_a_key_in_the_way_of_revokes_keeps_nobody_from_joining(
    member: Asking, store: Refusing, caplog: pytest.LogCaptureFixture
) -> None:
    store.refusals = [RecordUnusable("sticky:revoked is a string")]
    member.prepares()
    assert "without knowing which tasks were revoked: sticky:revoked is a string" in caplog.text
    store.refusals = [StoreUnavailable("no answer")]
    with pytest.raises(StoreUnavailable):
        member.prepares()


def test_a_document_that_cannot_be_read_is_told_once(
    member: Asking, store: Refusing, caplog: pytest.LogCaptureFixture
) -> None:
    store.damage = DocumentDamaged("sticky:ks:view: it is neither")
    for _ in range(20):
        assert isinstance(member.ask(Read()), StoreFailed)
    [record] = [record for record in caplog.records if "sticky:ks:view" in record.getMessage()]
    assert record.exc_info is None and "cannot be used" in record.getMessage()
