"""Recorded histories: their events, their file format, and the runs that they contain.

A history is a list of events with times of one host's CLOCK_MONOTONIC. Nothing here does I/O.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum


class MalformedHistory(ValueError):
    """A line of the history is not an event."""


class Kind(StrEnum):
    """The kind of an event."""

    PUBLISHED = "published"
    UNSURE = "unsure"
    """Sending failed, and the broker may or may not have taken the task."""
    REFUSED = "refused"
    """Sending was refused before the broker was asked."""
    WITHDRAWN = "withdrawn"
    """A job was stopped: it runs until then."""
    START = "start"
    END = "end"
    ALIVE = "alive"
    """A sign of life of a process; has no key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event. Events of sending have no worker, run, slot or epoch."""

    kind: Kind
    key: str
    n: int
    """The number of the task within its key, in publishing order."""
    task_id: str
    at: int
    """CLOCK_MONOTONIC in nanoseconds."""
    pid: int = 0
    worker: str = ""
    run: str = ""
    """Connects the END of a run with its START."""
    keyspace: str = "default"
    slot: int | None = None
    epoch: int | None = None
    attempt: int = 0
    finished: bool = True
    """END: False if the task did not finish (it raised, or asked for a retry)."""
    sender: int = 0
    """Of sending: the number of the sender; tasks of one key are numbered across all its senders."""
    sent: int = 0
    """PUBLISHED: when sending began (`at` is when the broker had accepted the task); 0: not known."""
    waited: int = 0
    """ALIVE: for how many nanoseconds the process has been ready to run but had no CPU; 0: not known."""

    @property
    def task(self) -> tuple[str, str, int]:
        """The identity of a task: keyspace, key, number. A resent task has another id and is still the same task."""
        return self.keyspace, self.key, self.n

    def record(self) -> str:
        """Return the event's form in a history file: a line of JSON between two line ends."""
        return "\n" + json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":")) + "\n"


def parse(text: str) -> list[Event]:
    """Return the events of a history file.

    A SIGKILL can cut a write short at a boundary of memory pages. Such a torn record has no empty line after it (or no
    line end at all). It is left out, because its process died before it continued.

    Raises:
        MalformedHistory: a whole line is not an event; the message has its number.
    """
    lines = text.split("\n")
    events = []
    for number, line in enumerate(lines, start=1):
        torn = number == len(lines) or bool(number < len(lines) - 1 and lines[number])
        if not line:
            continue
        try:
            fields = json.loads(line)
            events.append(Event(**{**fields, "kind": Kind(fields["kind"])}))
        except (ValueError, TypeError, KeyError) as error:
            if not torn:
                raise MalformedHistory(f"line {number}: {error}") from error
    return events


@dataclass(frozen=True, slots=True)
class Execution:
    """One run of a task, from START to END or to the death of its process."""

    start: Event
    until: int
    """When it ended or, if that is not known, the last moment at which it certainly still ran."""
    ended: bool
    finished: bool


def pair(ordered: Sequence[Event], deaths: Mapping[int, int]) -> list[Execution]:
    """Return the runs of a history sorted by time, in the order of their starts."""
    ends = {event.run: event for event in ordered if event.kind is Kind.END}
    seen: dict[int, int] = {}
    for event in ordered:
        seen[event.pid] = max(event.at, seen.get(event.pid, event.at))
    runs = []
    for start in ordered:
        if start.kind is not Kind.START:
            continue
        end = ends.get(start.run)
        if end is not None:
            runs.append(Execution(start, end.at, ended=True, finished=end.finished))
        else:
            until = deaths.get(start.pid, seen[start.pid])
            runs.append(Execution(start, max(until, start.at), ended=False, finished=False))
    return runs
