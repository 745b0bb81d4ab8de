"""What a worker and its job host say to each other: one JSON object a line, over one pair of sockets.

A `ref` names one run of a job in one host. The worker says `Start`, and later perhaps `Stop`; the host answers a start
with `Started` or `Failed`, and says the end of the run, asked for or not, with `Ended`. After `Failed` or `Ended` the
ref is done.
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
    """The membership whose trust the run relies on."""
    worker: str = ""
    """The worker's node name."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the run."""

    ref: int


@dataclass(frozen=True, slots=True)
class Notify:
    """Hand a notification to the run; the host says `Noted` when the job has it."""

    ref: int
    note: str
    payload: Any


@dataclass(frozen=True, slots=True)
class Ready:
    """The host has loaded the app; these are the jobs it can run, as `keyspace/name`."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unready:
    """The host cannot load the app, and ends."""

    error: str


@dataclass(frozen=True, slots=True)
class Started:
    """The job's start has returned."""

    ref: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The job's start has raised."""

    ref: int
    error: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing of the run is left. With an error: it ended by itself with one, or its stop raised."""

    ref: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Noted:
    """The job has the notification: it has taken it out of its inbox, or its `notify` has returned."""

    ref: int
    note: str


Message = Start | Stop | Notify | Ready | Unready | Started | Failed | Ended | Noted

_KINDS = {kind.__name__: kind for kind in (Start, Stop, Notify, Ready, Unready, Started, Failed, Ended, Noted)}


def encode(message: Message) -> bytes:
    """Return the line that says this."""
    fields = {name: getattr(message, name) for name in message.__slots__}
    return json.dumps({"say": type(message).__name__, **fields}, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Return what a line says.

    Raises:
        ValueError, KeyError, TypeError: it says nothing that this release knows.
    """
    fields = json.loads(line)
    if "names" in fields:
        fields["names"] = tuple(fields["names"])
    return _KINDS[fields.pop("say")](**fields)
