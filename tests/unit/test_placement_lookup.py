"""What a sender knows of keys that are placed, and for how long."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pytest

from celery_sticky import Keyspace, jump
from celery_sticky.errors import KeyspaceMismatch, NotPinned, NoWorker, PinnedElsewhere, StoreUnavailable
from celery_sticky.keys import slot_for
from celery_sticky.ownership import changes
from celery_sticky.ownership.view import HAS_WORKER_QUEUE, Member, View
from celery_sticky.placement import lookup
from celery_sticky.placement.lookup import FRESH, PlacementLookup
from celery_sticky.settings import Settings
from celery_sticky.stores.memory.placement import MemoryPlacementStore
from celery_sticky.stores.memory.store import MemoryServer, MemoryStore
from celery_sticky.stores.placement import Look, Version

JUMPED, PINNED = Keyspace("jumped", assign=jump), Keyspace("pinned", pins=True)
STRICT = Keyspace("strict", pins=True, unpinned="refuse")


class Sender:
    """A sender on a clock of its own, and a store that it counts the looks at."""

    def __init__(self) -> None:
        self.now, self.poller = 0.0, 0
        self.server = MemoryServer()
        self.lookup = PlacementLookup(lambda: Settings(slots=8), self.open, lambda: self.now)
        self.views: dict[str, View] = {}

    def open(self, keyspace: str) -> MemoryPlacementStore:
        sender = self

        class Counted(MemoryPlacementStore):
            def look(self, known: Version, keys: Collection[str]) -> Look:
                sender.poller += 1
                self._records()  # raises where the server is stopped
                return super().look(known, keys)

        return Counted(self.server, keyspace)

    def join(self, keyspace: Keyspace, *names: str) -> None:
        old = self.views.get(keyspace.name)
        view = old or changes.fresh(
            slots=8, hash=keyspace.hash_name, generation=1, version=1, store_id=self.server.run_id
        )
        for name in names:
            view = changes.join(view, Member(name, f"{name}-1", attributes={HAS_WORKER_QUEUE: "1"}))
            self.open(keyspace.name).enlist(name, f"{name}-1")
        self._write(keyspace, view)

    def leave(self, keyspace: Keyspace, name: str) -> None:
        self._write(keyspace, changes.leave(self.views[keyspace.name], name))

    def _write(self, keyspace: Keyspace, view: View) -> None:
        assert MemoryStore(self.server, keyspace.name).swap(self.views.get(keyspace.name), view)
        self.views[keyspace.name] = view


@pytest.fixture
def sender() -> Iterator[Sender]:
    made = Sender()
    yield made
    made.lookup.close()


def test_what_was_read_is_used_for_a_second_for_all_keys(sender: Sender) -> None:
    sender.join(JUMPED, "a")
    assert {sender.lookup.of(JUMPED, f"k{i}") for i in range(20)} == {"@a"}
    assert sender.poller == 1
    sender.join(JUMPED, "b")
    sender.now += FRESH - 0.01
    assert {sender.lookup.of(JUMPED, f"k{i}") for i in range(20)} == {"@a"}
    sender.now += 0.01
    assert {sender.lookup.of(JUMPED, f"k{i}") for i in range(20)} == {"@a", "@b"}
    assert sender.poller == 2


def test_pins_are_looked_up_once_a_key_and_second(sender: Sender) -> None:
    sender.join(PINNED, "a", "b")
    for key in ("k", "other"):
        sender.open("pinned").pin("a", key, take=False)
    assert [sender.lookup.of(PINNED, "k") for _ in range(5)] == ["@a"] * 5
    sender.lookup.of(PINNED, "other")
    assert sender.poller == 2
    sender.open("pinned").pin("b", "k", take=True)
    assert sender.lookup.of(PINNED, "k") == "@a"
    sender.now += FRESH
    assert sender.lookup.of(PINNED, "k") == "@b"


def test_that_a_key_is_not_pinned_is_asked_again_by_each_send(sender: Sender) -> None:
    """Guards: a message to a client that has just connected is not refused for what was true a moment ago."""
    sender.join(STRICT, "a", "b")
    with pytest.raises(NotPinned):
        sender.lookup.of(STRICT, "k")
    sender.open("strict").pin("b", "k", take=False)
    assert sender.lookup.of(STRICT, "k") == "@b"
    assert sender.lookup.of(STRICT, "k") == "@b"
    assert sender.poller == 2, "what was found is used for a second"


def test_the_pin_of_a_worker_that_leaves_is_no_answer_to_keep(sender: Sender) -> None:
    sender.join(STRICT, "a", "b")
    sender.open("strict").pin("a", "k", take=False)
    assert sender.lookup.of(STRICT, "k") == "@a"
    sender.leave(STRICT, "a")
    sender.open("strict").pin("b", "other", take=False)
    assert sender.lookup.of(STRICT, "other") == "@b", "which brings the document"
    with pytest.raises(NotPinned):
        sender.lookup.of(STRICT, "k")
    sender.open("strict").pin("b", "k", take=True)
    assert sender.lookup.of(STRICT, "k") == "@b"


def test_that_there_is_no_worker_is_asked_again_by_each_send(sender: Sender) -> None:
    sender.join(JUMPED)  # a document without members
    with pytest.raises(NoWorker):
        sender.lookup.of(JUMPED, "k")
    sender.join(JUMPED, "a")
    assert sender.lookup.of(JUMPED, "k") == "@a"


def test_who_pins_a_key_knows_of_it_at_once(sender: Sender) -> None:
    sender.join(PINNED, "a", "b")
    sender.lookup.of(PINNED, "k")
    pin = sender.lookup.pin(PINNED, "a", "k", take=False)
    assert sender.lookup.of(PINNED, "k") == "@a"
    with pytest.raises(PinnedElsewhere, match="pinned by worker 'a'"):
        sender.lookup.pin(PINNED, "b", "k", take=False)
    assert pin.release() and not pin.release()
    assert sender.lookup.of(PINNED, "k") == slot_for("k", 8)
    assert sender.lookup.pin(PINNED, "b", "k", take=False).token > pin.token
    assert sender.lookup.unpin(PINNED, "b", "k")
    assert sender.lookup.of(PINNED, "k") == slot_for("k", 8)


def test_a_pin_ends_with_its_block_but_not_with_the_block_of_an_earlier_one(sender: Sender) -> None:
    sender.join(PINNED, "a")
    with sender.lookup.pin(PINNED, "a", "k", take=False) as old:
        new = sender.lookup.pin(PINNED, "a", "k", take=True)
    assert not old.release(), "the connection before has closed after the client was back"
    assert sender.lookup.of(PINNED, "k") == "@a"
    with pytest.raises(KeyError), new:
        raise KeyError
    assert sender.lookup.of(PINNED, "k") == slot_for("k", 8)
    assert (new.key, new.keyspace, new.worker) == ("k", "pinned", "a")


def test_without_the_store_it_fails_and_does_not_guess(sender: Sender) -> None:
    sender.join(JUMPED, "a")
    sender.lookup.of(JUMPED, "k")
    sender.server.stop()
    assert sender.lookup.of(JUMPED, "k") == "@a", "what it read a moment ago"
    sender.now += FRESH
    with pytest.raises(StoreUnavailable):
        sender.lookup.of(JUMPED, "k")


def test_without_a_document_nobody_is_there(sender: Sender) -> None:
    with pytest.raises(NoWorker):
        sender.lookup.of(JUMPED, "k")
    assert sender.lookup.of(PINNED, "k") == slot_for("k", 8), "the queue of a slot needs nobody"
    with pytest.raises(NotPinned):
        sender.lookup.of(STRICT, "k")


def test_a_sender_with_another_function_than_the_workers_is_told(sender: Sender) -> None:
    sender.join(JUMPED, "a")
    other = Keyspace("jumped", assign=jump, version="2")
    with pytest.raises(KeyspaceMismatch, match=r"assign=jump'.*assign=jump@2'") as told:
        sender.lookup.of(other, "k")
    assert "Declare 'jumped' here with keys placed by assign=jump." in str(told.value)
    assert "sticky.jobs.shutdown('jumped')" in str(told.value), "and how to change it for all"
    assert "celery sticky init --force --keyspace jumped" in str(told.value)


def test_the_pins_of_many_keys_are_read_in_parts_and_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "AT_ONCE", 2)
    sender = Sender()
    sender.join(PINNED, "a")
    store, view = sender.open("pinned"), sender.views["pinned"]
    for key in ("k1", "k3"):
        store.pin("a", key, take=False)
    keys = [f"k{n}" for n in range(5)]
    assert sender.lookup.pins(PINNED, view, keys) == {"k1": "a-1", "k3": "a-1"}
    assert sender.poller == 3
    store.unpin("a", "k1")
    assert sender.lookup.pins(PINNED, view, keys) == {"k3": "a-1"}
    before = sender.poller
    assert sender.lookup.pins(PINNED, view, []) == sender.lookup.pins(JUMPED, view, keys) == {}
    assert sender.poller == before
