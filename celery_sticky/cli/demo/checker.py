"""The demo's result: the broken promises in the recorded history, and how much moved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from celery_sticky.cli.demo.story import LIMIT, Change, Course
from celery_sticky.cli.movement import fewest, moved, weights_of
from celery_sticky.cli.tables import table
from celery_sticky.cli.verify.site import node
from celery_sticky.testing.history import Event
from celery_sticky.testing.judge import judge, takeovers


def reach(events: Sequence[Event], course: Course, slot_of: Mapping[str, int]) -> dict[str, Any]:
    """Check the history and return the findings."""
    judgement = judge(events)
    waits = takeovers(events, node(course.killed.worker), course.killed.at)
    changes = [_movement(change, slot_of) for change in (course.killed, course.joined)]
    return {
        "ok": judgement.ok and all(change["slots_moved"] == change["minimum"] for change in changes),
        "published": judgement.published,
        "finished": judgement.finished,
        "shops": judgement.keys,
        "lost": len(judgement.lost),
        "overlapping": len(judgement.overlaps),
        "out_of_order": len(judgement.inversions),
        "stale": len(judgement.stale) + len(judgement.shared),
        "run_again": len(judgement.duplicates),
        "takeover_seconds": round(course.killed.seconds, 2),
        "takeover_limit": LIMIT,
        "first_start_seconds": round(min(waits.values()) / 1e9, 2) if waits else None,
        "killed": changes[0],
        "joined": changes[1],
        "accusations": judgement.describe().splitlines()[1:],
    }


def _movement(change: Change, slot_of: Mapping[str, int]) -> dict[str, Any]:
    slots = moved(change.before.owner, change.after.owner)
    return {
        "worker": change.worker,
        "slots": change.before.slots,
        "slots_moved": len(slots),
        "minimum": fewest(change.before.owner, weights_of(change.after)),
        "shops_moved": sum(slot in slots for slot in slot_of.values()),
    }


def draw(found: Mapping[str, Any]) -> Iterable[RenderableType]:
    """Draw the result."""
    made = table("", "", "")
    made.show_header = False
    for name, value, good, comment in _rows(found):
        mark = Text("✓", style="green") if good else Text("✗", style="bold red")
        made.add_row(mark, name, Text.assemble((value, "bold"), f"  {comment}" if comment else ""))
    yield Text("\nResult, from the history recorded by every process", style="bold")
    yield made
    for text in found["accusations"]:
        yield Text(f"  {text}", style="red")


def _rows(found: Mapping[str, Any]) -> Iterable[tuple[str, str, bool, str]]:
    yield "orders charged", f"{found['finished']} of {found['published']}", not found["lost"], ""
    yield "lost", str(found["lost"]), not found["lost"], ""
    yield "overlapping", str(found["overlapping"]), not found["overlapping"], "two orders of one shop at the same time"
    yield "out of order", str(found["out_of_order"]), not found["out_of_order"], "an order before an earlier one"
    yield "by a former owner", str(found["stale"]), not found["stale"], ""
    again = "they were running in the killed worker" if found["run_again"] else ""
    yield "run again", str(found["run_again"]), True, again
    first = found["first_start_seconds"]
    start = f"; first order there after {first:.1f} s" if first is not None else ""
    quick = found["takeover_seconds"] <= found["takeover_limit"]
    took = f"until the slots had new owners (limit {found['takeover_limit']:.1f} s){start}"
    yield "takeover", f"{found['takeover_seconds']:.1f} s", quick, took
    for what, change in (("moved by the kill", found["killed"]), ("moved by the join", found["joined"])):
        share = f"{change['slots_moved'] / change['slots']:.0%} of the slots"
        comment = f"the minimum is {change['minimum'] / change['slots']:.0%}; {change['shops_moved']} shops moved"
        yield what, share, change["slots_moved"] == change["minimum"], comment
