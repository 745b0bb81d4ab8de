"""The ledger of a keyspace in memory: which runs were claimed, and which have finished."""

from __future__ import annotations

from celery_sticky.queues.base import RunClaim, Tag


class Ledger:
    """The runs of one keyspace."""

    def __init__(self) -> None:
        self.claimed: dict[str, Tag] = {}
        """Run -> the delivery that holds it."""
        self.finished: dict[str, float] = {}
        """Run -> when it finished, in seconds since the epoch."""

    def claim(self, claim: RunClaim, tag: Tag) -> Tag | None:
        """Claim a run for a delivery, unless it is claimed or has finished; return the answer to a CLAIM."""
        if claim.run in self.finished:
            return None
        return self.claimed.setdefault(claim.run, tag) if claim.once else tag

    def give_back(self, claim: RunClaim, tag: Tag) -> None:
        """Delete a claim that this delivery holds, or an earlier one of its message."""
        if self.claimed.get(claim.run) in (tag, *claim.earlier):
            del self.claimed[claim.run]

    def finish(self, claim: RunClaim, now: float) -> None:
        """Record that a run has finished."""
        self.claimed.pop(claim.run, None)
        self.finished[claim.run] = now

    def forget(self, run: str) -> None:
        """Forget a run, so that it can be claimed again."""
        self.claimed.pop(run, None)
        self.finished.pop(run, None)

    def trim(self, before: float) -> int:
        """Forget the runs that finished before a time; return how many."""
        old = [run for run, at in self.finished.items() if at < before]
        for run in old:
            del self.finished[run]
        return len(old)
