"""The effect of an event on waiting tasks: a worker is killed, stopped, or gives work to a new one.

Stock Celery runs in the setup that keeps the order of a backlog: one queue, consumed by one worker (`-c 1`). The second
worker is idle, and starts to consume the queue at the moment of the event. On our side both workers share the slots
from the start; for the handover the second worker joins while the first owns all slots.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from celery.utils import uuid

from benchmarks.app import SIDES
from benchmarks.report import Report, Table
from benchmarks.server import SLOTS, Server
from benchmarks.throughput import prepared
from benchmarks.workers import QUIET, Pool, Worker, running, stamps
from celery_sticky.testing.history import Event, Kind, pair
from celery_sticky.testing.judge import judge
from celery_sticky.testing.measure import SECOND, steps_back
from celery_sticky.testing.recorder import Recorder
from celery_sticky.testing.slot_log import SlotEvent, SlotLog
from celery_sticky.testing.waiting import wait_until

POOL = Pool("prefork", 1)
TASKS, KEYS, BURST, NAP = 400, 12, 5, 0.03
"""A key's tasks come in bursts; each takes `NAP` seconds."""
BEFORE = 20
"""Tasks started before the event."""
TIMEOUT = 60.0
CONF: Mapping[str, Mapping[str, Any]] = {
    "stock": {"broker_transport_options": {"visibility_timeout": 6}},
    "sticky": {"sticky_lease_ttl": 3.0, "sticky_lease_margin": 0.5},
}
TAKEOVER, STOP, HANDOVER = "kill -9", "SIGTERM", "handover to another"
EVENTS = (TAKEOVER, STOP, HANDOVER)


@dataclass(frozen=True, slots=True)
class Seen:
    """The outcome of the tasks of one run."""

    pause: float | None
    """Seconds from the event until the oldest unfinished task of every key had started; None: not in time."""
    back: int
    """Starts of a task after a later one of its key."""
    overlaps: int
    """Starts of a task while another of its key ran."""
    twice: int
    """Tasks started more than once."""
    missing: int
    """Tasks not ended in time."""


def run(server: Server, report: Report, *, quick: bool) -> None:
    """Run each event on each side."""
    bound = 30.0 if quick else 150.0
    table = Table(
        "The same event: 400 tasks of 30 ms, 12 keys, one worker process of two",
        ["event", "worker", "all keys continue after, s", "out of order", "overlapping", "run twice", "missing"],
    )
    for event in EVENTS:
        pauses = {}
        for side in SIDES:
            it = measure(server, event, side, bound)
            pauses[side] = it.pause
            pause = f"> {bound:.0f}" if it.pause is None else f"{it.pause:.2f}"
            table.rows.append([event, side, pause, *map(str, (it.back, it.overlaps, it.twice, it.missing))])
        if event == TAKEOVER and pauses["sticky"] is not None:
            report.ratio("takeover", pauses["sticky"] / (pauses["stock"] or bound))
    table.notes.append(
        "`acks_late` on either side. Stock: visibility timeout 6 s; sticky: lease 3 s, margin 0.5 s. A key "
        f"continues when its oldest unfinished task has started. Missing: not ended {bound:.0f} s after the event."
    )
    report.tables.append(table)


def measure(server: Server, event: str, side: str, bound: float) -> Seen:
    """Publish, trigger the event, and wait until all tasks have ended or the time is up."""
    with tempfile.TemporaryDirectory() as folder, prepared(server, side) as app, ExitStack() as stack:
        path = stamps(folder)
        recorder, slots = Recorder(path), SlotLog(path)

        def start(name: str, *flags: str) -> Worker:
            flags, conf = (*QUIET, *flags), CONF[side]
            started = running(server, side, POOL, flags=flags, level="INFO", name=name, log=path, conf=conf)
            worker = stack.enter_context(started)
            worker.wait_ready()
            return worker

        first = start("first")
        if side == "stock":
            start("second", "-Q", "none")
        elif event != HANDOVER:
            start("second")
            wait_until(lambda: _shared(slots.events()), TIMEOUT, "both have half of the slots")
        send(app, recorder)
        wait_until(lambda: _started(recorder) >= BEFORE, TIMEOUT, "tasks start")
        at = time.monotonic_ns()
        if event == TAKEOVER:
            first.kill()
        elif event == STOP:
            first.stop()
        if side == "stock":
            if event == HANDOVER:
                app.control.cancel_consumer("bench-stock", destination=["first@stock"])
            app.control.add_consumer("bench-stock", destination=["second@stock"])
        elif event == HANDOVER:
            start("second")
            wait_until(lambda: any(e.what == "lost" for e in slots.events()), TIMEOUT, "slots move")
            at = min(e.at for e in slots.events() if e.what == "lost")
        _wait_done(recorder, at, bound)
        return seen(recorder.events(), at)


def send(app: Any, recorder: Recorder) -> None:
    """Publish the backlog: each key's tasks are numbered from 1."""
    numbers = Counter[str]()
    with app.producer_or_acquire() as producer:
        for i in range(TASKS):
            key = f"k{i // BURST % KEYS}"
            numbers[key] += 1
            task_id = uuid()
            with recorder.sending(key, numbers[key], task_id, sender=1):
                app.tasks["step"].apply_async((key, numbers[key], NAP), producer=producer, task_id=task_id)


def seen(events: Sequence[Event], at: int) -> Seen:
    """Return the outcome of an event at this time, from the history."""
    judged = judge(events)
    return Seen(
        pause=_pause(events, at),
        back=len(steps_back(events)),
        overlaps=len(judged.overlaps),
        twice=len(judged.duplicates),
        missing=len(judged.lost),
    )


def _pause(events: Sequence[Event], at: int) -> float | None:
    runs = pair(sorted(events, key=lambda e: e.at), {})
    done = {r.start.task for r in runs if r.ended and r.until < at}
    longest = 0.0
    for key in {e.key for e in events}:
        left = [e.task for e in events if e.kind is Kind.PUBLISHED and e.key == key and e.task not in done]
        mine = [r for r in runs if left and r.start.task == min(left)]
        if not left or any(r.start.at < at and r.ended for r in mine):
            continue  # all ended before, or the oldest task kept running through the event
        started = [(r.start.at - at) / SECOND for r in mine if r.start.at >= at]
        if not started:
            return None
        longest = max(longest, min(started))
    return longest


def _wait_done(recorder: Recorder, at: int, bound: float) -> None:
    def done() -> bool:
        return len({e.task for e in recorder.events() if e.kind is Kind.END}) == TASKS

    while not done() and (time.monotonic_ns() - at) / SECOND < bound:
        time.sleep(0.2)


def _started(recorder: Recorder) -> int:
    return sum(e.kind is Kind.START for e in recorder.events())


def _shared(events: Sequence[SlotEvent]) -> bool:
    """Return whether two workers own half of the slots each."""
    owner: dict[int, str] = {}
    for event in events:
        if event.what == "gained":
            owner[event.slot] = event.worker
        elif owner.get(event.slot) == event.worker:
            del owner[event.slot]
    return sorted(Counter(owner.values()).values()) == [SLOTS // 2, SLOTS // 2]
