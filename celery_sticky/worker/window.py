"""How many runnable messages are kept beyond what the pool can run at a time: as few as keep it busy."""

from __future__ import annotations

LEAST, MOST = 32, 128
"""Messages. What is kept here comes back later, and in memory, should the worker die or the slot move."""
LASTS = 0.1
"""Seconds for which a window is larger than it need be."""


class Window:
    """Doubled when the pool ran dry though the broker had more; halved when what was asked for lasts long.

    The pool's tasks and the courier's round trips share one interpreter: where tasks take a fraction of a millisecond,
    a few of them are done before the courier gets its turn.
    """

    def __init__(self) -> None:
        self.ahead = LEAST
        self._more = False
        self._asked_at = 0.0

    def asked(self, now: float, *, dry: bool) -> None:
        """Messages are asked for; `dry`: there is none that the pool could take meanwhile."""
        if dry and self._more:
            self.ahead = min(2 * self.ahead, MOST)
        elif now > self._asked_at + LASTS:
            self.ahead = max(self.ahead // 2, LEAST)
        self._asked_at = now

    def brought(self, *, more: bool) -> None:
        """Some have come; `more`: there may be others."""
        self._more = more
