"""Where one run of verify takes place, as every process of it knows it."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Self

from celery_sticky.cli.verify.placed import NAME, Placed
from celery_sticky.keys import DEFAULT_KEYSPACE

VARIABLE = "STICKY_VERIFY"
"""The environment variable that tells a process its `Site`."""
HOST = "verify"
HANG = signal.SIGUSR2
"""Has a worker's loop hang for a while."""


class Mode(StrEnum):
    """What is under test."""

    STICKY = "sticky"
    QUEUE = "queue"
    """Plain Celery, one queue."""
    HASH = "hash"
    """Plain Celery, one queue for each worker, chosen by a hash of the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """All that a process must know of a run."""

    mode: Mode
    broker: str
    store: str
    """Empty: at the broker."""
    prefix: str
    """What every key begins with, on a server that is not ours alone."""
    folder: str
    slots: int
    workers: int
    ttl: float
    """Seconds a lease lasts."""
    jobs: int = 0
    """How many are wanted all the time."""
    placed: Placed | None = None
    """Whether the keyspace directs keys, and where those go that are not pinned."""
    pinned: Sequence[str] = ()
    """The keys that workers pin."""
    seed: int = 0
    results: str = ""
    """Where workers store results; empty: nowhere."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Transport options that the broker's address needs."""

    @property
    def keyspace(self) -> str:
        """The keyspace of the load."""
        return DEFAULT_KEYSPACE if self.placed is None else NAME

    @property
    def margin(self) -> float:
        """Seconds that trust ends before the lease, and eviction comes after."""
        return round(self.ttl * 0.27, 2)

    @property
    def eviction_timeout(self) -> float:
        """Seconds after which a silent member is evicted."""
        return self.ttl + self.margin

    @property
    def hang(self) -> float:
        """Seconds for which a loop hangs: it is found out after one `ttl`, and others have its slots well before."""
        return self.ttl * 2.5

    @property
    def history(self) -> Path:
        """Where every process writes what it did."""
        return Path(self.folder) / "history.jsonl"

    @property
    def job_history(self) -> Path:
        """Where jobs are written down: apart from tasks, which have other rules."""
        return Path(self.folder) / "jobs.jsonl"

    @property
    def malformed_history(self) -> Path:
        """Where senders write down which messages they sent that nobody can read."""
        return Path(self.folder) / "malformed.jsonl"

    @property
    def pin_history(self) -> Path:
        """Where workers write down what they have pinned."""
        return Path(self.folder) / "pins.jsonl"

    def environ(self) -> dict[str, str]:
        """Return the variables for a process."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """Read what `environ` wrote."""
        fields = json.loads(environ[VARIABLE])
        placed = fields["placed"] and Placed(fields["placed"])
        return cls(**{**fields, "mode": Mode(fields["mode"]), "placed": placed})


def node(name: str) -> str:
    """Return the node name of a worker."""
    return f"{name}@{HOST}"


def short(node_name: str) -> str:
    """Return a worker's name from its node name."""
    return node_name.partition("@")[0]


def queue_of(index: int) -> str:
    """Return the queue of one of the workers, where each has its own."""
    return f"verify-{index}"
