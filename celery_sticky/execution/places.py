"""How many tasks the pool could begin now. A task handed out beyond that is reserved and holds its slot for nothing.

Tasks without a key use the same pool, for any length of time. A pool of processes needs none of this: there Celery's
tasks wait in a semaphore, where they are not reserved yet.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from types import FrameType
from typing import Any

from celery.worker import state as worker_state


def places(pool: Any) -> int:
    """Return how many tasks the pool can run at a time now."""
    if pool.is_green:
        return int(pool._pool.size)  # up to Celery 5.6, gevent's `num_processes` is the number of running greenlets
    return int(pool.num_processes or 0)


def grows(consumer: Any) -> bool:
    """Return whether the pool is empty by design: Celery's autoscaler grows it as soon as there is work."""
    return not places(consumer.pool) and bool(getattr(consumer.controller, "max_concurrency", None))


def free_places(pool: Any, room: int) -> int:
    """Return how many tasks may be handed to the pool now, which runs `room` at a time."""
    if pool.is_green:
        return _free_greenlets(pool._pool)
    if (executor := getattr(pool, "executor", None)) is not None:
        return _free_threads(room, executor)
    return sys.maxsize


def run_one_at_a_time(pool: Any) -> None:
    """Make a solo pool run one task at a time also if two threads hand it tasks: Celery's loop and ours."""
    if not isinstance(pool.on_apply, partial):
        pool.on_apply = partial(_apply_alone, threading.RLock(), pool.on_apply)


def _apply_alone(lock: AbstractContextManager[Any], apply: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with lock:
        return apply(*args, **kwargs)


def waits_for_task(frame: FrameType) -> bool:
    """Return whether this frame waits for, or runs, the one task of a solo pool."""
    return frame.f_code is _apply_alone.__code__


def _free_greenlets(greenlets: Any) -> int:
    # gevent's Pool or eventlet's GreenPool: Celery adjusts these counters itself when the pool grows or shrinks.
    free: int = (greenlets._semaphore if hasattr(greenlets, "_semaphore") else greenlets.sem).counter
    return max(0, free)


def _free_threads(threads: int, executor: Any) -> int:
    queued: int = executor._work_queue.qsize()
    # At least one if no task waits there: if Celery misses the end of a task, the pool must not stall.
    free = threads - len(worker_state.active_requests) - queued
    return max(free, 0 if queued else 1)
