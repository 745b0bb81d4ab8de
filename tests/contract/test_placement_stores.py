"""The contract of directories on every driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import redis
from harness.sql_stores import InDatabase, database
from harness.store_servers import InMemory, Private, Standing

from celery_sticky.drivers import open_placement_store, open_store
from celery_sticky.errors import NotAMember
from celery_sticky.ownership import changes
from celery_sticky.ownership.view import Member, View
from celery_sticky.stores import Store
from celery_sticky.stores.memory.placement import MemoryPlacementStore
from celery_sticky.stores.memory.store import MemoryServer, MemoryStore
from celery_sticky.stores.placement import (
    NO_VERSION,
    START,
    Answer,
    Claims,
    PinMoved,
    Pinned,
    PinRecord,
    PlacementStore,
    Said,
    Wish,
)
from celery_sticky.stores.sql import SqlStore
from celery_sticky.stores.sql.placement import SqlPlacementStore
from celery_sticky.testing.servers.valkey import ValkeyServer
from celery_sticky.testing.store_contract import StoreServer, first_view, hear, joined


def version(view: View) -> tuple[int, int]:
    return view.version, view.generation


class Place:
    """A store and directories beside it, at one server."""

    def __init__(self, server: StoreServer[Any], open_it: Callable[[], PlacementStore]) -> None:
        self.server, self.open_it = server, open_it
        self.store: Store = server.connect("default", "one")
        self.placement_store = open_it()
        self.view = joined(self.store, joined(self.store, first_view(self.store), "a"), "b")
        self.calls = 0
        for name in "ab":
            self.placement_store.enlist(name, f"{name}-1")

    def ask(self, incarnation: str, *wishes: Wish, view: View | None = None) -> Claims:
        self.calls += 1
        return self.placement_store.claim(incarnation, self.calls, version(view or self.view), wishes)

    def claim(self, incarnation: str, key: str, pin: str = "") -> Answer:
        return self.ask(incarnation, Wish(key, pin, run=True)).answers[key]

    def release(self, incarnation: str, *keys: str) -> None:
        self.calls += 1
        self.placement_store.release(incarnation, self.calls, keys)

    def evict(self, name: str) -> None:
        new = changes.evict(self.view, name)
        assert self.store.swap(self.view, new)
        self.view = new

    def close(self) -> None:
        self.store.close()
        self.placement_store.close()


class PlacementStoreContract:
    """What every directory does."""

    @pytest.fixture
    def place(self) -> Iterator[Place]:
        raise NotImplementedError

    def test_a_key_is_one_workers_to_run_until_it_is_given_back(self, place: Place) -> None:
        first = place.claim("a-1", "k")
        assert first.said is Said.GRANTED and first.token > 0
        assert place.claim("b-1", "k") == Answer(Said.HELD, by="a-1")
        place.release("b-1", "k")
        assert place.claim("b-1", "k") == Answer(Said.HELD, by="a-1"), "only who has it can give it back"
        place.release("a-1", "k")
        assert place.claim("b-1", "k").token > first.token

    def test_it_tells_who_has_claimed_a_key(self, place: Place) -> None:
        assert place.placement_store.holder("k") == ""
        place.claim("a-1", "k")
        assert place.placement_store.holder("k") == "a-1"
        place.evict("a")
        assert place.placement_store.holder("k") == ""

    def test_of_two_claims_at_once_one_is_granted(self, place: Place) -> None:
        wishes = [Wish(f"k{i}", "", run=True) for i in range(200)]

        def claim(name: str) -> Claims:
            placement_store = place.open_it()
            try:
                return placement_store.claim(f"{name}-1", 1, version(place.view), wishes)
            finally:
                placement_store.close()

        with ThreadPoolExecutor(2) as threads:
            a, b = threads.map(claim, "ab")
        for wish in wishes:
            said = {a.answers[wish.key].said, b.answers[wish.key].said}
            assert said == {Said.GRANTED, Said.HELD}

    def test_claimed_again_by_the_same_it_gets_a_higher_token(self, place: Place) -> None:
        assert place.claim("a-1", "k").token < place.claim("a-1", "k").token

    def test_an_eviction_makes_claims_and_pins_void(self, place: Place) -> None:
        place.placement_store.pin("a", "p", take=False)
        token = place.claim("a-1", "k").token
        place.evict("a")
        assert place.claim("b-1", "k").token > token
        assert place.placement_store.look(NO_VERSION, ["p"]).pins == {}
        assert place.placement_store.pin("b", "p", take=False).incarnation == "b-1"
        assert not place.ask("a-1", Wish("x", "", run=True)).member
        with pytest.raises(NotAMember):
            place.placement_store.pin("a", "x", take=True)

    def test_a_claim_thought_out_with_other_members_is_refused_and_tells_them(self, place: Place) -> None:
        old = place.view
        place.evict("b")
        claims = place.ask("a-1", Wish("k", "", run=True), view=old)
        assert claims == Claims(member=True, changed=True, view=place.view)
        place.release("a-1", "k")
        assert place.claim("a-1", "k").said is Said.GRANTED

    def test_a_claim_thought_out_with_another_pin_is_refused_and_tells_it(self, place: Place) -> None:
        place.placement_store.pin("b", "k", take=False)
        assert place.claim("a-1", "k") == Answer(Said.PINNED, by="b-1")
        assert place.claim("b-1", "k", pin="b-1").said is Said.GRANTED
        place.placement_store.unpin("b", "k")
        assert place.claim("b-1", "k", pin="b-1") == Answer(Said.PINNED)

    def test_who_does_not_want_to_run_a_key_claims_nothing(self, place: Place) -> None:
        assert place.ask("a-1", Wish("k", "", run=False)).answers == {"k": Answer(Said.RIGHT)}
        assert place.claim("b-1", "k").said is Said.GRANTED
        assert place.ask("a-1", Wish("k", "", run=False)).answers == {"k": Answer(Said.RIGHT)}

    def test_a_request_that_arrives_late_changes_nothing(self, place: Place) -> None:
        place.claim("a-1", "k")
        place.placement_store.release("a-1", place.calls, ["k"])
        assert place.claim("b-1", "k").said is Said.HELD, "a release from before the claim"
        assert not place.placement_store.claim(
            "a-1", place.calls - 1, version(place.view), [Wish("x", "", run=True)]
        ).member
        assert place.claim("b-1", "x").said is Said.GRANTED

    def test_many_keys_are_answered_each_by_itself(self, place: Place) -> None:
        place.claim("b-1", "k1")
        place.placement_store.pin("b", "k2", take=False)
        answers = place.ask("a-1", *(Wish(f"k{i}", "", run=i != 3) for i in range(5))).answers
        said = [answers[f"k{i}"].said for i in range(5)]
        assert said == [Said.GRANTED, Said.HELD, Said.PINNED, Said.RIGHT, Said.GRANTED]
        assert answers["k0"].token < answers["k4"].token

    def test_keys_may_have_any_text(self, place: Place) -> None:
        for key in ("a b", "ä\n", "%s", "x" * 1024):
            assert place.placement_store.pin("a", key, take=False).token
            assert place.placement_store.look(version(place.view), [key]).pins == {key: "a-1"}
            assert place.claim("a-1", key, pin="a-1").said is Said.GRANTED

    def test_a_pinned_key_is_told_refused_taken_and_let_go(self, place: Place) -> None:
        placement_store = place.placement_store
        first, second = placement_store.pin("a", "k", take=False), placement_store.pin("a", "k", take=False)
        assert (first.incarnation, first.by) == ("a-1", "") and second.token > first.token > 0
        assert placement_store.pin("b", "k", take=False) == Pinned(by="a")
        assert placement_store.look(version(place.view), ["k", "other"]).pins == {"k": "a-1"}
        assert not placement_store.unpin("b", "k")
        assert placement_store.pin("b", "k", take=True).token > second.token
        assert not placement_store.unpin("a", "k")
        assert placement_store.unpin("b", "k") and not placement_store.unpin("b", "k")

    def test_a_look_tells_the_document_only_where_it_has_changed(self, place: Place) -> None:
        assert not place.placement_store.look(version(place.view), []).changed
        look = place.placement_store.look(NO_VERSION, [])
        assert look.changed and look.view == place.view

    def test_workers_are_enlisted_and_struck_out_by_incarnation(self, place: Place) -> None:
        assert place.placement_store.enlisted() == {"a": "a-1", "b": "b-1"}
        place.placement_store.enlist("a", "a-2")
        place.placement_store.strike("a", "a-1")
        assert place.placement_store.enlisted()["a"] == "a-2"
        place.placement_store.strike("a", "a-2")
        assert place.placement_store.enlisted() == {"b": "b-1"}

    def test_a_sweep_removes_what_is_void_and_nothing_else(self, place: Place) -> None:
        for name in "ab":
            place.claim(f"{name}-1", f"{name}-key")
            place.placement_store.pin(name, f"{name}-pin", take=False)
        place.evict("a")
        on = place.placement_store.sweep()
        while on != "0":
            on = place.placement_store.sweep(on)
        assert place.claim("b-1", "a-key").said is Said.GRANTED
        assert place.placement_store.look(NO_VERSION, ["b-pin"]).pins == {"b-pin": "b-1"}
        assert not place.placement_store.claim("b-1", 1, version(place.view), []).member, (
            "the calls of the living are known"
        )

    def test_who_has_claimed_a_key_hears_that_its_pin_has_changed(self, place: Place) -> None:
        placement_store, other = place.placement_store, place.open_it()
        placement_store.watch(0.0)
        placement_store.pin("a", "k:1", take=False)  # claimed by nobody
        assert hear(placement_store, PinMoved("k:1")) == [PinMoved("k:1")]
        place.claim("a-1", "k:1", pin="a-1")
        other.pin("a", "k:1", take=False)  # nothing new
        other.pin("b", "k:1", take=False)  # refused
        for change in (
            lambda: other.pin("b", "k:1", take=True),
            lambda: other.unpin("b", "k:1"),
            lambda: other.pin("a", "k:1", take=False),
        ):
            change()
            heard = placement_store.watch(10.0)
            while not heard:
                heard = placement_store.watch(10.0)
            assert heard == [PinMoved("k:1", frozenset({"a-1"}))]
        place.release("a-1", "k:1")
        other.unpin("a", "k:1")
        assert hear(placement_store, PinMoved("k:1")) == [PinMoved("k:1")], "it concerns nobody"
        other.close()

    def test_a_pin_that_another_takes_is_lost_until_that_is_known_or_it_is_pinned_again(self, place: Place) -> None:
        placement_store = place.placement_store
        for key in "klmn":
            placement_store.pin("a", key, take=False)
            placement_store.pin("b", key, take=True)
        assert set(placement_store.lost("a", ["a-1"])) == set("klmn") and not placement_store.lost("b", ["b-1"])
        placement_store.pin("a", "l", take=True)
        placement_store.unpin("a", "m")
        assert set(placement_store.lost("a", ["a-1"])) == {"k", "n"} and set(placement_store.lost("b", ["b-1"])) == {
            "l"
        }
        placement_store.forget(["a-1"], ["k"])
        assert set(placement_store.lost("a", ["a-1"])) == {"n"}
        placement_store.unpin("a", "l")
        assert set(placement_store.lost("a", ["a-1"])) == {"n"}, "what is let go is not lost"

    def test_an_earlier_pin_of_the_same_worker_ends_nothing(self, place: Place) -> None:
        """Guards: a connection that closes after its client has reconnected does not unpin the new one."""
        placement_store, seen = place.placement_store, version(place.view)
        old, new = placement_store.pin("a", "k", take=False), placement_store.pin("a", "k", take=False)
        assert not placement_store.unpin("a", "k", old)
        assert placement_store.look(seen, ["k"]).pins == {"k": "a-1"}
        assert placement_store.unpin("a", "k", new) and not placement_store.unpin("a", "k", new)
        assert placement_store.look(seen, ["k"]).pins == {}
        taken = placement_store.pin("b", "k", take=False)
        back = placement_store.pin("a", "k", take=True)
        assert not placement_store.unpin("b", "k", taken) and not placement_store.unpin("a", "k", new)
        assert placement_store.look(seen, ["k"]).pins == {"k": "a-1"}
        assert placement_store.unpin("a", "k"), "without a token any of them"
        assert not placement_store.unpin("a", "k", back)
        assert not placement_store.unpin("nobody", "k")

    def test_a_pin_that_is_let_go_is_not_lost_but_a_later_one_still_is(self, place: Place) -> None:
        placement_store = place.placement_store
        old = placement_store.pin("a", "k", take=False)
        new = placement_store.pin("a", "k", take=False)
        placement_store.pin("b", "k", take=True)
        placement_store.unpin("a", "k", old)
        assert placement_store.lost("a", ["a-1"]) == {"k"}, "the new one is lost, whatever becomes of the old"
        placement_store.unpin("a", "k", new)
        assert not placement_store.lost("a", ["a-1"])
        placement_store.unpin("b", "k")
        gone = [placement_store.pin("a", key, take=False) for key in "klm"]
        place.evict("a")
        placement_store.unpin("a", "l", gone[1])
        for _ in range(2):
            on = placement_store.sweep()
            while on != START:
                on = placement_store.sweep(on)
        placement_store.unpin("a", "m", gone[2])
        assert placement_store.lost("a", ["a-1"]) == {"k"}, "also when its worker was evicted"

    def test_a_pin_that_somebody_else_ends_is_lost(self, place: Place) -> None:
        placement_store, other = place.placement_store, place.open_it()
        old, new = placement_store.pin("a", "k", take=False), placement_store.pin("a", "k", take=False)
        other.watch(0.0)
        assert not placement_store.revoke("k", old.token), "it has ended before"
        assert placement_store.revoke("k", new.token) == "a" and not placement_store.revoke("k", new.token)
        assert hear(other, PinMoved("k", frozenset({"a-1"}))) == [PinMoved("k", frozenset({"a-1"}))]
        assert placement_store.lost("a", ["a-1"]) == {"k"}
        assert placement_store.look(version(place.view), ["k"]).pins == {} and not placement_store.revoke("k")
        placement_store.pin("a", "k", take=False)
        assert placement_store.revoke("k") == "a"
        placement_store.pin("a", "k", take=False)
        place.evict("a")
        assert not placement_store.revoke("k"), "it has ended with its worker"
        other.close()

    def test_the_pins_of_living_workers_are_listed_with_their_age(self, place: Place) -> None:
        placement_store = place.placement_store
        assert placement_store.pins() == (START, [])
        made = {key: placement_store.pin("b", key, take=False) for key in ("k 1", "ä\n", "x")}
        placement_store.pin("a", "gone", take=False)
        place.evict("a")
        found, on = list[PinRecord](), ""
        while on != START:
            on, page = placement_store.pins(on or START)
            found += page
        assert {(pin.key, pin.worker, pin.incarnation, pin.token) for pin in found} == {
            (key, "b", "b-1", pinned.token) for key, pinned in made.items()
        }
        assert all(pin.age is not None and 0 <= pin.age < 60 for pin in found)

    def test_who_has_pinned_a_key_hears_that_it_was_taken(self, place: Place) -> None:
        placement_store, other = place.placement_store, place.open_it()
        placement_store.pin("a", "k", take=False)
        placement_store.watch(0.0)
        other.pin("b", "k", take=True)
        heard = placement_store.watch(10.0)
        while not heard:
            heard = placement_store.watch(10.0)
        assert heard == [PinMoved("k", frozenset({"a-1"}))]
        other.close()

    def test_an_eviction_loses_every_pin_however_it_is_removed(self, place: Place) -> None:
        placement_store = place.placement_store
        for key in ("again", "swept", "other", "gone"):
            placement_store.pin("a", key, take=False)
        placement_store.unpin("a", "gone")
        place.evict("a")
        placement_store.pin("b", "other", take=False)
        on = placement_store.sweep()
        while on != "0":
            on = placement_store.sweep(on)
        assert set(placement_store.lost("a", ["a-1"])) == {"again", "swept", "other"}
        new = changes.join(place.view, Member("a", "a-2"))
        assert place.store.swap(place.view, new)
        placement_store.enlist("a", "a-2")
        placement_store.pin("a", "again", take=False)
        assert set(placement_store.lost("a", ["a-2", "a-1"])) == {"swept", "other"}
        placement_store.forget(["a-2", "a-1"], ["swept", "other"])
        assert not placement_store.lost("a", ["a-2", "a-1"])

    def test_a_change_of_the_document_is_heard(self, place: Place) -> None:
        assert not place.placement_store.watch(0.0)
        place.evict("a")
        heard = place.placement_store.watch(10.0)
        while not heard:
            heard = place.placement_store.watch(10.0)

    def test_a_pin_that_changes_is_heard_by_directories_and_not_by_stores(self, place: Place) -> None:
        other = place.open_it()
        other.watch(0.0)
        place.store.watch(0.0)
        for change in (
            lambda: place.placement_store.pin("a", "k:é", take=False),
            lambda: place.placement_store.pin("b", "k:é", take=True),
            lambda: place.placement_store.unpin("b", "k:é"),
        ):
            change()
            heard = other.watch(10.0)
            while not heard:
                heard = other.watch(10.0)
            assert [moved.key for moved in heard if isinstance(moved, PinMoved)] == ["k:é"]
        place.placement_store.pin("a", "last", take=False)
        for again in range(3):
            assert not place.placement_store.unpin("b", "last")
            assert place.placement_store.pin("a", "last", take=bool(again)).token
        assert hear(other, PinMoved("last")) == [PinMoved("last")]
        assert not other.watch(0.2), "nothing has changed"
        assert not place.store.watch(0.0)
        other.close()

    def test_a_store_that_has_forgotten_heartbeats_grants_nothing_until_there_is_a_fresh_document(
        self, place: Place
    ) -> None:
        place.claim("a-1", "k")
        counter = place.store.heartbeat("b-1").counter
        wish = Wish("x", "", run=True)
        assert place.placement_store.claim("b-1", 1000, version(place.view), [wish], counter).answers["x"].token
        assert not place.placement_store.claim("b-1", 1001, version(place.view), [wish], counter + 1).member
        assert place.store.read().view is None, "nobody acts on that any more"
        assert not place.ask("a-1", wish).member
        fresh = changes.fresh(slots=8, hash="h", generation=2, version=9, store_id=place.store.read().store_id)
        assert place.store.swap(None, fresh)
        place.view = joined(place.store, fresh, "c")
        assert place.claim("c-1", "k").said is Said.GRANTED


class FaultyPlacementStoreContract(PlacementStoreContract):
    """For servers that may be hurt."""

    def test_another_run_of_the_server_grants_nothing_until_there_is_a_fresh_document(self, place: Place) -> None:
        place.claim("a-1", "k")
        place.server.restart()
        place.close()
        place.store, place.placement_store = place.server.connect("default", "one"), place.open_it()
        assert not place.ask("b-1", Wish("x", "", run=True)).member, "it may have lost the claims of its last moments"
        with pytest.raises(NotAMember):
            place.placement_store.pin("a", "x", take=True)
        fresh = replace(changes.fresh(slots=8, hash="h", generation=2, version=9, store_id=""))
        fresh = replace(fresh, store_id=place.store.read().store_id)
        assert place.store.swap(place.view, fresh)
        place.view = joined(place.store, fresh, "c")
        assert place.claim("c-1", "k").said is Said.GRANTED


class TestMemory(FaultyPlacementStoreContract):
    @pytest.fixture
    def place(self) -> Iterator[Place]:
        server = InMemory[Any](MemoryServer, MemoryStore)
        server.connect("default", "one")
        place = Place(server, lambda: MemoryPlacementStore(server.servers["one"], "default"))
        yield place
        place.close()


class TestStandingRedis(PlacementStoreContract):
    @pytest.fixture
    def place(self, redis_url: str) -> Iterator[Place]:
        place = Place(Standing(redis_url, open_store), lambda: open_placement_store(redis_url, "default", prefix="one"))
        yield place
        place.close()

    def test_a_pin_of_a_release_without_tokens_counts(self, place: Place, redis_url: str) -> None:
        with redis.Redis.from_url(redis_url) as client:
            client.hset("one:default:pins", mapping={"k": "a-1 a", "l": "a-1 a", "m": "a-1 a"})
            client.sadd("one:default:lost:b-1", "k")
        placement_store = place.placement_store
        assert placement_store.look(version(place.view), ["k"]).pins == {"k": "a-1"}
        assert placement_store.pins()[1][0].age is None
        assert placement_store.pin("b", "k", take=False) == Pinned(by="a")
        assert placement_store.lost("b", ["b-1"]) == {"k"}
        assert placement_store.unpin("a", "k") and placement_store.revoke("l", 0) == "a"
        place.evict("a")
        assert placement_store.sweep() == "p0" and placement_store.sweep("p0") == START
        assert placement_store.lost("a", ["a-1"]) == {"l", "m"}


class TestValkey(FaultyPlacementStoreContract):
    @pytest.fixture
    def place(self, valkey: Callable[..., ValkeyServer]) -> Iterator[Place]:
        server = valkey(appendonly=True)
        place = Place(Private(server, open_store), lambda: open_placement_store(server.url, "default", prefix="one"))
        yield place
        place.close()


class TestSql(PlacementStoreContract):
    """A durable store, in a database of each kind: a restart is not another run of it."""

    @pytest.fixture
    def place(self, sql_url: str) -> Iterator[Place]:
        server = InDatabase[Any](sql_url, SqlStore)
        place = Place(server, lambda: SqlPlacementStore(database(sql_url), "default", prefix="one"))
        yield place
        place.close()
