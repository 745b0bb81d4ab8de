"""A worker's pool of child processes: what is run when, and what ends it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_sticky.delivery.gate import Entry
from celery_sticky.delivery.state import End, Item
from celery_sticky.envelope import Envelope
from celery_sticky.errors import StickyError
from celery_sticky.keys import SlotId
from celery_sticky.message import STAMP_HEADER, Stamp
from celery_sticky.queues.base import Outcome, RunClaim
from celery_sticky.slots import Slot
from simulator.scenario import Ending, Point
from simulator.terms import EPOCH, KEYSPACE

if TYPE_CHECKING:
    from simulator.process import Process

LOOK = 0.01
"""Seconds after the end of trust by which a child has ended itself."""


def envelope(
    key: int, n: int, *, retries: int = 0, due: float = 0.0, stamp: Stamp | None = None, copy: int = 0
) -> bytes:
    """Return the message of a task's try; where keys are placed it has a stamp. Copies differ in their properties."""
    headers: dict[str, Any] = {"id": f"{key}-{n}", "key": key, "n": n, "retries": retries, "due": due}
    if stamp is not None:
        headers[STAMP_HEADER] = stamp.to_header()
    return json.dumps({"body": "", "headers": headers, "properties": {"copy": copy} if copy else {}}).encode()


class SimulatedRun:
    """A task under way in a child of the pool."""

    def __init__(self, process: Process, entry: Entry) -> None:
        self.process, self.entry, self.turn = process, entry, entry.turn
        item: Item = entry.content
        self.body = item.delivery.body
        self.priority = item.delivery.priority
        self.slot = entry.slot[1]
        self.incarnation = item.delivery.tenure.incarnation
        self.membership = process.joined_as
        headers = item.envelope.headers
        self.key, self.n, self.retries = int(headers["key"]), int(headers["n"]), int(headers["retries"])
        self.copy = int(item.envelope.properties.get("copy", 0))
        placed = entry.claim is not None
        self.epoch = entry.token if placed else item.delivery.tenure.epoch
        self.fenced: Slot | str = str(self.key) if placed else self.slot
        """What its epoch is of."""
        self.outcome: Ending | None = None
        """How it ended; None: its process was lost before."""
        self.begun = self.over = False

    def __str__(self) -> str:
        return f"key {self.key} #{self.n} at {self.process.origin}, epoch {self.epoch}"

    @property
    def trusted(self) -> bool:
        """Whether the lease it relies on lasts: what its child reads in shared memory."""
        return self.process.trusts and self.process.joined_as == self.membership

    @property
    def once(self) -> bool:
        """Whether it must not begin again if it may have begun."""
        return self.entry.run is not None and self.entry.run.once

    @property
    def stands_still(self) -> bool:
        """Whether its child is frozen."""
        return self.process.world.now < self.process.frozen_until


class Pool:
    """The task sink of a courier: the part of Celery."""

    def __init__(self, process: Process, children: int) -> None:
        self._process, self._world, self._children = process, process.world, children
        self._runs: dict[SimulatedRun, None] = {}
        self._draining = False
        self.ended_at = 0.0
        """When a run has last ended."""

    # -- for the courier -----------------------------------------------------------------------

    def concurrency(self) -> int:
        """See `TaskSink.concurrency`."""
        return self._children

    def lock_of(self, slot: SlotId, envelope: Envelope) -> Hashable:
        """See `TaskSink.lock_of`."""
        return (KEYSPACE, envelope.headers["key"])

    def claim_of(self, envelope: Envelope) -> RunClaim | None:
        """See `TaskSink.claim_of`."""
        return self._world.claim_of(envelope.headers)

    def due_of(self, envelope: Envelope) -> float | None:
        """See `TaskSink.due_of`."""
        return float(envelope.headers["due"]) or None

    def ready(self) -> None:
        """See `TaskSink.ready`: the loop is woken."""
        if not self._draining:
            self._draining = True
            self._process.in_loop(self._process.rng.uniform(0, 0.01), self._drain)

    def refused(self, messages: Collection[tuple[Envelope, StickyError]]) -> None:
        """See `TaskSink.refused`."""
        for envelope, error in messages:
            self._world.note(self._process.origin, "%s is told: %s", envelope.task_id, error)

    # -- the way of a task ---------------------------------------------------------------------

    def _drain(self) -> None:
        self._draining = False
        for entry in self._process.courier.take(self._children):
            run = SimulatedRun(self._process, entry)
            self._process.in_loop(self._process.rng.uniform(0, 0.01), partial(self._start, run))

    def _start(self, run: SimulatedRun) -> None:
        if self._process.passes(Point.HANDED):
            self._process.outcome(partial(self._start, run))
            return
        if not self._process.courier.start_entry(run.entry, run.turn):
            return
        self._runs[run] = None
        self._process.passes(Point.STARTED)
        self._in_child(run, self._begin)

    def _in_child(self, run: SimulatedRun, do: Callable[[SimulatedRun], None]) -> None:
        """Do something in the child of a run: now, when it thaws, or never."""
        if run.over:
            return
        if run.stands_still:
            self._world.at(self._process.frozen_until, partial(self._in_child, run, do))
        else:
            do(run)

    def _begin(self, run: SimulatedRun) -> None:
        if not self._process.alive:
            return
        if not run.trusted:
            self._lose(run)
            return
        self._world.note(self._process.origin, "runs %s", run)
        self._world.witness.begins(run)
        run.begun = True
        self._process.in_loop(0.0, partial(self._accepted, run))
        task = self._world.tasks[run.key, run.n]
        self._world.after(task.seconds + 1e-3, lambda: self._in_child(run, self._end))
        self._watch(run)

    def _accepted(self, run: SimulatedRun) -> None:
        """The main process learns that a run has begun."""
        run.entry.began = True
        if run.entry.run is not None:
            self._process.courier.began()

    def _watch(self, run: SimulatedRun) -> None:
        """The child reads the lease: it ends itself at the end of trust."""
        if run.over:
            return
        if not run.trusted:
            self._kill(run)
        else:
            self._world.after(max(0.0, self._process.trust_ends_in()) + LOOK, lambda: self._in_child(run, self._watch))

    def _end(self, run: SimulatedRun) -> None:
        if not run.trusted:
            self._kill(run)  # it thaws past the end of trust
            return
        runs = self._world.witness.tasks[run.body].runs
        ends = self._world.tasks[run.key, run.n].ends
        run.outcome = ends[runs - 1] if runs <= len(ends) else Ending.FINISH
        self._over(run)

    def _kill(self, run: SimulatedRun) -> None:
        """A child kills itself: trust is over."""
        self._over(run)

    def _over(self, run: SimulatedRun) -> None:
        self._world.note(self._process.origin, "%s: %s", run, run.outcome or "killed")
        self._world.witness.ends(run, finished=run.outcome is Ending.FINISH)
        self._lose(run)

    def _lose(self, run: SimulatedRun) -> None:
        """The child has nothing more to do with it: the main process learns of it."""
        run.over = True
        self._process.in_loop(self._process.rng.uniform(0, 0.01), partial(self._let_go, run))

    def _let_go(self, run: SimulatedRun) -> None:
        if self._process.passes(Point.ENDED):
            self._process.outcome(partial(self._let_go, run))
            return
        self._runs.pop(run, None)
        self.ended_at = self._world.now
        courier, now = self._process.courier, self._world.now + EPOCH
        if run.once and run.begun and run.outcome in (None, Ending.DIE):
            courier.abandon(run.entry, "its process died")
            self.ready()
            return
        match run.outcome:
            case Ending.FINISH:
                courier.end(run.entry, End(Outcome.ACK))
            case Ending.RETRY:
                due = now + self._process.rng.choice((0.0, 0.1, 3.0))
                stamp = self._world.stamp(run.key)
                body = envelope(run.key, run.n, retries=run.retries + 1, due=due, stamp=stamp, copy=run.copy)
                self._world.witness.retries(run.body, body)
                courier.end(run.entry, End(Outcome.DEFER, due=due, body=body))
            case Ending.BURY:
                self._world.witness.tasks[run.body].buried = True
                courier.end(run.entry, End(Outcome.BURY, reason="rejected"))
            case Ending.REQUEUE:
                if self._world.witness.ledger is not None:
                    self._world.witness.ledger.given_back(run.entry.run)
                courier.rest(run.entry, run.turn, after_run=True, cause="rejected")
            case _:
                # If it was ended with its trust, the task is not to blame.
                courier.again(run.entry, counted=run.trusted)
        self.ready()

    # -- what befalls it -----------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether anything is under way."""
        return bool(self._runs)

    @property
    def _begun(self) -> list[SimulatedRun]:
        return [run for run in self._runs if run.begun and not run.over]

    def look_at_the_lease(self) -> None:
        """The children see that it has changed."""
        for run in self._begun:
            if not run.trusted:
                self._in_child(run, self._end)

    def thaw(self) -> None:
        """The children go on: first of all each looks at its lease."""
        if self._world.now < self._process.frozen_until:
            return
        for run in self._begun:
            if not run.trusted:
                self._kill(run)
            else:
                self._world.witness.thaws(run)

    def die_with_parent(self) -> None:
        """The children die with the main process, and what is not under way yet never will be."""
        for run in self._runs:
            if run.begun and not run.over:
                self._world.note(self._process.origin, "%s: dies", run)
                self._world.witness.ends(run, finished=False)
            run.over = True
