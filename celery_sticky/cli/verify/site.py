"""The parameters of one run of verify that all its processes share."""

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
"""The environment variable that passes the `Site` to a process."""
HOST = "verify"
HANG = signal.SIGUSR2
"""The signal that makes a worker's loop hang for a while."""


class Mode(StrEnum):
    """The system under test."""

    STICKY = "sticky"
    QUEUE = "queue"
    """Plain Celery, one queue."""
    HASH = "hash"
    """Plain Celery, one queue for each worker, chosen by a hash of the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The parameters that a process needs to take part in a run."""

    mode: Mode
    broker: str
    store: str
    """URL of the store; empty: the broker."""
    prefix: str
    """Prefix of every name on a server that others may use too: of Redis keys, or of tables."""
    folder: str
    slots: int
    workers: int
    ttl: float
    """Length of a lease, in seconds."""
    jobs: int = 0
    """Number of jobs that run all the time."""
    isolated: bool = False
    """Whether the bad jobs among them are declared isolated."""
    placed: Placed | None = None
    """Destination of unpinned keys in the placed keyspace; None: the run uses a plain keyspace."""
    pinned: Sequence[str] = ()
    """The keys that workers pin."""
    seed: int = 0
    results: str = ""
    """URL of the result backend; empty: results are not stored."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Transport options that go with the addresses of broker and store."""

    @property
    def keyspace(self) -> str:
        """The keyspace of the load."""
        return DEFAULT_KEYSPACE if self.placed is None else NAME

    @property
    def margin(self) -> float:
        """Seconds by which trust ends before the lease, and eviction follows after it."""
        return round(self.ttl * 0.27, 2)

    @property
    def eviction_timeout(self) -> float:
        """Seconds after which a silent member is evicted."""
        return self.ttl + self.margin

    @property
    def hang(self) -> float:
        """Seconds for which a loop hangs: it is detected after one `ttl`, and peers have the slots before it ends."""
        return self.ttl * 2.5

    @property
    def history(self) -> Path:
        """The file in which every process records what it did."""
        return Path(self.folder) / "history.jsonl"

    @property
    def job_history(self) -> Path:
        """The file that records jobs. It is separate because other rules apply to tasks."""
        return Path(self.folder) / "jobs.jsonl"

    @property
    def note_history(self) -> Path:
        """The file that records the notes to jobs, sent and taken."""
        return Path(self.folder) / "notes.jsonl"

    @property
    def malformed_history(self) -> Path:
        """The file in which senders record the malformed messages that they sent."""
        return Path(self.folder) / "malformed.jsonl"

    @property
    def pin_history(self) -> Path:
        """The file in which workers record their pins."""
        return Path(self.folder) / "pins.jsonl"

    def environ(self) -> dict[str, str]:
        """Return the environment variables for a process."""
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
    """Return the plain Celery queue with this index, for modes in which each worker has its own."""
    return f"verify-{index}"
