"""Sticky key routing for Celery: one worker owns each key; its tasks run one at a time and in order."""

from importlib.metadata import version

from celery_sticky.app import Sticky
from celery_sticky.errors import (
    BrokerUnavailable,
    InvalidKey,
    InvalidSettings,
    InvalidTask,
    KeyspaceMismatch,
    MissingDependency,
    NameTaken,
    RefusedToStart,
    RoutingConflict,
    StickyError,
    StoreUnavailable,
)
from celery_sticky.keys import queue_for, slot_for

__version__ = version("celery-sticky")

__all__ = [
    "BrokerUnavailable",
    "InvalidKey",
    "InvalidSettings",
    "InvalidTask",
    "KeyspaceMismatch",
    "MissingDependency",
    "NameTaken",
    "RefusedToStart",
    "RoutingConflict",
    "Sticky",
    "StickyError",
    "StoreUnavailable",
    "__version__",
    "queue_for",
    "slot_for",
]
