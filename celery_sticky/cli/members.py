"""The members of a keyspace, as `celery sticky status` shows them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from celery_sticky.cli.answers import stall_of
from celery_sticky.cli.tables import dash, seconds, table, total
from celery_sticky.ownership.view import Member, View
from celery_sticky.queues import Depth
from celery_sticky.slots import Slot, WorkerQueue

STYLES = {"active": "green", "leaving": "yellow", "draining": "yellow"}


def said_of(answers: Mapping[str, Any], keyspace: str, name: str) -> dict[str, Any] | None:
    """Return what a worker has answered about a keyspace; None: nothing."""
    said: dict[str, Any] | None = answers.get(name, {}).get("keyspaces", {}).get(keyspace)
    return said


def members_of(
    keyspace: str,
    view: View,
    depths: Mapping[Slot, Depth],
    answers: Mapping[str, Any],
    alive: set[str],
    now: float,
) -> list[dict[str, Any]]:
    """Return the facts about each member; `alive` are incarnations that sent heartbeats."""
    return [
        {
            **_member(member, view, _depths_of(member.name, view, depths)),
            **_life(said_of(answers, keyspace, member.name), member.incarnation, alive),
            **_stall(member, answers, now),
        }
        for _, member in sorted(view.members.items())
    ]


def _depths_of(name: str, view: View, depths: Mapping[Slot, Depth]) -> list[Depth]:
    """Return the depths of a worker's slot queues, and of its worker queue if it has one."""
    mine = [depths[slot] for slot, owner in enumerate(view.owner) if owner == name]
    own_queue = depths.get(WorkerQueue(name))
    return mine if own_queue is None else [*mine, own_queue]


def _member(member: Member, view: View, depths: Collection[Depth]) -> dict[str, Any]:
    return {
        "name": member.name,
        "incarnation": member.incarnation,
        "state": member.state.value,
        "weight": member.weight,
        "version": member.attributes.get("version"),
        "slots": view.owner.count(member.name),
        "giving": len(view.giving(member.name)),
        "waiting": sum(depth.waiting for depth in depths),
        "in_flight": total(depth.in_flight for depth in depths),
    }


def _life(said: dict[str, Any] | None, incarnation: str, alive: set[str]) -> dict[str, Any]:
    """Return whether a member is alive. Facts that only the member knows are None if it did not answer."""
    if said is None:
        return {"alive": incarnation in alive, "running": None, "lease_age": None, "draining": None}
    return {
        "alive": True,
        "running": said["running"],
        "lease_age": said["lease_age"],
        "draining": said.get("draining", False),  # a worker of an earlier release does not say
    }


def _stall(member: Member, answers: Mapping[str, Any], now: float) -> dict[str, Any]:
    age, why = stall_of(member, answers.get(member.name), now)
    return {"answer_age": age, "stalled": why}


def members_table(members: Iterable[Mapping[str, Any]]) -> RenderableType:
    """Return the members for people."""
    numbers = ("slots", "giving away", "running", "fetched", "waiting", "lease age", "last answer")
    made = table("worker", "state", *numbers, "version", right=numbers)
    for member in members:
        state = "draining" if member["draining"] else member["state"]
        state = "silent" if not member["alive"] else "stalled" if member["stalled"] else state
        lease = (
            seconds(member["lease_age"])
            if member["lease_age"] is not None
            else "heartbeats"
            if member["alive"]
            else "-"
        )
        made.add_row(
            member["name"],
            Text(state, style=STYLES.get(state, "bold red")),
            str(member["slots"]),
            str(member["giving"]),
            dash(member["running"]),
            dash(member["in_flight"]),
            str(member["waiting"]),
            lease,
            seconds(member["answer_age"]) if member["answer_age"] is not None else "-",
            dash(member["version"]),
        )
    return made
