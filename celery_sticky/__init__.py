"""Sticky key routing for Celery: one worker owns each key; its tasks run one at a time and in order."""

from importlib.metadata import version

from kombu.transport import TRANSPORT_ALIASES

from celery_sticky.app import Sticky
from celery_sticky.errors import (
    AssignmentFailed,
    BlockingCall,
    BrokerUnavailable,
    DispatchTimeout,
    InboxFull,
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
    OutboxRefused,
    PinnedElsewhere,
    RecordUnusable,
    RefusedToStart,
    RoutingConflict,
    SaveRefused,
    ShutdownTimeout,
    StickyError,
    StopFailed,
    StoreRefused,
    StoreUnavailable,
)
from celery_sticky.jobs.dead_notes import DeadNotification
from celery_sticky.jobs.handler import Job, JobHandler, ThreadJob
from celery_sticky.jobs.inbox import Notification
from celery_sticky.jobs.info import BulkResult, JobInfo
from celery_sticky.jobs.schedule import Plan
from celery_sticky.keys import queue_for, slot_for
from celery_sticky.keyspace import Keyspace, Worker, jump
from celery_sticky.placement.pin import Pin

__version__ = version("celery-sticky")

# Kombu takes what stands before the `+` of a URL for the name of its transport.
TRANSPORT_ALIASES.setdefault("sticky", "celery_sticky.transport.sql.transport:Transport")

__all__ = [
    "AssignmentFailed",
    "BlockingCall",
    "BrokerUnavailable",
    "BulkResult",
    "DeadNotification",
    "DispatchTimeout",
    "InboxFull",
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
    "Notification",
    "OutboxRefused",
    "Pin",
    "PinnedElsewhere",
    "Plan",
    "RecordUnusable",
    "RefusedToStart",
    "RoutingConflict",
    "SaveRefused",
    "ShutdownTimeout",
    "Sticky",
    "StickyError",
    "StopFailed",
    "StoreRefused",
    "StoreUnavailable",
    "ThreadJob",
    "Worker",
    "__version__",
    "jump",
    "queue_for",
    "slot_for",
]
