"""What becomes of the task of a message that was buried before it could start: a failure, as of one that raised.

Whoever waits for its result would wait for ever otherwise, and so would the chord that it is part of. Here is the same
that Celery's `Request` does for a task that failed without a process that could say so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Collection
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import signals
from celery.app.task import Context
from celery.exceptions import InvalidTaskError, NotRegistered
from celery.worker.request import Request
from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.message import Message
from kombu.serialization import prepare_accept_content

from celery_sticky.bootsteps.run import NoChannel
from celery_sticky.errors import StickyError
from celery_sticky.worker.envelope import Envelope
from celery_sticky.worker.native import start_thread

logger = logging.getLogger("celery_sticky")


class Refusals:
    """Tells those who wait, in a thread of its own while there is something to tell: a result backend may be slow."""

    def __init__(self, app: Any, hostname: str) -> None:
        self._app, self._hostname = app, hostname
        self._accept = prepare_accept_content(app.conf.accept_content)
        self._inbox: deque[tuple[Envelope, StickyError]] = deque()
        self._lock = threading.Lock()
        self._working = False
        self.dispatcher: Any = None
        """Celery's, for events."""

    def tell(self, messages: Collection[tuple[Envelope, StickyError]]) -> None:
        """These were buried, and why."""
        self._inbox.extend(messages)
        with self._lock:
            start, self._working = not self._working, True
        if start:
            start_thread(self._run, "sticky-refusals")

    def finish(self, timeout: float) -> None:
        """Wait until all is told, at most `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while self._working and time.monotonic() < deadline:
            time.sleep(0.01)  # looks again: what tells is a thread or a greenlet, and either goes on meanwhile

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._inbox:
                    self._working = False
                    return
            envelope, error = self._inbox.popleft()
            try:
                self._fail(envelope, error)
            except Exception:
                logger.exception("the result of task %s could not be written", envelope.task_id)

    def _fail(self, envelope: Envelope, error: StickyError) -> None:
        try:
            request = self._request(envelope)
        except (NotRegistered, InvalidTaskError, DecodeError, ContentDisallowed):
            # No task of this worker: as Celery's consumer does then, only the result is written.
            self._app.backend.mark_as_failure(envelope.task_id, error, request=Context(envelope.headers))
            return
        task = request.task
        context = request._context  # Celery's own name for what a result backend and error callbacks are given
        task.backend.mark_as_failure(request.id, error, request=context, store_result=request.store_errors)
        info = _info(error)
        signals.task_failure.send(
            sender=task,
            task_id=request.id,
            exception=error,
            args=request.args,
            kwargs=request.kwargs,
            traceback=info.traceback,
            einfo=info,
        )
        request.send_event("task-failed", exception=repr(error), traceback=info.traceback)

    def _request(self, envelope: Envelope) -> Any:
        message = Message(
            body=envelope.body,
            content_type=envelope.content_type,
            content_encoding=envelope.content_encoding,
            properties=envelope.properties,
            headers=envelope.headers,
            accept=self._accept,
            channel=NoChannel(),
        )
        return Request(message, app=self._app, hostname=self._hostname, eventer=self.dispatcher)


def _info(error: StickyError) -> Any:
    try:
        raise error
    except StickyError:
        return ExceptionInfo()
