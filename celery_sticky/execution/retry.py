"""Makes `retry` of a keyed task one step at the broker: the message of the next try replaces the current one.

Celery publishes the next try where the task runs, and acknowledges the current one later in the main process. These are
two steps, and a worker that has lost the slot in between can still do the first. Here the next try is not published but
serialized; it travels with the `Retry` to the main process and settles the delivery under its fence (`Act.DEFER`).

All of `Task.retry` is Celery's own (5.5 to 5.7): only the signature it makes of the request gets our producer. A
message that goes to another queue, or to this one with another priority, is published as usual.
"""

from __future__ import annotations

import functools
import logging
import sys
import time
from contextlib import ExitStack
from typing import Any

from celery import states
from celery.exceptions import Reject, Retry
from kombu import Producer
from kombu.transport import virtual
from kombu.utils.json import dumps

from celery_sticky.execution.body import at_end, error_here
from celery_sticky.execution.eta import due_of

logger = logging.getLogger("celery_sticky")


class DeferredRetry(Retry):
    """A `Retry` that carries the message of the next try."""

    sticky_body: bytes = b""
    sticky_due = 0.0
    """When it is due, in seconds since the Unix epoch."""
    publication: tuple[Any, dict[str, Any]] = (None, {})
    """The body and options with which Celery would have published it. Stays in the process that runs the task."""

    def __reduce__(self) -> tuple[Any, ...]:
        return *super().__reduce__(), {"sticky_body": self.sticky_body, "sticky_due": self.sticky_due}


class _Sheet(virtual.Channel):
    """A channel without a connection: it serializes a message as it would be sent, and keeps it."""

    def __init__(self) -> None:
        """Skip Kombu's `__init__`, which registers the channel with a connection."""

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        self.written = dumps(message).encode()


class _Notary:
    """The producer that `retry` publishes with: it keeps the message of the next try, and publishes all others."""

    def __init__(self, app: Any, delivery_info: dict[str, Any]) -> None:
        self._app, self._source = app, delivery_info
        self._stack = ExitStack()
        self._ignores: Any = None
        self.deferred: DeferredRetry | None = None

    @functools.cached_property
    def _producer(self) -> Any:
        return self._stack.enter_context(self._app.producer_or_acquire())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:
        options["headers"] = {**options["headers"], "ignore_result": self._ignores}
        if not self._goes_back(options):
            return self._producer.publish(body, **options)
        sheet = _Sheet()
        Producer(sheet, auto_declare=False).publish(body, **{**options, "retry": False, "declare": None})
        deferred = self.deferred = DeferredRetry()
        deferred.publication, deferred.sticky_body = (body, options), sheet.written
        deferred.sticky_due = due_of(options["headers"], self._app.timezone) or time.time()
        return None

    def _goes_back(self, options: dict[str, Any]) -> bool:
        place = (options.get("exchange"), options.get("routing_key"), options.get("priority") or 0)
        return place == ("", self._source["routing_key"], self._source["priority"])

    def lend_to(self, signature: Any, ignores: Any) -> None:
        """Make this signature publish with us; `ignores`: whether the task ignores its result by default."""
        options = signature.options
        own = {name: options[name] for name in ("producer", "ignore_result") if name in options}
        self._ignores = own.get("ignore_result", ignores)
        # Otherwise Celery first subscribes this process to the result of the next try, though nobody waits for it
        # here. With the result backend down this raises, and Celery rejects the message for good.
        options.update({"producer": self, **own, "ignore_result": True})
        self._stack.callback(_restore, options, own)

    def close(self) -> None:
        self._stack.close()


def _restore(options: dict[str, Any], own: dict[str, Any]) -> None:
    for name in ("producer", "ignore_result"):
        options.pop(name, None)
    options.update(own)


class _FencedRetry:
    """Replaces a task's `retry`. Of several retries in one run the last one counts."""

    def __init__(self, task: Any) -> None:
        self._task, self._retry, self._sign = task, task.retry, task.signature_from_request

    def retry(self, *args: Any, **kwargs: Any) -> Any:
        task, request = self._task, self._task.request
        if request.sticky is None or request.is_eager or request.called_directly:
            return self._retry(*args, **kwargs)
        notary = request.sticky_notary = _Notary(task.app, request.delivery_info)
        raised = False
        try:
            outcome = self._retry(*args, **kwargs)
        except Retry as error:
            outcome, raised = error, True
        finally:
            request.sticky_notary = None
            notary.close()
            if (deferred := notary.deferred) is not None:
                at_end(functools.partial(_publish_unraised, task, request.id, deferred))
        if notary.deferred is not None and isinstance(outcome, Retry):
            notary.deferred.__dict__.update(vars(outcome))
            outcome = notary.deferred
        if raised:
            raise outcome
        return outcome

    def sign(self, *args: Any, **kwargs: Any) -> Any:
        signature = self._sign(*args, **kwargs)
        # Set here, not passed to `retry`, because a task class may define a `retry` that takes fewer arguments.
        if (notary := getattr(self._task.request, "sticky_notary", None)) is not None:
            notary.lend_to(signature, self._task.ignore_result)
        return signature


def fence_retry(task: Any) -> None:
    """Make `retry` in a keyed run of this task produce a deferred message. May be called again."""
    if isinstance(getattr(task.retry, "__self__", None), _FencedRetry):
        return
    fenced = _FencedRetry(task)
    task.retry, task.signature_from_request = fenced.retry, fenced.sign


def _publish_unraised(task: Any, task_id: str, deferred: DeferredRetry, state: str | None, retval: Any) -> None:
    """Publish the message of a retry as Celery would, if the run ended in another way after the retry was made."""
    if retval is deferred or _comes_again(state, retval):
        return
    if error_here() is deferred:
        return  # the state RETRY could not be stored, but the message of the next try is still delivered
    body, options = deferred.publication
    try:
        with task.app.producer_or_acquire() as producer:
            producer.publish(body, **options)
    except Exception:
        logger.exception("sticky: the retry of task %s[%s] could not be published: it is lost", task.name, task_id)


def _comes_again(state: str | None, retval: Any) -> bool:
    """Return whether the message of this run gets another turn anyway, which would make the next try a second one."""
    if state is not None:
        return state == states.REJECTED and bool(retval.requeue)
    # No state: an exception broke the run off. Celery acknowledges the message unless the process itself ends.
    error = sys.exception()
    return not isinstance(error, Exception) or isinstance(error, (MemoryError, Reject))
