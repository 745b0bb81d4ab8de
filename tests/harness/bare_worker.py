"""Assembles a worker's context without a worker, for tests of what a start refuses."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

from celery.concurrency import get_implementation

from celery_sticky.execution.assembly import make_context


def assemble(app: Any, pool: str = "solo") -> None:
    """Assemble the context of a worker of this app and pool, as a worker does before it starts."""
    worker = SimpleNamespace(app=app, pool_cls=get_implementation(pool), hostname=f"{uuid.uuid4().hex}@here")
    make_context(worker, None)
