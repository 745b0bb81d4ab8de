"""`celery sticky abandoned`: tasks that run at most once, may have run, and never finished."""

from __future__ import annotations

from celery_sticky.cli.buried import Kind, group

abandoned = group(
    Kind(
        command="abandoned",
        about="List, show, retry or drop tasks that run at most once, may have run, and never finished.",
        one="an abandoned task",
        noun="abandoned task",
        retry="Run an abandoned task again, although it may have run: put it at the back of its key's queue.",
        includes=lambda found: bool(found.info.get("abandoned")),
    )
)
