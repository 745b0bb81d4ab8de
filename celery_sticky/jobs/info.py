"""What `sticky.jobs` returns about jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from celery_sticky.errors import StickyError


@dataclass(frozen=True, slots=True)
class JobInfo:
    """A dispatched job."""

    name: str
    key: str
    keyspace: str
    slot: int
    id: str
    payload: Any
    state: str
    """`waiting`, `starting`, `running`, `failing`, `failed`, `stopping`, `pausing` or `paused`.

    `waiting`: no live worker has begun to start it. `failing`: it has failed and is not running, or it runs after two
    failures or more, and not yet for a minute.
    """
    worker: str
    """The worker that last started it; empty: none."""
    epoch: int
    attempt: int
    error: str
    """Why its last start or run failed; empty: it did not, or it has run well since."""
    created: float
    """When it was dispatched, in seconds since the epoch."""
    saved: Any = None
    """Its last checkpoint; None: it has saved none."""
    failures: int = 0
    """How many starts and runs have failed, one after the other."""
    quarantined: bool = False
    """Whether it runs in a process of its own, because it has ended, blocked or outlasted the last one."""
    reason: str = ""
    """Why it does not run, or counts as failing though it runs; empty: the state says it all."""


@dataclass(frozen=True, slots=True)
class BulkResult:
    """The result of a request for many keys."""

    done: tuple[str, ...]
    """The keys for which it succeeded."""
    failed: Mapping[str, StickyError]
    """Key -> the error that the same request for this key alone would have raised."""
