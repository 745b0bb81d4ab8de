"""One task for each way to define a task, and for each way in which a task can end."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from celery.utils.log import get_task_logger
from celery.worker.request import Request

from celery_sticky import Sticky
from celery_sticky.testing.recorder import Recorder
from harness.tasks import recorded

logger = get_task_logger(__name__)


class OwnRequest(Request):
    """A user's own Request class."""

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        super().on_accepted(pid, time_accepted)
        logger.warning("own request accepted %s", self.id)

    def on_failure(self, *args: Any, **kwargs: Any) -> None:
        super().on_failure(*args, **kwargs)
        logger.warning("own request failed %s", self.id)


class OwnBase(Task):
    """A user's own base class. Its handlers write lines to the worker's log."""

    abstract = True
    Request = "harness.kind_tasks:OwnRequest"

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        logger.warning("own before_start %s", task_id)

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        logger.warning("own on_success %s", task_id)

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        logger.warning("own on_failure %s %r", task_id, exc)


class ByClass(Task):
    """A task that is a class."""

    name = "by-class"
    key = "key"

    def run(self, key: str, n: int = 0) -> dict[str, Any]:
        return told(self)


def told(task: Task) -> dict[str, Any]:
    """Return what the running task can see of its own request."""
    sticky = task.request.sticky
    return {
        "sticky": dict(sticky) if sticky is not None else None,
        "epoch": sticky.epoch if sticky is not None else None,
        "pid": os.getpid(),
        "id": task.request.id,
        "headers": task.request.headers or {},
        "eta": task.request.eta,
        "redelivered": (task.request.delivery_info or {}).get("redelivered"),
    }


def register(app: Celery, history: Path) -> None:
    """Define the tasks on `app`."""
    recorder = Recorder(history)
    keyed: dict[str, Any] = {"shared": False, "key": "key", "bind": True}
    app.register_task(ByClass())
    _register_kinds(app, keyed, recorder)
    _register_ends(app, keyed, recorder)
    _register_limits(app, keyed, recorder)


def _register_kinds(app: Celery, keyed: dict[str, Any], recorder: Recorder) -> None:
    @app.task(name="context", **keyed)
    def context(self: Task, key: str = "by-default", n: int = 0) -> dict[str, Any]:
        with recorded(recorder, self, key, n):
            return told(self)

    @app.task(name="order", shared=False, bind=True, keyspace="orders", key=lambda order: order["customer"])
    def order(self: Task, order: dict[str, Any]) -> dict[str, Any]:
        return told(self)

    @app.task(name="no-key", shared=False, bind=True)
    def no_key(self: Task, *args: Any) -> dict[str, Any]:
        return told(self)

    @app.task(name="own-base", base=OwnBase, **keyed)
    def own_base(self: Task, key: str, fails: bool = False, seconds: float = 0.0) -> dict[str, Any]:
        time.sleep(seconds)
        if fails:
            raise ValueError(key)
        return told(self)

    @app.task(name="affine", serial=False, **keyed)
    def affine(self: Task, key: str, n: int, seconds: float = 0.0) -> dict[str, Any]:
        with recorded(recorder, self, key, n):
            time.sleep(seconds)
        return told(self)

    @app.task(name="early", acks_late=False, **keyed)
    def early(self: Task, key: str, n: int) -> dict[str, Any]:
        with recorded(recorder, self, key, n):
            if self.request.sticky.attempt == 1:
                os._exit(5)
        return told(self)

    @app.task(name="owns", **keyed)
    def owns(self: Task, key: str, others: list[str]) -> list[bool]:
        """Return for each key, its own first, whether `owns` is true in this process."""
        return [Sticky.of(app).owns(one) for one in (key, *others)]

    @app.task(name="relay", shared=False)
    def relay(name: str, args: list[Any], kwargs: dict[str, Any] | None = None) -> str:
        """Send another task from this worker."""
        return str(app.tasks[name].apply_async(args, kwargs).id)

    @app.task(name="add", shared=False, key="key")
    def add(x: int, y: int = 0, *, key: str) -> int:
        return x + y

    @app.task(name="total", shared=False, key="key")
    def total(numbers: list[int], key: str) -> int:
        return sum(numbers)

    @app.task(name="replaced", **keyed)
    def replaced(self: Task, key: str, by: str) -> Any:
        raise self.replace(add.s(20, 3, key=by))

    @app.task(name="extends", **keyed)
    def extends(self: Task, key: str) -> int:
        self.add_to_chord(add.s(100, key=f"{key}-more"))
        return 1

    @app.task(name="errback", **keyed)
    def errback(self: Task, failed: str, key: str) -> None:
        """Log the id of the failed task."""
        with recorded(recorder, self, key, 0):
            logger.warning("errback of %s", failed)


def _register_ends(app: Celery, keyed: dict[str, Any], recorder: Recorder) -> None:
    @app.task(name="fails", **keyed)
    def fails(self: Task, key: str, n: int = 0) -> None:
        with recorded(recorder, self, key, n):
            raise ValueError(f"{key} {n}")

    @app.task(name="quiet", ignore_result=True, **keyed)
    def quiet(self: Task, key: str, n: int = 0) -> int:
        with recorded(recorder, self, key, n):
            return n

    @app.task(name="ignores", **keyed)
    def ignores(self: Task, key: str, n: int = 0) -> None:
        with recorded(recorder, self, key, n):
            raise Ignore()

    @app.task(name="rejects", **keyed)
    def rejects(self: Task, key: str, n: int, times: int, requeue: bool) -> int:
        """Reject the first `times` attempts."""
        with recorded(recorder, self, key, n):
            if self.request.sticky.attempt <= times:
                raise Reject("not wanted", requeue=requeue)
        return int(self.request.sticky.attempt)

    @app.task(name="exhausts", **keyed)
    def exhausts(self: Task, key: str, n: int = 0) -> None:
        with recorded(recorder, self, key, n):
            raise MemoryError

    @app.task(name="dies", **keyed)
    def dies(self: Task, key: str, n: int, times: int, how: str) -> int:
        """End the process in the first `times` attempts."""
        with recorded(recorder, self, key, n):
            if self.request.sticky.attempt <= times:
                if how == "exit":
                    os._exit(3)
                os.kill(os.getpid(), signal.SIGKILL)
        return int(self.request.sticky.attempt)


def _register_limits(app: Celery, keyed: dict[str, Any], recorder: Recorder) -> None:
    @app.task(name="soft", soft_time_limit=1, **keyed)
    def soft(self: Task, key: str, n: int) -> str:
        with recorded(recorder, self, key, n):
            try:
                time.sleep(30)  # until the soft time limit interrupts it
            except SoftTimeLimitExceeded:
                return "softly"
        return "never"

    @app.task(name="stubborn", **keyed)
    def stubborn(self: Task, key: str, n: int, seconds: float) -> None:
        """Ignore SIGTERM, and write a sign of life every 10 ms."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sign, draft = (recorder.path.parent / f"{key}.{end}" for end in ("alive", "draft"))
        with recorded(recorder, self, key, n):
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                time.sleep(0.01)
                draft.write_text(str(time.monotonic_ns()))
                draft.replace(sign)  # a rename: the file is complete even if the process is killed

    @app.task(name="limited", rate_limit="4/s", **keyed)
    def limited(self: Task, key: str, n: int) -> None:
        with recorded(recorder, self, key, n):
            pass

    @app.task(name="burn", **keyed)
    def burn(self: Task, key: str, n: int, seconds: float) -> int:
        """Compute without yielding to other greenlets."""
        with recorded(recorder, self, key, n):
            until, sum_ = time.monotonic() + seconds, 0
            while time.monotonic() < until:
                sum_ += 1
        return threading.active_count()
