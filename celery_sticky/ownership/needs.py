"""What a member needs to run tasks and jobs, and when it has lacked something for so long that it should leave."""

from __future__ import annotations

from enum import StrEnum

from celery_sticky.ownership.events import BrokerDown, BrokerUp, HostDown, HostUp, LoopAnswers, LoopSilent

NeedEvent = BrokerDown | BrokerUp | HostDown | HostUp | LoopSilent | LoopAnswers


class Need(StrEnum):
    """A requirement for running tasks or jobs."""

    BROKER = "broker"
    HOST = "job host"
    LOOP = "loop"
    """Celery's loop and its pool, which start tasks."""


class Needs:
    """The needs of one member. Times are in seconds, of the member's clock."""

    def __init__(self, broker_grace: float, loop_timeout: float) -> None:
        self._broker_grace, self._loop_timeout = broker_grace, loop_timeout
        self._missing: dict[Need, float] = {}
        """What is missing, and since when."""
        self._broker_up_at = float("-inf")
        self.stall = ""
        """Why the loop starts nothing, if it is silent."""

    @property
    def met(self) -> bool:
        """Whether nothing is missing."""
        return not self._missing

    def lacks(self, *needs: Need) -> bool:
        """Return whether one of these is missing."""
        return any(need in self._missing for need in needs)

    def hear(self, event: NeedEvent, now: float) -> None:
        """Take in what is missing, or is back."""
        match event:
            case BrokerDown():
                self._missing.setdefault(Need.BROKER, now)
            case BrokerUp():
                self._broker_up_at = now
                self._missing.pop(Need.BROKER, None)
            case HostDown():
                self._missing.setdefault(Need.HOST, now)
            case HostUp():
                self._missing.pop(Need.HOST, None)
            case LoopSilent(stall):
                self.stall = stall
                self._missing.setdefault(Need.LOOP, now)
            case LoopAnswers():
                self.stall = ""
                self._missing.pop(Need.LOOP, None)

    def grace_ends_at(self) -> float:
        """Return when something will have been missing for too long; infinity if that cannot be said."""
        return min(map(self._ends_at, self._missing), default=float("inf"))

    def _ends_at(self, need: Need) -> float:
        since = self._missing[need]
        if need is not Need.LOOP:
            return since + self._broker_grace
        # The loop's timeout was already waited out before the report. While the courier has no broker either, that
        # explains the silence: then `broker_grace` decides, and Celery gets its time to reconnect.
        if Need.BROKER in self._missing:
            return float("inf")
        return max(since, self._broker_up_at + self._loop_timeout)
