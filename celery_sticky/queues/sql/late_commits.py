"""Finds messages that were committed late: with an id below one that was fetched already.

An id is drawn before its transaction commits, so a message with a lower id may appear after the cursor has passed it.
More rows below the cursor than are known means that some were committed late. Every fetch counts those that are younger
than `LATE_SECONDS`, in the snapshot in which it looks above the cursor, or in a later one: so no message overtakes one
that was committed before it was sent. Older transactions are found by a count of all rows from time to time. It takes
longer the more dead rows the database has not removed yet, so counting takes at most a fiftieth of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from celery_sticky.queues.sql.open_slot import OpenSlot
from celery_sticky.queues.sql.ranges import Window, crowded
from celery_sticky.sql import Database
from celery_sticky.sql.pauses import LONG_PAUSE

SHARE = 50
"""Counting takes at most one part in this many of the time."""
PAUSE = 0.05
"""Least seconds between two looks at idle slots whose cursor has moved lately."""
SWEEP_SECONDS = 2.0
"""Least seconds between two counts of all rows below all cursors."""


class LateCommits:
    """Looks below the cursors of one driver's slots."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database, self._clock = database, clock
        self._next_look = 0.0
        self._swept, self._cost = float("-inf"), 0.0
        """When the last sweep began, and how many seconds it took."""
        self._owed = False
        """Whether a fetch came too early for a sweep: a ring that it answered may be about an old transaction."""

    def age(self, slots: Iterable[OpenSlot]) -> None:
        """Raise the floors of slots that are about to be fetched from."""
        now = self._clock()
        for slot in slots:
            slot.age(now)

    def sweep(self, slots: Iterable[OpenSlot]) -> list[OpenSlot]:
        """Return the slots that have late messages, noted in `OpenSlot.late`; look only if it is time for all."""
        now = self._clock()
        if not self._database.dialect.overlaps:
            return []
        if now < self._swept + max(SWEEP_SECONDS, SHARE * self._cost):
            self._owed = True
            return []
        found = self.look(slots, whole=True)
        self._swept, self._cost, self._owed = now, self._clock() - now, False
        return found

    def watch(self, slots: Sequence[OpenSlot], *, proven: bool) -> list[OpenSlot]:
        """Return the idle slots that have late messages; look only if it is time for it.

        If the ear is `proven`, a transaction rings when it commits, however late.
        """
        now = self._clock()
        if not self._database.dialect.overlaps or now < self._next_look:
            return []
        self.age(slots)
        found = self.look(slots)
        self._next_look = now + max(PAUSE, SHARE * (self._clock() - now))
        rare = proven and not self._owed
        return found if rare and now < self._swept + LONG_PAUSE else found + self.sweep(slots)

    def look(self, slots: Iterable[OpenSlot], *, whole: bool = False) -> list[OpenSlot]:
        """Return those of the slots that have late messages; look at young rows only, or at the `whole` queue."""
        windows = [(slot, window) for slot in slots for window in slot.windows(whole=whole)]
        found: list[OpenSlot] = []
        for number in crowded(self._database, self._database.dialect, [window for _, window in windows]):
            slot, window = windows[number]
            if self._note(slot, window) and slot not in found:
                found.append(slot)
        return found

    def _note(self, slot: OpenSlot, window: Window) -> bool:
        """Note the late messages in a window; return whether there are any."""
        rows = self._database.rows(
            "SELECT id FROM {message} WHERE queue = %s AND priority = %s AND id > %s AND id <= %s", window[:4]
        )
        known = {one.id for one in slot.flight.values() if one.priority == window.priority}
        late = {(window.priority, row[0]) for row in rows if row[0] not in known} - slot.late
        slot.late |= late
        return bool(late)
