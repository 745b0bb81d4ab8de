"""How many tasks the pool could begin now: what is handed out beyond that is reserved, and holds its slot, for nothing.

Tasks without a key are in the same pool, for as long as they like. A pool of processes needs none of this: what Celery
has for it waits in a semaphore, where it is not reserved yet.
"""

from __future__ import annotations

import sys
from typing import Any

from celery.worker import state as worker_state


def places(pool: Any) -> int:
    """Return how many tasks the pool runs at a time, now."""
    if pool.is_green:
        return int(pool._pool.size)  # up to Celery 5.6 gevent's `num_processes` are the greenlets that run
    return int(pool.num_processes or 0)


def grows(consumer: Any) -> bool:
    """Whether the pool is empty by design: Celery's autoscaler makes it grow as soon as there is work."""
    return not places(consumer.pool) and bool(getattr(consumer.controller, "max_concurrency", None))


def free_places(pool: Any, room: int) -> int:
    """Return how many tasks may be handed to the pool now, which runs `room` at a time."""
    if pool.is_green:
        return _free_greenlets(pool._pool)
    if (executor := getattr(pool, "executor", None)) is not None:
        return _free_threads(room, executor)
    return sys.maxsize


def _free_greenlets(greenlets: Any) -> int:
    # gevent's Pool or eventlet's GreenPool, whose counters Celery itself keeps when the pool grows or shrinks.
    free: int = (greenlets._semaphore if hasattr(greenlets, "_semaphore") else greenlets.sem).counter
    return max(0, free)


def _free_threads(threads: int, executor: Any) -> int:
    queued: int = executor._work_queue.qsize()
    # Never none while nobody waits there: should Celery forget to count a task as ended, the pool must not stand still.
    free = threads - len(worker_state.active_requests) - queued
    return max(free, 0 if queued else 1)
