"""`celery sticky dead`: every buried message."""

from __future__ import annotations

from celery_sticky.cli.buried import Kind, group

dead = group(
    Kind(
        command="dead",
        about="List, show, retry or drop buried messages.",
        one="a buried message",
        noun="buried message",
        retry="Put a buried message at the back of its key's queue and reset its attempts.",
        includes=lambda _: True,
    )
)
