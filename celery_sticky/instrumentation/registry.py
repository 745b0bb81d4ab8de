"""The registry of a worker: who hears of which facts. Without hooks it does nothing.

A reporting part asks `wants` first, and builds no fact that nobody wants. Add hooks before the worker starts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from celery_sticky.instrumentation.facts import Fact

logger = logging.getLogger("celery_sticky")

Kind = TypeVar("Kind", bound=Fact)


class Instruments:
    """The hooks of one worker, by the kind of fact. A hook runs in the thread that reports, and must not block."""

    def __init__(self) -> None:
        self._hooks: dict[type[Fact], tuple[Callable[[Any], None], ...]] = {}

    def add(self, kind: type[Kind], hook: Callable[[Kind], None]) -> None:
        """Call `hook` for each fact of this kind."""
        self._hooks[kind] = (*self._hooks.get(kind, ()), hook)

    def wants(self, *kinds: type[Fact]) -> bool:
        """Return whether somebody wants facts of any of these kinds."""
        return not self._hooks.keys().isdisjoint(kinds)

    def tell(self, fact: Fact) -> None:
        """Call the hooks for this fact. An error in one of them is logged, and harms nobody else."""
        for hook in self._hooks.get(type(fact), ()):
            try:
                hook(fact)
            except Exception:
                logger.exception("sticky: an instrumentation hook failed at %s", fact)
