"""Quick checks that members are alive: by their answers over remote control, or else by their heartbeats."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from celery_sticky.cli.session import Session
from celery_sticky.errors import StickyError
from celery_sticky.ownership.view import Member
from celery_sticky.stores import Reading

LOOK_EVERY = 0.1


def ask(app: Any, names: Iterable[str] | None, timeout: float) -> list[tuple[str, dict[str, Any]]]:
    """Return the workers' answers to `celery inspect sticky`, without those that do not answer in time.

    If two workers have one name, both answers are returned. Without names every worker is asked, and the call takes
    the whole `timeout`. Kombu's errors pass through if the broker does not support remote control.
    """
    wanted = None if names is None else sorted(names)
    if wanted == []:
        return []
    replies = app.control.broadcast(
        "sticky", destination=wanted, reply=True, timeout=timeout, limit=None if wanted is None else len(wanted)
    )
    found = [(name, said) for reply in replies or () for name, said in reply.items()]
    return [(name, said) for name, said in found if isinstance(said, dict) and "keyspaces" in said]


def stall_of(member: Member, said: Mapping[str, Any] | None, now: float) -> tuple[float | None, str | None]:
    """Return how many seconds ago the worker could last run tasks, and what prevents it now; None if unknown.

    `said` is the worker's own answer, if it gave one. Its entry in the ownership document also covers a worker that
    does not answer.
    """
    if member.stalled is not None:
        since, why = member.stalled
        return max(0.0, now - since), why
    loop = (said or {}).get("loop") or {}
    return loop.get("answer_age"), loop.get("stalled")


def stall_text(name: str, age: float, why: str) -> str:
    """Return the sentence for a worker that cannot run tasks."""
    return f"{name} has been unable to run tasks for {age:.0f} s: {why}. See its log for the stack of its main thread"


def beating(session: Session, before: Mapping[str, Reading], doubtful: Mapping[str, set[str]]) -> set[str]:
    """Return the doubtful incarnations that sent a heartbeat since `before`; wait a little over one heartbeat."""
    deadline = time.monotonic() + session.settings.lease_ttl / 3 + 0.5
    found: set[str] = set()
    while (left := {keyspace: set(some) - found for keyspace, some in doubtful.items()}) and any(left.values()):
        for keyspace, reading in session.read([keyspace for keyspace, some in left.items() if some]).items():
            if isinstance(reading, StickyError):
                raise reading
            heartbeats, old = reading.heartbeats, before[keyspace].heartbeats
            found |= {one for one in left[keyspace] if heartbeats.get(one, -1) > old.get(one, -1)}
        if time.monotonic() >= deadline:
            break
        time.sleep(LOOK_EVERY)  # until the missing heartbeats may have arrived
    return found
