"""What a view says of itself, and its written form."""

from __future__ import annotations

import json
import random
import uuid
import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_sticky.errors import DocumentDamaged, DocumentTooNew
from celery_sticky.ownership.changes import fresh, join, replan
from celery_sticky.ownership.view import FORMAT, READABLE, Member, MemberState, View


def view() -> View:
    """Three slots: one settled, one in handover, one unowned whose home is away."""
    start = fresh(slots=3, hash="jump-mmh3-1", generation=2, version=7, store_id="run-1", epochs=[3, 9, 4])
    members = {
        "b": Member("b", "b-1", joined=2, weight=0),
        "a": Member("a", "a-1", joined=1, attributes={"zone": "x"}),
        "c": Member("c", "c-1", state=MemberState.LEAVING),
    }
    return replace(start, members=members, owner=("a", "c", None), target=("a", "a", None), home=("a", "c", "gone"))


@st.composite
def views(draw: st.DrawFn) -> View:
    text = st.text(max_size=8)
    members = draw(
        st.dictionaries(
            text,
            st.builds(
                Member,
                name=st.just(""),
                incarnation=text,
                joined=st.integers(0, 2**60),
                weight=st.integers(0, 9),
                state=st.sampled_from(MemberState),
                attributes=st.dictionaries(text, text, max_size=3),
            ),
            max_size=6,
        )
    )
    slots = draw(st.integers(1, 30))

    def column(values: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
        return st.lists(values, min_size=slots, max_size=slots).map(tuple)

    names = st.sampled_from([*members, None])
    return View(
        version=draw(st.integers(0, 2**60)),
        generation=draw(st.integers(0, 2**60)),
        store_id=draw(text),
        slots=slots,
        hash=draw(text),
        members={name: replace(member, name=name) for name, member in members.items()},
        owner=draw(column(names)),
        target=draw(column(names)),
        epoch=draw(column(st.integers(0, 2**70))),
        home=draw(column(st.one_of(names, text))),
    )


def test_a_view_says_who_owns_what_and_who_gives() -> None:
    one = view()
    assert one.owned_by("c") == {1}
    assert one.owned_by("b") == frozenset()
    assert one.giving("c") == {1}
    assert one.giving("a") == frozenset()
    assert one.unowned == {2}
    assert not one.settled
    assert replace(one, target=one.owner).settled
    assert one.max_epoch == 10
    assert [member.name for member in one.active] == ["a", "b"]


def test_a_member_is_found_by_its_incarnation_as_long_as_it_is_one() -> None:
    one = view()
    assert one.member_of("c-1") is one.members["c"]
    assert one.member_of("c-0") is None


@given(views())
@settings(max_examples=200, deadline=None)
def test_the_written_form_reads_back(one: View) -> None:
    assert View.from_bytes(one.to_bytes()) == one


@given(views())
@settings(max_examples=50, deadline=None)
def test_equal_views_are_written_alike(one: View) -> None:
    other = replace(one, members=dict(reversed(list(one.members.items()))))
    assert other.to_bytes() == one.to_bytes()


def test_a_small_document_can_be_read_by_a_person_and_does_not_change_its_form() -> None:
    assert json.loads(view().to_bytes()) == {
        "format": 1,
        "version": 7,
        "generation": 2,
        "store_id": "run-1",
        "slots": 3,
        "hash": "jump-mmh3-1",
        "members": [
            {"name": "a", "incarnation": "a-1", "joined": 1, "attributes": {"zone": "x"}},
            {"name": "b", "incarnation": "b-1", "joined": 2, "weight": 0},
            {"name": "c", "incarnation": "c-1", "joined": 0, "state": "leaving"},
        ],
        "owner": [0, 2, -1],
        "target": [None, 0, None],
        "home": [None, None, 3],
        "epoch": [4, 10, 5],
        "away": ["gone"],
    }


def test_a_settled_document_names_each_owner_once() -> None:
    one = replan(join(fresh(slots=256, hash="h", generation=1, version=1, store_id="s"), Member("a", "1")))
    document = json.loads(one.to_bytes())
    assert {"target", "home", "away"}.isdisjoint(document)
    assert len(one.to_bytes()) < READABLE


def test_a_thousand_members_with_16384_slots_fit_in_64_kilobytes() -> None:
    """After years of coming and going: neighbours are with different owners, and no two slots moved equally often."""
    dice = random.Random(1)
    one = fresh(slots=16_384, hash="jump-mmh3-1", generation=1_790_000_000_000_000, version=80_000, store_id="x" * 40)
    names = [f"celery@worker-{dice.randrange(16**8):08x}" for _ in range(1000)]
    members = {name: Member(name, uuid.UUID(int=dice.getrandbits(128)).hex, joined=at) for at, name in enumerate(names)}
    owner = tuple(dice.choices(names, k=one.slots))
    epoch = tuple(dice.choices(range(100, 104), k=one.slots))
    one = replace(one, members=members, owner=owner, target=owner, home=owner, epoch=epoch)
    data = one.to_bytes()
    assert len(data) <= 64 * 1024
    assert View.from_bytes(data) == one


def changed(**changes: Any) -> bytes:
    return json.dumps({**json.loads(view().to_bytes()), **changes}).encode()


def without(key: str) -> bytes:
    return json.dumps({k: v for k, v in json.loads(view().to_bytes()).items() if k != key}).encode()


MEMBER = {"name": "a", "incarnation": "a-1", "joined": 1}


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "neither JSON nor deflated"),
        (b"{", "neither JSON nor deflated"),
        (b"\xff\xfe", "neither JSON nor deflated"),
        (zlib.compress(b"nonsense"), "neither JSON nor deflated"),
        (zlib.compress(b"{}" * 99)[:-3], "neither JSON nor deflated"),
        (zlib.compress(b"[]"), "no usable `format`"),
        (b"{}", "no usable `format`"),
        (changed(format=0), "`format` below 1"),
        (changed(slots=0), "`slots` below 1"),
        (changed(version=True), "no usable `version`"),
        (changed(version="7"), "no usable `version`"),
        (changed(generation=-1), "`generation` below 0"),
        (changed(slots=4), "has 4 slots but 3 values of `owner`"),
        (changed(epoch=[1, 2]), "has 3 slots but 2 values of `epoch`"),
        (changed(target=[1]), "has 3 slots but 1 values of `target`"),
        (changed(home=[1, 1, 1, 1]), "has 3 slots but 4 values of `home`"),
        (changed(epoch=[1, 2, -3]), "`epoch` that is not a number"),
        (changed(epoch=[1, 2, 3.5]), "`epoch` that is not a number"),
        (changed(owner=[0, 1, 3]), "`owner` outside its list of members"),
        (changed(owner=[0, 1, -2]), "`owner` outside its list of members"),
        (changed(owner=[0, 1, None]), "`owner` outside its list of members"),
        (changed(target=[0, 1, 3]), "`target` outside its list of members"),
        (changed(home=[0, 1, 4]), "`home` outside its list of members"),
        (changed(away=[3]), "not a list of names"),
        (changed(members=[MEMBER, MEMBER]), "names a member twice"),
        (changed(members=["a"]), "no usable"),
        (changed(members=[{**MEMBER, "state": "asleep"}]), "unknown state 'asleep'"),
        (changed(members=[{**MEMBER, "weight": -1}]), "`weight` below 0"),
        (changed(members=[{**MEMBER, "attributes": {"a": 1}}]), "`attributes` do not map names to texts"),
        (without("members"), "no usable `members`"),
        (without("owner"), "no usable `owner`"),
        (without("store_id"), "no usable `store_id`"),
    ],
)
def test_a_damaged_document_is_refused_with_what_is_wrong(data: bytes, complaint: str) -> None:
    with pytest.raises(DocumentDamaged, match=complaint):
        View.from_bytes(data)


def test_a_document_of_a_newer_release_is_refused_as_such() -> None:
    with pytest.raises(DocumentTooNew, match=f"has format {FORMAT + 1}; this release reads up to {FORMAT}"):
        View.from_bytes(changed(format=FORMAT + 1, owner="in another way"))


def test_what_a_newer_release_adds_without_a_new_format_is_passed_over() -> None:
    assert View.from_bytes(changed(mood="good")) == view()


@given(st.binary(max_size=60))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for attempt in (data, b"{" + data, zlib.compress(data)):
        with pytest.raises(DocumentDamaged):
            View.from_bytes(attempt)
