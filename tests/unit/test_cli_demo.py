"""The demo's data, its picture, and that its result can be against it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console

from celery_sticky import slot_for
from celery_sticky.cli.demo.checker import draw, reach
from celery_sticky.cli.demo.screen import Lines, picture
from celery_sticky.cli.demo.stage import SLOTS, Scene, read_orders
from celery_sticky.cli.demo.story import Change, Course
from celery_sticky.cli.verify.site import node
from celery_sticky.ownership import changes
from celery_sticky.ownership.view import Member, View
from celery_sticky.testing.history import Event, Kind

SHOPS = sorted({order["shop"] for order in read_orders()})
SLOT_OF = {shop: slot_for(shop, SLOTS) for shop in SHOPS}


def joined(view: View, name: str) -> View:
    view = changes.join(view, Member(node(name), name))
    for member in view.members:
        view = changes.release(view, member, view.giving(member))
    return view


def course() -> Course:
    before = changes.fresh(slots=SLOTS, hash="h", generation=1, version=1, store_id="s")
    for name in ("alpha", "bravo", "charlie"):
        before = joined(before, name)
    after = changes.evict(before, node("bravo"))
    return Course(Change("bravo", 0, 3.0, before, after), Change("delta", 0, 1.0, after, joined(after, "delta")))


def history(*steps: tuple[str, int, Kind, int]) -> list[Event]:
    """Make a history of (run, n, kind, time) in one shop; every task was published."""
    sent = [Event(kind=Kind.PUBLISHED, key=SHOPS[0], n=n, task_id=str(n), at=0) for n in {n for _, n, _, _ in steps}]
    return sent + [
        Event(
            kind=kind, key=SHOPS[0], n=n, task_id=str(n), at=at, run=run, pid=1, worker=node("alpha"), slot=1, epoch=1
        )
        for run, n, kind, at in steps
    ]


GOOD = [("a", 1, Kind.START, 1), ("a", 1, Kind.END, 2), ("b", 2, Kind.START, 3), ("b", 2, Kind.END, 4)]


def test_the_orders_are_of_forty_shops_all_over_the_world() -> None:
    orders = read_orders()
    assert (len(orders), len(SHOPS)) == (600, 40)
    assert len({order["currency"] for order in orders}) > 20 and len({order["order"] for order in orders}) == 600


def test_the_result_is_good_where_nothing_is_lost_and_the_minimum_moved() -> None:
    found = reach(history(*GOOD), course(), SLOT_OF)
    assert found["ok"] and (found["published"], found["finished"]) == (2, 2)
    assert found["killed"]["slots_moved"] == found["killed"]["minimum"] == SLOTS // 3


@pytest.mark.parametrize(
    ("what", "steps"),
    [
        ("lost", GOOD[:3]),
        ("overlapping", [GOOD[0], GOOD[2], ("a", 1, Kind.END, 5), ("b", 2, Kind.END, 6)]),
        (
            "out_of_order",
            [("b", 2, Kind.START, 1), ("b", 2, Kind.END, 2), ("a", 1, Kind.START, 3), ("a", 1, Kind.END, 4)],
        ),
    ],
)
def test_the_result_is_against_the_demo_where_a_promise_was_broken(
    what: str, steps: Sequence[tuple[str, int, Kind, int]]
) -> None:
    found = reach(history(*steps), course(), SLOT_OF)
    assert not found["ok"] and found[what] == 1 and found["accusations"]
    console = Console(file=io.StringIO(), width=80)
    for part in draw(found):
        console.print(part)
    assert isinstance(console.file, io.StringIO) and "✗" in console.file.getvalue()


def test_the_result_is_against_the_demo_where_more_moved_than_must() -> None:
    good = course()
    view = good.killed.after
    swapped = replace(
        view, owner=tuple(node("charlie") if name == node("alpha") else node("alpha") for name in view.owner)
    )
    found = reach(history(*GOOD), replace(good, killed=replace(good.killed, after=swapped)), SLOT_OF)
    assert not found["ok"] and found["killed"]["slots_moved"] > found["killed"]["minimum"]


def scene() -> Scene:
    names = ("alpha", "bravo", "charlie", "delta")
    return Scene(
        elapsed=12.5,
        published=300,
        total=600,
        workers=dict.fromkeys(names, "working") | {"bravo": "killed"},
        slots=dict.fromkeys(names, 30),
        owners={shop: names[slot % 4] for shop, slot in SLOT_OF.items()},
        left=dict.fromkeys(SHOPS, 3),
        running={"alpha": SHOPS[:2]},
        done=dict.fromkeys(names, 70),
        news=[
            (number / 2, f"something happened, number {number}, which takes a rather long line to tell of" * 2)
            for number in range(20)
        ],
    )


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
def test_the_picture_fits_the_terminal_and_names_every_shop(width: int, height: int) -> None:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    console.print(picture(scene(), console.size))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert shown.count("\n") < height
    assert all(shop[:10] in shown for shop in SHOPS) and "number 19" in shown


def test_plain_lines_tell_each_piece_of_news_once() -> None:
    console = Console(file=io.StringIO(), width=80)
    lines = Lines(console)
    lines.draw(scene())
    lines.draw(scene())
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().count("number 19") == 2, "twice in one line, and in no other"
    assert "280 charged of 300 sent" in console.file.getvalue()
