"""The messages between a worker and its job host: one JSON object per line, over one pair of sockets.

A `ref` names one run of a job in one host. The worker sends `Start`, and later perhaps `Stop`. The host answers a start
with `Started` or `Failed`, and reports the end of the run with `Ended`, whether requested or not. After `Failed` or
`Ended` the ref is no longer used.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Start:
    """Start a job."""

    ref: int
    name: str
    key: str
    keyspace: str
    id: str
    epoch: int
    attempt: int
    payload: Any
    membership: int
    """The number of the membership whose trust the run relies on."""
    worker: str = ""
    """The worker's node name."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the run."""

    ref: int


@dataclass(frozen=True, slots=True)
class Notify:
    """Hand a notification to the run; the host sends `Noted` when the job has it."""

    ref: int
    note: str
    payload: Any


@dataclass(frozen=True, slots=True)
class Ready:
    """The host has loaded the app. `names` are the jobs it can run, as `keyspace/name`."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unready:
    """The host cannot load the app, and ends."""

    error: str


@dataclass(frozen=True, slots=True)
class Started:
    """The job's start has completed."""

    ref: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The job's start raised an error."""

    ref: int
    error: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing of the run is left. An error means that it ended by itself with an error, or that its stop raised one."""

    ref: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Noted:
    """The job has the notification: it took it from its inbox, or its `notify` returned."""

    ref: int
    note: str


Message = Start | Stop | Notify | Ready | Unready | Started | Failed | Ended | Noted

_KINDS = {kind.__name__: kind for kind in (Start, Stop, Notify, Ready, Unready, Started, Failed, Ended, Noted)}


def encode(message: Message) -> bytes:
    """Return the line for a message."""
    fields = {name: getattr(message, name) for name in message.__slots__}
    return json.dumps({"say": type(message).__name__, **fields}, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Return the message in a line.

    Raises:
        ValueError, KeyError, TypeError: this release does not know the message.
    """
    fields = json.loads(line)
    if "names" in fields:
        fields["names"] = tuple(fields["names"])
    return _KINDS[fields.pop("say")](**fields)
