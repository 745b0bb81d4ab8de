"""`celery sticky plan`: show what would move if workers joined or left. It changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
from celery.bin.base import CeleryCommand
from rich.console import RenderableType

from celery_sticky.cli.movement import fewest, moved, weights_of
from celery_sticky.cli.session import Session
from celery_sticky.cli.tables import dash, json_option, show, table
from celery_sticky.errors import StickyError
from celery_sticky.keys import DEFAULT_KEYSPACE, HASH_NAME, check_keyspace
from celery_sticky.ownership import changes
from celery_sticky.ownership.view import Member, View


@click.command(cls=CeleryCommand)
@click.option("--add", default=0, type=click.IntRange(0, 1000), metavar="N", help="Number of workers that join.")
@click.option("--remove", multiple=True, metavar="NAME", help="Worker that leaves; may be given several times.")
@click.option("--weight", default=1, type=click.IntRange(0), show_default=True, help="Weight of the workers that join.")
@click.option("--keyspace", metavar="NAME", default=DEFAULT_KEYSPACE, show_default=True)
@json_option
@click.pass_context
def plan(ctx: click.Context, add: int, remove: Sequence[str], weight: int, keyspace: str, as_json: bool) -> None:
    """Show what share of the slots, and so of the keys, would move if workers joined or left."""
    with Session(ctx.obj.app) as session:
        reading = session.store(check_keyspace(keyspace)).read()
        view = reading.view or _empty(session.slots_of(keyspace, reading))
    show(ctx.obj, foresee(view, add, remove, weight) | {"keyspace": keyspace}, _draw, as_json=as_json)


def foresee(view: View, add: int, remove: Sequence[str], weight: int) -> dict[str, Any]:
    """Return the effect of adding and removing workers.

    Raises:
        StickyError: a worker to remove is not a member.
    """
    if missing := sorted(set(remove) - set(view.members)):
        present = ", ".join(sorted(view.members)) or "none"
        raise StickyError(f"{missing[0]!r} is not a member; the members are: {present}")
    before, later = changes.replan(view), changes.replan(view)
    for name in remove:
        later = changes.evict(later, name)
    taken = set(later.members)
    fresh = (name for number in range(1, add + len(taken) + 1) if (name := f"new-{number}") not in taken)
    for _, name in zip(range(add), fresh, strict=False):
        later = changes.join(later, Member(name, f"plan-{name}", weight=weight))
    changed = moved(before.target, later.target)
    now, then = Counter(before.target), Counter(later.target)
    return {
        "slots": view.slots,
        "moved": len(changed),
        "moved_share": len(changed) / view.slots,
        "minimum": fewest(before.target, weights_of(later)),
        "members": [
            {"name": name, "slots_now": now[name], "slots_then": then[name]}
            for name in sorted({*before.members, *later.members})
        ],
    }


def _empty(slots: int) -> View:
    return changes.fresh(slots=slots, hash=HASH_NAME, generation=1, version=1, store_id="")


def _draw(facts: Mapping[str, Any]) -> Iterable[RenderableType]:
    yield (
        f"keyspace {facts['keyspace']}: {facts['moved']} of {facts['slots']} slots would move, "
        f"{facts['moved_share']:.1%} of the keys; the minimum for any plan is {facts['minimum']}"
    )
    made = table("worker", "slots now", "slots then", right=("slots now", "slots then"))
    for member in facts["members"]:
        made.add_row(dash(member["name"]), str(member["slots_now"]), str(member["slots_then"]))
    if facts["members"]:
        yield made
