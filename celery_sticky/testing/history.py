"""What happened: the events of a history, their form in a file, and the runs they make.

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
    """What an event tells."""

    PUBLISHED = "published"
    UNSURE = "unsure"
    """Sending failed in a way that does not tell whether the broker took the task."""
    REFUSED = "refused"
    """Sending was refused before the broker was asked."""
    WITHDRAWN = "withdrawn"
    """A job, which goes on until it is stopped, is wanted no more."""
    START = "start"
    END = "end"
    ALIVE = "alive"
    """A process shows that it is there; of no key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened. Those of sending have no worker, run, slot or epoch."""

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
    """Joins the END of a run to its START."""
    keyspace: str = "default"
    slot: int | None = None
    epoch: int | None = None
    attempt: int = 0
    finished: bool = True
    """END: False if the task did not finish (it raised, or asked for a retry)."""
    sender: int = 0
    """Of sending: which of several senders; numbers of one key are of all its senders together."""
    sent: int = 0
    """PUBLISHED: when sending began, as `at` tells when the broker had accepted it; 0: not known."""

    @property
    def task(self) -> tuple[str, str, int]:
        """What tells tasks apart: keyspace, key, number. A resent task has another id and is still the same task."""
        return self.keyspace, self.key, self.n

    def record(self) -> str:
        """Return the event as it stands in a history file: a line of JSON between two line ends."""
        return "\n" + json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":")) + "\n"


def parse(text: str) -> list[Event]:
    """Return the events of a history file.

    A SIGKILL can cut a write short where it crosses a page of memory: a torn record is known by having no empty line
    after it (or no line end at all) and is left out, for its process died before going on.

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
    """When it ended or, where that is not known, the last moment at which it surely still ran."""
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
