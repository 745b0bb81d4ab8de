"""The runs of jobs in their host, from the start to the end reported to the worker. They are led by an event loop."""

from __future__ import annotations

import inspect

from celery_sticky.jobs.handler import JobSpec
from celery_sticky.jobs.host.coroutine_run import CoroutineRun
from celery_sticky.jobs.host.handler_run import HandlerRun
from celery_sticky.jobs.host.surroundings import HostedRun, Surroundings
from celery_sticky.jobs.host.thread_run import ThreadRun
from celery_sticky.jobs.wire import Start


def begin(spec: JobSpec, start: Start, here: Surroundings) -> HostedRun:
    """Start a job in the running loop."""
    if inspect.isclass(spec.handler):
        return HandlerRun(spec, start, here)
    return (CoroutineRun if inspect.iscoroutinefunction(spec.handler) else ThreadRun)(spec, start, here)
