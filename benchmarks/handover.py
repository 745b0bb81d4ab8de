"""How long slots take to reach another owner, by the number of messages that wait in them.

Two workers share the slots. One of them is stopped and started again under its name. Its slots go to the other worker
and come back, with all messages that wait in them.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from benchmarks.backlog import Copier
from benchmarks.report import Report, Table, spread
from benchmarks.server import Server
from benchmarks.throughput import prepared
from benchmarks.workers import Pool, Worker, running, stamps
from celery_sticky.testing.measure import SECOND, handovers, opened_after
from celery_sticky.testing.slot_log import SlotEvent, SlotLog
from celery_sticky.testing.waiting import wait_until

POOL = Pool("prefork", 2)
GOES, STAYS = "goes@sticky", "stays@sticky"
TIMEOUT = 60.0


@dataclass(slots=True)
class Moves:
    """The times measured with one backlog, in milliseconds."""

    waiting: list[int] = field(default_factory=list)
    """Messages in the slots when the move began."""
    stop: list[float] = field(default_factory=list)
    """From SIGTERM to the last slot open at the other worker."""
    join: list[float] = field(default_factory=list)
    """From the first slot given away to the last slot open at the joining worker."""
    gaps: list[float] = field(default_factory=list)
    """From a slot's closing at one worker to its opening at the other."""


def run(server: Server, report: Report, *, quick: bool) -> None:
    """Measure each backlog, one after the other."""
    table = Table(
        "Handover of 128 of 256 slots, ms",
        ["messages waiting in them", "SIGTERM to all open elsewhere", "join: first given to all open", "a slot closed"],
    )
    middle: dict[int, float] = {}
    for backlog in (0, 10_000) if quick else (0, 10_000, 1_000_000):
        seen = measure(server, backlog, rounds=3 if quick else 5)
        middle[backlog] = statistics.median(seen.stop)
        waiting = f"{min(seen.waiting):,} to {max(seen.waiting):,}" if backlog else "0"
        table.rows.append([waiting, spread(seen.stop), spread(seen.join), spread(seen.gaps)])
    table.notes.append("Medians (lowest to highest) of the rounds, or of all slots and rounds; both ways for a slot.")
    report.tables.append(table)
    report.ratio("handover_full_over_empty", middle[max(middle)] / middle[0])


def measure(server: Server, backlog: int, *, rounds: int) -> Moves:
    """Move the slots away and back."""
    moves = Moves()
    with tempfile.TemporaryDirectory() as folder, prepared(server, "sticky"):
        path, log = stamps(folder), SlotLog(stamps(folder))
        with running(server, "sticky", POOL, name="stays", log=path) as stays:
            _wait_slots(log, stays, STAYS, None)
            slots: frozenset[int] | None = None
            for number in range(rounds + 1):
                with running(server, "sticky", POOL, name="goes", log=path) as goes:
                    began = time.monotonic_ns()
                    slots = _wait_slots(log, goes, GOES, slots)
                    if number:
                        _note_join(moves, [e for e in log.events() if e.at > began])
                    elif backlog:
                        Copier(server, "nap").fill(backlog, slots)
                    moves.waiting.append(_waiting(server, slots))
                    _stop(moves, log, goes, slots)
        server.clear()
    return moves


def _stop(moves: Moves, log: SlotLog, goes: Worker, slots: Collection[int]) -> None:
    time.sleep(1.0)  # until both workers are busy, or both idle
    since = time.monotonic_ns()
    goes.stop()

    def events() -> list[SlotEvent]:
        return [e for e in log.events() if e.at > since]

    wait_until(lambda: len(opened_after(events(), since, slots)) == len(slots), TIMEOUT, "all slots open elsewhere")
    moves.stop.append(max(opened_after(events(), since, slots).values()) * 1000)
    moves.gaps += [gap * 1000 for gap in handovers(events())]
    goes.wait_gone()


def _note_join(moves: Moves, events: list[SlotEvent]) -> None:
    given = min(e.at for e in events if e.what == "lost" and e.worker == STAYS)
    moves.join.append((max(e.at for e in events if e.what == "gained" and e.worker == GOES) - given) / SECOND * 1000)
    moves.gaps += [gap * 1000 for gap in handovers(events)]


def _wait_slots(log: SlotLog, worker: Worker, name: str, slots: Collection[int] | None) -> frozenset[int]:
    """Wait until a worker owns these slots; without given slots: all, or half of them."""
    count = len(slots) if slots is not None else {STAYS: 256, GOES: 128}[name]

    def there() -> bool:
        worker.check_alive()
        return len(_held(log, name)) >= count

    wait_until(there, TIMEOUT, f"{name} has {count} slots")
    held = _held(log, name)
    assert slots is None or held == slots, f"{name} owns other slots than before"
    return held


def _held(log: SlotLog, name: str) -> frozenset[int]:
    held = set[int]()
    for event in log.events():
        if event.worker == name:
            (held.add if event.what == "gained" else held.discard)(event.slot)
    return frozenset(held)


def _waiting(server: Server, slots: Collection[int]) -> int:
    with server.client.pipeline(transaction=False) as pipe:
        for slot in slots:
            pipe.llen(f"sticky.default.{slot}")
            pipe.hlen(f"sticky.default.{slot}:flight")
        return sum(pipe.execute())
