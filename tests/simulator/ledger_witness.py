"""Additional invariants of worlds whose tasks use the ledger of runs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_sticky.queues.base import Disposition, Outcome, RunClaim, Tenure
from celery_sticky.queues.memory_ledger import Ledger
from simulator.invariants import Invariant, Violation

if TYPE_CHECKING:
    from simulator.pool import SimulatedRun
    from simulator.process import Process


@dataclass(slots=True)
class Run:
    """What befell one run: a task's id and the number of its retries."""

    begun: int = 0
    """How often it has begun since its task last gave it back."""
    ever: bool = False
    """Whether it has ever begun."""
    finished: bool = False
    """Whether the broker has confirmed an end of it."""
    process: Process | None = None
    """The worker that claimed it last."""
    tenure: Tenure | None = None
    """The tenure under which it did."""


class LedgerWitness:
    """Checks every step that concerns the ledger, and raises if it breaks an invariant."""

    def __init__(
        self,
        ledger: Callable[[], Ledger],
        claim_of: Callable[[bytes], RunClaim | None],
        explained: Callable[[Process, Tenure], bool],
        ahead: int,
    ) -> None:
        """`explained`: whether a fault explains that a worker lost a slot with runs that it had claimed."""
        self._ledger, self._claim_of, self._explained, self._ahead = ledger, claim_of, explained, ahead
        self._runs: dict[str, Run] = defaultdict(Run)
        self._tasks: set[str] = set()
        """Ids of the published tasks that use the ledger."""
        self._ended: set[str] = set()
        """Those of them of which a message was settled for good, but not as another copy."""
        self._unfetched: dict[str, Process] = {}
        """Runs whose message went back to its queue over a new connection, and whose worker does not have it again."""
        self._lost: dict[Process, int] = defaultdict(int)
        """Runs that each worker had claimed and not begun when it was killed."""
        self.discarded = self.abandoned = self.begun = 0

    def publishes(self, body: bytes) -> None:
        """A message is published."""
        if (claim := self._claim_of(body)) is not None:
            self._tasks.add(_task_of(claim))

    def claims(self, claim: RunClaim, process: Process, tenure: Tenure) -> None:
        """The broker has recorded the claim of a run for a delivery under this tenure."""
        run = self._runs[claim.run]
        run.process, run.tenure = process, tenure

    def goes_back(self, body: bytes, process: Process) -> None:
        """A message went back to its queue, because its worker has opened the slot again."""
        if (claim := self._claim_of(body)) is not None:
            self._unfetched[claim.run] = process

    def comes(self, body: bytes, process: Process) -> None:
        """A worker has fetched a message of a slot that it has."""
        claim = self._claim_of(body)
        if claim is not None and self._unfetched.get(claim.run) is process:
            del self._unfetched[claim.run]

    def begins(self, run: SimulatedRun) -> None:
        """A run begins, this instant."""
        claim = run.entry.run
        if claim is None:
            return
        ledger, known = self._ledger(), self._runs[claim.run]
        self.begun += 1
        if claim.once and known.begun:
            raise Violation(Invariant.RUN_TWICE, f"{run}, run {claim.run}")
        if known.finished:
            raise Violation(Invariant.RUN_AFTER_FINISHED, f"{run}, run {claim.run}")
        if claim.once and (claim.run not in ledger.claimed or known.process is not run.process):
            holder = known.process.origin if known.process is not None else None
            raise Violation(Invariant.RUN_NOT_CLAIMED, f"{run}, run {claim.run}: {holder} has claimed it")
        known.begun += 1
        known.ever = True

    def given_back(self, claim: RunClaim | None) -> None:
        """A task gave its message back, to run again: its run may begin once more."""
        if claim is not None:
            self._runs[claim.run].begun = 0

    def settles(self, disposition: Disposition, body: bytes, name: str, *, ran: bool) -> bool:
        """Check a confirmed disposition; return whether it discards a copy or abandons a run.

        `ran`: whether a run of this very message has finished.
        """
        claim = self._claim_of(body)
        if claim is None or disposition.outcome not in (Outcome.ACK, Outcome.BURY, Outcome.DEFER):
            return False
        if disposition.outcome is Outcome.ACK and not ran:
            self._check_discarded(claim, name)
            return True
        if disposition.outcome is Outcome.DEFER and disposition.body is None:
            return False  # it is not due yet
        self._runs[claim.run].finished = True
        if disposition.outcome is Outcome.DEFER:
            return False
        self._ended.add(_task_of(claim))
        if not json.loads(disposition.info or "{}").get("abandoned"):
            return False
        self._check_abandoned(claim, name)
        return True

    def _check_discarded(self, claim: RunClaim, name: str) -> None:
        self.discarded += 1
        ledger = self._ledger()
        if claim.run not in ledger.finished and claim.run not in ledger.claimed:
            raise Violation(Invariant.DISCARDED_ORIGINAL, f"{name}, run {claim.run}")

    def _check_abandoned(self, claim: RunClaim, name: str) -> None:
        self.abandoned += 1
        run = self._runs[claim.run]
        if run.ever:
            return
        text = f"{name}, run {claim.run}, claimed by {run.process and run.process.origin} under {run.tenure}"
        if run.process is None or run.tenure is None:
            raise Violation(Invariant.FALSE_ALARM, text)
        # A worker that gives a slot away before it has fetched again what went back cannot take those claims back.
        unfetched = self._unfetched.get(claim.run) is run.process
        if not unfetched and not self._explained(run.process, run.tenure):
            raise Violation(Invariant.FALSE_ALARM, text)
        if run.process.killed_as == run.tenure.incarnation:
            self._lost[run.process] += 1
            if self._lost[run.process] > self._ahead:
                raise Violation(Invariant.MANY_LOST, f"{text}, and {self._ahead} before it")

    def disorder(self) -> tuple[Invariant, str] | None:
        """Return what is not in order yet although all messages are settled."""
        if silent := self._tasks - self._ended:
            return Invariant.NO_END, f"tasks {sorted(silent)} have neither finished nor are they buried"
        if claimed := self._ledger().claimed:
            return Invariant.OPEN_CLAIM, f"{claimed} are claimed"
        return None


def _task_of(claim: RunClaim) -> str:
    return claim.run.partition("/")[0]
