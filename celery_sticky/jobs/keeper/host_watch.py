"""Whether a job host still does something: its worker pings the host's event loop. Pure."""

from __future__ import annotations

from celery_sticky.jobs.wire import Blocked, Pong

STEP = 1.0
"""Seconds between pings."""


class HostWatch:
    """The watch over one host. `now` is in seconds on one clock."""

    def __init__(self, limit: float, now: float) -> None:
        """`limit`: for how many seconds the host's loop may be silent; 0: for any time."""
        self._limit, self._looked_at = limit, now
        self._answered = False
        self._silence = 0.0
        self._blocked: Blocked | None = None

    def heard(self, message: Pong | Blocked) -> None:
        """Take in the answer of the host's loop, or what the host's watchdog says."""
        if isinstance(message, Pong):
            self._answered = True
        else:
            self._blocked = message

    @property
    def blocked(self) -> Blocked | None:
        """What blocks the host's loop now, if the host's watchdog has said so; None: nothing that is known."""
        return None if self._answered else self._blocked

    def overdue(self, now: float) -> Blocked | str:
        """Return why the host is to be killed: what blocks its loop, or a text; an empty text: it is not.

        Ask about once in `STEP` seconds, and ping the host each time.
        """
        # Count at most two steps at a time: if this thread stood still, so perhaps did the answers.
        self._silence += min(now - self._looked_at, 2 * STEP)
        self._looked_at = now
        if self._answered:
            self._answered, self._silence, self._blocked = False, 0.0, None
        if not self._limit or self._silence < self._limit:
            return ""
        return self._blocked or f"the job host has not answered for {self._silence:.0f} s"
