"""The member's thread against the memory store."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from celery_sticky.errors import KeyspaceMismatch, StoreUnavailable
from celery_sticky.membership.flow import Snapshot
from celery_sticky.membership.lease import Lease
from celery_sticky.membership.member import Member
from celery_sticky.membership.name_lock import NameLock
from celery_sticky.ownership import changes
from celery_sticky.ownership.machine import MemberConfig, Phase
from celery_sticky.ownership.view import View
from celery_sticky.platform.flow_thread import FlowThread
from celery_sticky.stores.base import Reading, Signal
from celery_sticky.stores.memory.placement import MemoryPlacementStore
from celery_sticky.stores.memory.store import MemoryServer, MemoryStore
from celery_sticky.stores.shared import OwnClient
from celery_sticky.testing.waiting import wait_until

KS, NAME = "ks", "w"


class Enlisting(MemoryPlacementStore):
    """A placement store that fails at first; and the placer, who only hears of it."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server, KS)
        self.calls = 0

    def enlist(self, worker: str, incarnation: str) -> None:
        self.calls += 1
        if self.calls == 1:
            raise StoreUnavailable("no answer")
        super().enlist(worker, incarnation)

    def observe(self, snapshot: Snapshot) -> None: ...

    def heartbeat_done(self, incarnation: str, counter: int) -> None: ...


class Watched(MemoryStore):
    """A store that notes who was enlisted when a member was written down for the first time."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server, KS)
        self.placement_store = MemoryPlacementStore(server, KS)
        self.joins: list[tuple[str, str | None]] = []

    def swap(
        self, old: View | None, new: View, guard: Mapping[str, int] | None = None, until: float | None = None
    ) -> bool:
        if NAME in new.members and (old is None or new.members[NAME] != old.members.get(NAME)):
            self.joins.append((new.members[NAME].incarnation, self.placement_store.enlisted().get(NAME)))
        return super().swap(old, new, guard, until)


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Callable[[Watched, Enlisting], Member]]:
    members = []

    def make(store: Watched, placer: Enlisting) -> Member:
        config = MemberConfig(NAME, "origin", 4, "h", ttl=3.0, margin=0.5, settle=0.05, broker_grace=30.0)
        members.append(
            Member(
                KS,
                lambda _: config,
                FlowThread(lambda: OwnClient(lambda _: store, lambda _: placer)),
                MagicMock(),
                Lease({KS: 4}),
                NameLock(tmp_path, "store", KS, NAME),
                MagicMock(fresh_revokes=tuple),
                revoke_ttl=60.0,
                revoke_limit=10,
                placer=placer,
            )
        )
        members[-1].start()
        return members[-1]

    yield make
    for made in members:
        made.finish(0.0)


def test_a_worker_enlists_before_it_joins(member: Callable[[Watched, Enlisting], Member]) -> None:
    """Guards: one that dies in the moment after its join has a worker queue that somebody knows of."""
    server = MemoryServer()
    store, placer = Watched(server), Enlisting(server)
    joining = member(store, placer)
    wait_until(lambda: joining.snapshot.phase is Phase.IN, 30, "it has joined")
    assert placer.calls >= 2, "and not before the directory has answered"
    assert [incarnation for incarnation, _ in store.joins] == [enlisted for _, enlisted in store.joins]
    assert store.joins[-1][0] == joining.snapshot.incarnation


class Deaf(Watched):
    """A store that answers, but does not let anybody listen, as a server whose access list forbids it."""

    deaf = False
    deaf_for = 0.0
    """Seconds until it refuses."""
    beats = 0

    def heartbeat(self, *args: Any, **options: Any) -> Any:
        self.beats += 1
        return super().heartbeat(*args, **options)

    def watch(self, timeout: float) -> Sequence[Signal]:
        if self.deaf:
            time.sleep(self.deaf_for)
            raise StoreUnavailable("no permission")
        return super().watch(timeout)


def outages(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record for record in caplog.records if "the store" in record.getMessage()]
    return [record.levelname for record in found]


@pytest.fixture
def joined(
    member: Callable[[Watched, Enlisting], Member], caplog: pytest.LogCaptureFixture
) -> tuple[MemoryServer, Deaf]:
    caplog.set_level(logging.INFO)
    server = MemoryServer()
    store = Deaf(server)
    placer = Enlisting(server)
    placer.calls = 1
    one = member(store, placer)
    wait_until(lambda: one.snapshot.phase is Phase.IN, 30, "it has joined")
    return server, store


def test_an_unreachable_store_is_told_once_and_its_return_too(
    joined: tuple[MemoryServer, Deaf], caplog: pytest.LogCaptureFixture
) -> None:
    server, _ = joined
    server.stop()
    wait_until(lambda: outages(caplog), 10, "it is told")
    time.sleep(1.0)
    assert outages(caplog) == ["WARNING"]
    assert "continue until the lease ends in" in caplog.text
    server.restart()
    wait_until(lambda: len(outages(caplog)) > 1, 10, "it is told")
    assert outages(caplog) == ["WARNING", "INFO"]


def test_a_store_that_only_answers_is_not_back(
    joined: tuple[MemoryServer, Deaf], caplog: pytest.LogCaptureFixture
) -> None:
    _, store = joined
    store.deaf = True
    store.wake()
    wait_until(lambda: outages(caplog), 10, "it is told")
    time.sleep(1.0)
    assert outages(caplog) == ["WARNING"]


def test_a_subscription_that_fails_slowly_delays_no_heartbeat_for_long(joined: tuple[MemoryServer, Deaf]) -> None:
    """Guards: each failure delayed the next request, and the next subscription came before it, and failed again."""
    _, store = joined
    store.deaf, store.deaf_for = True, 0.4  # longer than the pause before a retry
    store.wake()
    beats = store.beats
    wait_until(lambda: store.beats >= beats + 4, 30, "heartbeats go on")


@pytest.mark.parametrize(
    ("slots", "made_with", "said"),
    [
        (
            4,
            "h pins",
            "'h pins', this worker is .* 'h'. Declare 'ks' here with keys placed by h pins. Or",
        ),
        (8, "h", "created with 8 slots .* with 4 slots .* cannot change its number of slots: give 'ks' 8 slots here"),
    ],
)
def test_a_worker_that_is_refused_says_which_keyspace_and_what_to_do(
    member: Callable[[Watched, Enlisting], Member], slots: int, made_with: str, said: str
) -> None:
    server = MemoryServer()
    store = Watched(server)
    first = changes.fresh(
        slots=slots, hash=made_with, generation=1, version=1, store_id=store.read().store_id, epochs=0
    )
    assert store.swap(None, first)
    refused = member(store, Enlisting(server))
    wait_until(lambda: refused.snapshot.phase is Phase.REFUSED, 10, "it is refused")
    (error,) = refused._here.hooks.refused.call_args.args  # type: ignore[attr-defined]
    assert isinstance(error, KeyspaceMismatch)
    assert re.match(f"keyspace 'ks': .*{said}", str(error)), str(error)


def test_a_worker_that_never_reached_its_store_leaves_at_once(
    member: Callable[[Watched, Enlisting], Member],
) -> None:
    """Guards: it waited for the end of its time, because it took in nothing before the store had answered."""
    server = MemoryServer()
    server.stop()
    store = Watched(server)
    away = member(store, Enlisting(server))
    begun = time.monotonic()
    assert away.finish(10.0) and time.monotonic() < begun + 5.0


def test_an_unexpected_error_ends_one_turn_and_not_the_member(
    member: Callable[[Watched, Enlisting], Member], caplog: pytest.LogCaptureFixture
) -> None:
    server = MemoryServer()
    store = Broken(server)
    one = member(store, Enlisting(server))
    wait_until(lambda: one.snapshot.phase is Phase.IN, 30, "it has joined")
    assert "the member met an unexpected error; it continues" in caplog.text and "nobody expects this" in caplog.text


class Broken(Watched):
    """A store whose client has a fault, once."""

    def read(self) -> Reading:
        self.read = super().read  # type: ignore[method-assign]
        raise RuntimeError("nobody expects this")
