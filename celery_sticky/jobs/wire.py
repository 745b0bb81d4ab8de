"""The messages between a worker and its job host: one JSON object per line, over one pair of sockets.

A `ref` names one run of a job in one host. The worker sends `Start`, and later perhaps `Stop`. The host answers a start
with `Started` or `Failed`, and reports the end of the run with `Ended`, whether requested or not, or with `Yielded` if
it stopped the run itself before the end of trust. Then the ref is no longer used. In between, the host may `Save`
checkpoints, each of which the worker answers.

The host says `Calls` when it calls the handler's start. If it cannot make an ordered call yet, it says `Waits`, and
`Calls` when the call begins. It says `Taken` when the job begins to handle a notification, then `Noted`, or
`Unhandled` if that failed. The worker pings the host's event loop. While the loop is blocked, the host's watchdog
says `Blocked` over a descriptor of its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, get_args


class Call(StrEnum):
    """The calls of a handler that a worker orders."""

    START = "start"
    STOP = "stop"


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
    max_deliveries: int = 5
    """How often the job gets a notification that it cannot handle."""
    saved: Any = None
    """The last checkpoint of the job."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the run."""

    ref: int


@dataclass(frozen=True, slots=True)
class Notify:
    """Hand a notification to the run."""

    ref: int
    note: str
    payload: Any
    delivery: int = 1
    """The number of the delivery: 1 and the number of those that failed."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The store has the run's checkpoint of this number."""

    ref: int
    number: int


@dataclass(frozen=True, slots=True)
class SaveRefused:
    """The store does not take the run's checkpoint of this number: another run of the job may have begun."""

    ref: int
    number: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks the host's event loop for a `Pong`."""


@dataclass(frozen=True, slots=True)
class Pong:
    """The host's event loop turns."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The host has loaded the app. `names` are the jobs it can run, as `keyspace/name`."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unready:
    """The host cannot load the app, and ends."""

    error: str


@dataclass(frozen=True, slots=True)
class Waits:
    """The ordered call has not begun: it waits for a thread, or the stop waits for the start under way."""

    ref: int
    call: Call


@dataclass(frozen=True, slots=True)
class Calls:
    """The start begins, or a stop that had to wait."""

    ref: int
    call: Call


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
class Yielded:
    """The run was stopped because the trust that it relies on ends. Nothing of it is left; its job is still wanted."""

    ref: int
    error: str = ""
    """What its stop raised."""


@dataclass(frozen=True, slots=True)
class Save:
    """The run saves a checkpoint; the worker answers `Saved` or `SaveRefused` with its number."""

    ref: int
    number: int
    """Grows with each checkpoint of the host."""
    saved: str
    """JSON."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The job begins to handle a notification: it took it from its inbox, or its `notify` is called."""

    ref: int
    note: str
    delivery: int


@dataclass(frozen=True, slots=True)
class Noted:
    """The job has handled the notification."""

    ref: int
    note: str


@dataclass(frozen=True, slots=True)
class Unhandled:
    """The job raised an error while it handled the notification."""

    ref: int
    note: str
    delivery: int
    error: str


@dataclass(frozen=True, slots=True)
class Blocked:
    """The host's event loop has not turned for `seconds`, because it runs code of this run."""

    ref: int
    """0: code of no run."""
    name: str
    key: str
    seconds: float

    def __str__(self) -> str:
        what = f"job {self.name!r} of key {self.key!r}" if self.ref else "code of no job"
        return f"{what} has blocked the event loop for {self.seconds:.0f} s"


ToHost = Start | Stop | Notify | Saved | SaveRefused | Ping
Over = Failed | Ended | Yielded
"""After these, the ref is no longer used."""
OfRun = Waits | Calls | Started | Over | Save | Taken | Noted | Unhandled | Blocked
"""What a host says of a run."""
FromHost = Ready | Unready | Pong | OfRun
Message = ToHost | FromHost

_KINDS = {kind.__name__: kind for kind in get_args(Message)}


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
    if "call" in fields:
        fields["call"] = Call(fields["call"])
    message: Message = _KINDS[fields.pop("say")](**fields)
    return message
