"""Fails the task of a message that was buried before it could start, as if the task had raised an error.

Otherwise its caller, and the chord it is part of, would wait for its result forever. This does the same as Celery's
`Request` for a task that failed without a process to report it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import signals
from celery.app.task import Context
from celery.exceptions import InvalidTaskError, NotRegistered
from celery.worker.request import Request
from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.message import Message
from kombu.serialization import prepare_accept_content

from celery_sticky.envelope import Envelope
from celery_sticky.errors import RunAbandoned, StickyError
from celery_sticky.execution.readable import Unreadable
from celery_sticky.execution.results import Results
from celery_sticky.execution.run import NoChannel
from celery_sticky.message import STAMP_HEADER
from celery_sticky.signals import task_abandoned

logger = logging.getLogger("celery_sticky")


class Refusals:
    """Reports buried messages to their callers in another thread, because a result backend may be slow."""

    def __init__(self, app: Any, hostname: str, results: Results) -> None:
        self._app, self._hostname, self._results = app, hostname, results
        self._accept = prepare_accept_content(app.conf.accept_content)
        self.dispatcher: Any = None
        """Celery's event dispatcher."""

    def tell(self, messages: Collection[tuple[Envelope, StickyError]]) -> None:
        """Fail the tasks of these buried messages with their errors."""
        for envelope, error in messages:
            if isinstance(error, RunAbandoned):
                _announce(self._hostname, envelope, error)
            self._results.put(envelope.task_id, partial(self._fail, envelope, error))

    def _fail(self, envelope: Envelope, error: StickyError) -> None:
        request = None
        if not isinstance(error, Unreadable):
            with suppress(NotRegistered, InvalidTaskError, DecodeError, ContentDisallowed):
                request = self._request(envelope)
        if request is None:
            # This worker does not know the task, or the message cannot be trusted: only the result is written.
            if envelope.task_id and envelope.task_id.isprintable():  # otherwise nobody can ask for the result
                context = Context(id=envelope.task_id, task=envelope.task)
                self._app.backend.mark_as_failure(envelope.task_id, error, request=context)
            return
        task = request.task
        context = request._context  # what Celery passes to a result backend and to error callbacks
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


def _announce(hostname: str, envelope: Envelope, error: RunAbandoned) -> None:
    stamp = envelope.headers.get(STAMP_HEADER)
    told = stamp if isinstance(stamp, dict) else {}
    keyspace, key = told.get("keyspace"), told.get("key")
    logger.error(
        "sticky: task %s[%s] of key %r is abandoned: %s. See 'celery sticky abandoned list'",
        envelope.task,
        envelope.task_id,
        key,
        error,
    )
    task_abandoned.send(
        sender=hostname, keyspace=keyspace, task=envelope.task, id=envelope.task_id, key=key, reason=str(error)
    )


def _info(error: StickyError) -> Any:
    try:
        raise error
    except StickyError:
        return ExceptionInfo()
