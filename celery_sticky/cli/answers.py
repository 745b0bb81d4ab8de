"""Whether members live, without waiting long: workers that answer say how old their lease is, others still beat."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from celery_sticky.cli.session import Session
from celery_sticky.stores import Reading

LOOK_EVERY = 0.1


def ask(app: Any, names: Iterable[str] | None, timeout: float) -> list[tuple[str, dict[str, Any]]]:
    """Return what workers say of themselves (`celery inspect sticky`); one that does not answer in time is left out.

    Of two workers of one name both are in the answer. Without names every worker is asked, for all of `timeout`. Raises
    what Kombu does, where the broker does not pass questions on.
    """
    wanted = None if names is None else sorted(names)
    if wanted == []:
        return []
    replies = app.control.broadcast(
        "sticky", destination=wanted, reply=True, timeout=timeout, limit=None if wanted is None else len(wanted)
    )
    found = [(name, said) for reply in replies or () for name, said in reply.items()]
    return [(name, said) for name, said in found if isinstance(said, dict) and "keyspaces" in said]


def beating(session: Session, before: Mapping[str, Reading], doubtful: Mapping[str, set[str]]) -> set[str]:
    """Return which of the doubtful incarnations (by keyspace) beat since `before`; wait a little over one beat."""
    deadline = time.monotonic() + session.settings.lease_ttl / 3 + 0.5
    found: set[str] = set()
    while (left := {keyspace: set(some) - found for keyspace, some in doubtful.items()}) and any(left.values()):
        for keyspace, incarnations in left.items():
            if incarnations:
                beats, old = session.store(keyspace).read().beats, before[keyspace].beats
                found |= {one for one in incarnations if beats.get(one, -1) > old.get(one, -1)}
        if time.monotonic() >= deadline:
            break
        time.sleep(LOOK_EVERY)
    return found
