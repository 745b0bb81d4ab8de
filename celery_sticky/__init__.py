"""Sticky key routing for Celery: one worker owns each key; its tasks run one at a time and in order."""

from importlib.metadata import version

from celery_sticky.app import Sticky
from celery_sticky.errors import (
    AssignmentFailed,
    BrokerUnavailable,
    DispatchTimeout,
    InvalidJob,
    InvalidKey,
    InvalidPayload,
    InvalidSettings,
    InvalidTask,
    JobConflict,
    JobExists,
    JobFailed,
    KeyspaceClosed,
    KeyspaceFull,
    KeyspaceMismatch,
    MissingDependency,
    NameTaken,
    NoSuchJob,
    NotAMember,
    NotPinned,
    NoWorker,
    PinnedElsewhere,
    RecordUnusable,
    RefusedToStart,
    RoutingConflict,
    ShutdownTimeout,
    StickyError,
    StoreRefused,
    StoreUnavailable,
)
from celery_sticky.jobs.client import JobInfo
from celery_sticky.jobs.handler import Job, JobHandler
from celery_sticky.jobs.schedule import Plan
from celery_sticky.keys import queue_for, slot_for
from celery_sticky.keyspace import Keyspace, Worker, jump

__version__ = version("celery-sticky")

__all__ = [
    "AssignmentFailed",
    "BrokerUnavailable",
    "DispatchTimeout",
    "InvalidJob",
    "InvalidKey",
    "InvalidPayload",
    "InvalidSettings",
    "InvalidTask",
    "Job",
    "JobConflict",
    "JobExists",
    "JobFailed",
    "JobHandler",
    "JobInfo",
    "Keyspace",
    "KeyspaceClosed",
    "KeyspaceFull",
    "KeyspaceMismatch",
    "MissingDependency",
    "NameTaken",
    "NoSuchJob",
    "NoWorker",
    "NotAMember",
    "NotPinned",
    "PinnedElsewhere",
    "Plan",
    "RecordUnusable",
    "RefusedToStart",
    "RoutingConflict",
    "ShutdownTimeout",
    "Sticky",
    "StickyError",
    "StoreRefused",
    "StoreUnavailable",
    "Worker",
    "__version__",
    "jump",
    "queue_for",
    "slot_for",
]
