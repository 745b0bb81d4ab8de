"""The store contract on SQL databases, and what holds of them alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from harness.sql_servers import connect
from harness.sql_stores import InDatabase, OnPrivateServer, database, in_database

from celery_sticky.errors import DocumentDamaged, StoreUnavailable
from celery_sticky.ownership import changes
from celery_sticky.ownership.view import Member
from celery_sticky.sql import Address
from celery_sticky.sql.text import chunks, values
from celery_sticky.stores.base import Store
from celery_sticky.stores.placement import NO_VERSION, START, Wish
from celery_sticky.stores.sql import SqlStore, poller
from celery_sticky.stores.sql.placement import SqlPlacementStore
from celery_sticky.testing.servers.postgresql import PostgresServer
from celery_sticky.testing.store_contract import StoreContract, StoreServer, first_view, joined
from celery_sticky.testing.store_contract.signals import FaultContract

Connect = Callable[..., SqlStore]


class TestSql(StoreContract):
    """The contract, on a database of each kind."""

    @pytest.fixture
    def server(self, sql_url: str) -> StoreServer[Store]:
        return in_database(sql_url, SqlStore)


class TestStoppedPostgresql(FaultContract):
    """On a server that may be stopped."""

    @pytest.fixture
    def server(self, postgres: PostgresServer) -> StoreServer[Store]:
        return OnPrivateServer(postgres, SqlStore)


@pytest.fixture
def opened() -> Iterator[Connect]:
    """Opens stores in a database, which are closed after the test."""
    stores: list[SqlStore] = []

    def open_it(url: str, timeout: float = 20.0) -> SqlStore:
        stores.append(SqlStore(database(url, timeout), "default", prefix="one"))
        return stores[-1]

    yield open_it
    for store in stores:
        store.close()


@pytest.fixture
def store(sql_url: str, opened: Connect) -> SqlStore:
    """A store in an empty database of each kind."""
    InDatabase(sql_url, SqlStore)
    return opened(sql_url)


# -- Rows and locks ------------------------------------------------------------------------------


def test_a_swap_waits_for_a_heartbeat_under_way_that_guards_it(server_url: str, opened: Connect) -> None:
    InDatabase(server_url, SqlStore)
    store, hasty = opened(server_url), opened(server_url, timeout=1.0)
    view = joined(store, joined(store, first_view(store), "a"), "b")
    without_a = changes.evict(view, "a")
    with connect(server_url) as raw, closing(raw.cursor()) as cursor:
        cursor.execute("BEGIN")
        cursor.execute("UPDATE sticky_heartbeat SET counter = counter + 1 WHERE incarnation = 'b-1'")
        with pytest.raises(StoreUnavailable):
            hasty.swap(view, without_a, {"b-1": 0})
        assert store.heartbeat("a-1").alive, "others do not wait"
        cursor.execute("COMMIT")
    assert not store.swap(view, without_a, {"b-1": 0})
    assert store.swap(view, without_a, {"b-1": 1})


def test_members_come_and_go_by_the_hundred(store: SqlStore) -> None:
    names = [f"worker-{number}@host" for number in range(600)]
    empty = view = first_view(store)
    for name in names:
        view = changes.join(view, Member(name, f"{name}-1"))
    assert store.swap(empty, view)
    assert store.heartbeat(f"{names[7]}-1", announce=False).heartbeats == {
        f"{name}-1": int(name == names[7]) for name in names
    }
    none = replace(empty, version=view.version + 1)
    guard = store.read().heartbeats
    assert not store.swap(view, none, {**guard, f"{names[599]}-1": 1})
    assert store.swap(view, none, guard)
    assert store.read().heartbeats == {}


def test_ids_are_revoked_by_the_hundred(store: SqlStore) -> None:
    store.revoke([f"a{number}" for number in range(600)], ttl=60, limit=1000)
    store.revoke([f"b{number}" for number in range(400)] * 2, ttl=60, limit=400)
    assert store.revoked() == {f"b{number}" for number in range(400)}
    store.revoke(["x" * 1024], ttl=60, limit=400)
    assert "x" * 1024 in store.revoked() and len(store.revoked()) == 400


def test_a_document_that_cannot_be_read_is_named(store: SqlStore, sql_url: str) -> None:
    view = first_view(store)
    with closing(database(sql_url)) as own:
        own.run("UPDATE {view} SET document = %s", [b"{"])
    with pytest.raises(DocumentDamaged, match=r"table sticky_view, row one\.default: "):
        store.read()
    assert not store.heartbeat("a-1").alive
    assert store.swap(view, replace(view, version=2)), "it can be replaced"


def test_claims_and_pins_are_swept_and_listed_page_by_page(store: SqlStore, sql_url: str) -> None:
    view = joined(store, joined(store, first_view(store), "a"), "b")
    keys = [f"key-{number}" for number in range(1100)]
    with closing(database(sql_url)) as own:
        place = SqlPlacementStore(own, "default", prefix="one")
        answers = place.claim("a-1", 1, (view.version, 1), [Wish(key, "", run=True) for key in keys]).answers
        assert sorted(answer.token for answer in answers.values()) == [answers[key].token for key in keys]
        rows = [(b"one.default", key.encode(), b"b-1", b"b", 1) for key in keys]
        for some in chunks(rows):
            own.run(
                "INSERT INTO {pin} (scope, task_key, incarnation, worker, token) VALUES " + values(some)[0],
                values(some)[1],
            )
        assert set(place.look(NO_VERSION, keys).pins) == set(keys)
        found, cursor = list[str](), ""
        while cursor != START:
            cursor, page = place.pins(cursor or START)
            found += [pin.key for pin in page]
        assert sorted(found) == sorted(keys)
        assert store.swap(view, changes.evict(changes.evict(view, "a"), "b"))
        cursor = place.sweep()
        while cursor != START:
            cursor = place.sweep(cursor)
        assert own.rows("SELECT COUNT(*) FROM {key_claim}") == own.rows("SELECT COUNT(*) FROM {pin}") == [(0,)]
        assert place.lost("b", ["b-1"]) == set(keys)
        place.forget(["b-1"], keys)
        assert place.lost("b", ["b-1"]) == set()


# -- The id of the store -------------------------------------------------------------------------


def test_another_database_is_another_store(sql_url: str, opened: Connect) -> None:
    with closing(database(sql_url, prefix="other_")) as other:
        apart = SqlStore(other, "default", prefix="one")
        assert opened(sql_url).read().store_id == opened(sql_url).read().store_id != apart.read().store_id


def test_a_user_without_privileges_can_read_the_stores_id(postgresql_url: str, opened: Connect) -> None:
    expected = opened(postgresql_url).read().store_id
    name = f"{Address.parse(postgresql_url).database}_reader"
    with connect(postgresql_url) as raw:
        raw.execute(f"CREATE ROLE {name} LOGIN")
        try:
            raw.execute(f"GRANT SELECT ON sticky_meta, sticky_view, sticky_heartbeat TO {name}")
            asking = database(postgresql_url.replace("//postgres@", f"//{name}@").replace("//root@", f"//{name}@"))
            with closing(asking):
                assert asking.rows("SELECT current_user") == [(name,)]
                assert SqlStore(asking, "default", prefix="one").read().store_id == expected
        finally:
            raw.execute(f"DROP OWNED BY {name}")
            raw.execute(f"DROP ROLE {name}")


def test_a_standby_is_refused_and_promoted_it_is_another_store(postgres: PostgresServer, opened: Connect) -> None:
    store = opened(postgres.url)
    view = joined(store, first_view(store), "a")
    store.close()
    postgres.kill()
    postgres.stand_by()
    postgres.start()
    for verb in (store.read, lambda: store.heartbeat("a-1"), lambda: store.swap(view, changes.evict(view, "a"))):
        with pytest.raises(StoreUnavailable, match=r"recovery is in progress|25006.*standby"):
            verb()
    with connect(postgres.url) as raw:
        raw.execute("SELECT pg_promote()")
    reading = store.read()
    assert reading.view == view and reading.heartbeats == {"a-1": 0}
    assert reading.store_id != view.store_id, "it may lack the last transactions"
    assert not store.swap(view, changes.evict(view, "a"))
    assert store.heartbeat("a-1").store_id == reading.store_id


def test_a_file_that_was_replaced_is_another_store(sqlite_url: str, opened: Connect, tmp_path: Path) -> None:
    store, path = opened(sqlite_url), Path(Address.parse(sqlite_url).database)
    view = joined(store, first_view(store), "a")
    with connect(sqlite_url) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copyfile(path, tmp_path / "copy")
    (tmp_path / "copy").replace(path)
    with pytest.raises(StoreUnavailable, match="the file was replaced"):
        store.heartbeat("a-1")
    assert store.read().view == view
    assert store.read().store_id != view.store_id
    assert not store.swap(view, changes.evict(view, "a"))


def test_swaps_and_heartbeats_wait_for_the_disk_whatever_the_server_prefers(postgresql_url: str) -> None:
    name = Address.parse(postgresql_url).database
    with connect(postgresql_url) as raw:
        raw.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
        try:
            with closing(database(postgresql_url)) as own:
                shown = "SELECT current_setting('synchronous_commit')"
                with own.transaction() as inside:
                    SqlStore(own, "default", prefix="one")._snapshots.read(inside)
                    assert inside.rows(shown) == [("on",)]
                assert own.rows(shown) == [("off",)]
        finally:
            raw.execute(f"ALTER DATABASE {name} RESET synchronous_commit")


# -- Signals -------------------------------------------------------------------------------------


def test_watches_look_no_more_often_the_shorter_they_are(monkeypatch: pytest.MonkeyPatch, sqlite_url: str) -> None:
    looks: list[int] = []

    def look() -> list[int]:
        looks.append(len(looks))
        return []

    monkeypatch.setattr(poller, "FIRST_PAUSE", 60.0)
    with closing(poller.Poller(database(sqlite_url))) as waits:
        for _ in range(100):
            assert waits.watch("a store", look, (), 0.0) == []
    assert looks == [0]
