"""The notes of the run: numbered notifications to good jobs, and which of them got lost."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from celery_sticky.app import Sticky
from celery_sticky.cli.verify.app import make_app
from celery_sticky.cli.verify.beside import Beside
from celery_sticky.cli.verify.jobs import JOB, job_keys
from celery_sticky.cli.verify.outcome import ROLLBACK, VerifyRun
from celery_sticky.cli.verify.site import Site
from celery_sticky.errors import StickyError
from celery_sticky.testing.history import Event, Kind
from celery_sticky.testing.measure import SECOND
from celery_sticky.testing.recorder import Recorder

EVERY = 0.15
"""Seconds between two notes."""
SETTLING = 5.0
"""Seconds without a note taken after which those that are left count as lost."""
HANDLED = 2
"""A note is handled after so many times the longest gap of its job. What is stopped before need not handle it."""


class NoteWorkload(Beside):
    """Sends notes while the block is open, and records those that were accepted."""

    def __init__(self, site: Site, *, seed: int) -> None:
        self._site, self._keys = site, job_keys(site.jobs)
        self._app = make_app(site)
        self._recorder = Recorder(site.note_history)
        self._draw = random.Random(f"notes-{seed}")
        self._count: Counter[str] = Counter()
        super().__init__(idle=not self._keys)

    def _pause(self) -> float:
        return EVERY

    def _turn(self) -> None:
        key = self._draw.choice(self._keys)
        n = self._count[key]
        self._count[key] += 1
        with suppress(StickyError), self._recorder.sending(key, n, "", sender=0):
            Sticky.of(self._app).jobs.notify(JOB, key, n)

    def settled(self) -> list[Event]:
        """Wait until every note was taken or jobs take no more, and return what is recorded of notes."""
        events = self._recorder.events()
        taken, until = len(events), time.monotonic() + SETTLING
        while _untaken(events) and time.monotonic() < until:
            time.sleep(0.1)  # poll
            events = self._recorder.events()
            if len(events) > taken:
                taken, until = len(events), time.monotonic() + SETTLING
        return events

    def close(self) -> None:
        """Close the connections."""
        if self._keys:
            Sticky.of(self._app).jobs.close()
        self._app.close()


def _untaken(events: Sequence[Event]) -> list[Event]:
    got = {event.task for event in events if event.kind is Kind.START}
    return [event for event in events if event.kind is Kind.PUBLISHED and event.task not in got]


def lost_notes(outcome: VerifyRun) -> list[Event]:
    """Return the notes that were accepted and that no run of their job got.

    Notes are not lost if the job was stopped soon afterwards, if the store came back with older data soon afterwards,
    or if their placed key belongs to no worker at the end.
    """
    withdrawn = [event for event in outcome.job_events if event.kind is Kind.WITHDRAWN]
    rollbacks = [done for done in outcome.timeline.done if done.fault.name == ROLLBACK]
    moves, seen = outcome.moves, outcome.jobs_seen
    soon = int(HANDLED * outcome.job_limit * SECOND)
    return [
        note
        for note in _untaken(outcome.note_events)
        if not any(done.since - soon <= note.at <= done.until for done in rollbacks)
        and not (moves is not None and None in moves.workers(note.key, seen, seen))
        and not any(end.key == note.key and note.sent - SECOND <= end.at <= note.at + soon for end in withdrawn)
    ]
