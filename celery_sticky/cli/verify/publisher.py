"""Publishes numbered tasks, and records those that the broker accepted."""

from __future__ import annotations

from collections import Counter
from typing import Any

from celery.utils import uuid

from celery_sticky.app import Sticky
from celery_sticky.cli.verify.app import hashed, make_app
from celery_sticky.cli.verify.site import Mode, Site, queue_of
from celery_sticky.testing.recorder import Recorder


class Publisher:
    """One of `senders` publishers of a run."""

    def __init__(self, site: Site, *, sender: int = 0, senders: int = 1) -> None:
        self._site, self._sender, self._senders = site, sender, senders
        self.app = make_app(site)
        self._recorder = Recorder(site.history)
        self.count: Counter[str] = Counter()
        """Key -> number of tasks that were sent, with or without success."""

    def publish(self, task: str, key: str, seconds: float, **options: Any) -> None:
        """Send the next task of a key, once, and record the result of the send.

        Raises:
            Exception: from this package, Kombu, its transport, the client library or the socket.
        """
        n = self.count[key] * self._senders + self._sender
        self.count[key] += 1
        task_id = uuid()
        if self._site.mode is not Mode.STICKY:
            index = hashed(key, self._site.workers) if self._site.mode is Mode.HASH else 0
            options["queue"] = queue_of(index)
        with self._recorder.sending(key, n, task_id, sender=self._sender):
            self.app.tasks[task].apply_async((key, n, seconds), task_id=task_id, retry=False, **options)

    def close(self) -> None:
        """Close the connections."""
        if self._site.placed is not None:
            Sticky.of(self.app).wiring.lookup.close()
        self.app.close()
