"""Tasks that retry in different ways. Each returns what it sees of the message of its last attempt."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from celery import Celery, Task
from celery.exceptions import Ignore, Reject, Retry

from celery_sticky.testing.recorder import Recorder
from harness.tasks import recorded


class OwnRetry(Task):
    """A task whose `retry` accepts fewer arguments than Celery's."""

    abstract = True

    def retry(self, *, exc: Exception | None = None) -> Any:
        """Retry at once."""
        return super().retry(exc=exc, countdown=0)


class Silent(Task):
    """A task whose `retry` ends the run with `Ignore` instead of `Retry`."""

    abstract = True

    def retry(self, **options: Any) -> Any:
        """Retry without telling the result backend."""
        super().retry(**{**options, "throw": False})
        raise Ignore()


class BrokenHook(Task):
    """A task whose `on_retry` hook fails."""

    abstract = True

    def on_retry(self, *_: Any, **__: Any) -> None:
        """Fail."""
        raise ConnectionError("the hook is broken")


def register(app: Celery, history: Path) -> None:
    """Define the tasks that retry on `app`."""
    recorder = Recorder(history)
    keyed = {"shared": False, "key": "key", "bind": True}

    def tell(task: Task) -> dict[str, Any]:
        request = task.request
        return {
            "retries": request.retries,
            "eta": request.eta,
            "priority": (request.delivery_info or {}).get("priority"),
            "headers": request.headers or {},
            "stamps": request.stamps or {},
            "attempt": request.sticky.attempt if request.sticky is not None else None,
        }

    @app.task(name="flaky", max_retries=3, **keyed)
    def flaky(self: Task, key: str, n: int, times: int = 1, options: dict[str, Any] | None = None) -> dict[str, Any]:
        """Retry `times` times with these options."""
        with recorded(recorder, self, key, n):
            if self.request.retries < times:
                raise self.retry(**{"countdown": 0, **(options or {})})
        return tell(self)

    @app.task(name="auto", autoretry_for=(LookupError,), retry_backoff=1, retry_jitter=False, max_retries=1, **keyed)
    def auto(self: Task, key: str, n: int, times: int = 1) -> dict[str, Any]:
        """Fail `times` times; Celery retries by itself, but only once."""
        with recorded(recorder, self, key, n):
            if self.request.retries < times:
                raise LookupError(f"{key} {n}")
        return tell(self)

    def retry_once(self: Task, key: str, n: int) -> dict[str, Any]:
        """Retry once, with the class's own `retry`."""
        with recorded(recorder, self, key, n):
            if not self.request.retries:
                raise self.retry()
        return tell(self)

    for base in (OwnRetry, Silent, BrokenHook):
        app.task(name=base.__name__, base=base, default_retry_delay=0, **keyed)(retry_once)

    @app.task(name="swallow", **keyed)
    def swallow(self: Task, key: str, n: int, how: str) -> None:
        """Call `retry` once, and continue instead of ending the run."""
        with recorded(recorder, self, key, n):
            if self.request.retries or self.request.sticky.attempt > 1:
                return
            with suppress(Retry):
                self.retry(countdown=0, throw=how != "unthrown")
            if how == "fails":
                raise ValueError(n)
            if how == "rejected":
                raise Reject(requeue=True)

    @app.task(name="flaky-plain", shared=False, bind=True)
    def flaky_plain(self: Task, name: str, n: int) -> dict[str, Any]:
        """Retry once; this task is unkeyed."""
        with recorded(recorder, self, name, n):
            if not self.request.retries:
                raise self.retry(countdown=0)
        return tell(self)

    @app.task(name="collect", shared=False)
    def collect(results: Any) -> Any:
        """Return the results of the tasks before it."""
        return results
