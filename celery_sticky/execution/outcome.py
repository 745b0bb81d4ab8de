"""Decides, in one place, how one attempt at a message ended, from what Celery reported.

"Celery reported nothing" has many causes, and only one of them is the death of a process. Others are a result backend
that is down, an event that cannot be sent, a pool that takes no tasks, or an unreadable message. They are told apart
here.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pickle import PicklingError

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import InvalidTaskError, Reject
from kombu.exceptions import ContentDisallowed, DecodeError
from msgspec import Struct

from celery_sticky.execution.body import SUSPECT, NotBegun

MOST_TRIES = 8
"""Consecutive failures after which a message is buried, if the message itself may be the cause."""
DEATHS = (WorkerLostError, Terminated, TimeLimitExceeded, MemoryError, SystemExit, KeyboardInterrupt)
"""Errors that mean the process of a task is gone, or was killed because of the task."""

UNDECODABLE = (RecursionError, PicklingError, ContentDisallowed, DecodeError, InvalidTaskError)
"""Errors that only the message can cause."""


class Ending(StrEnum):
    """How an attempt ended."""

    ENDED = "ended"
    """It succeeded, raised, was ignored, revoked or expired: its message is settled."""
    RETRIED = "retried"
    """The message of the next try replaces it."""
    REJECTED = "rejected"
    """The task rejected its message for good."""
    REQUEUED = "requeued"
    """The task returned its message to the queue."""
    DIED = "its process died"
    """The only outcome that counts as an attempt."""
    INTERRUPTED = "interrupted"
    """The worker ended it: the lease was over, or the worker is shutting down."""
    NOT_STARTED = "not started"
    """The pool dropped it before it began."""
    FAILED = "infrastructure failed"
    """Neither task nor message is the cause: it is tried again later."""
    UNREADABLE = "cannot be read"
    """No worker can build a task from it."""


class Said(Struct):
    """What Celery has reported of an attempt so far."""

    reserved: bool = False
    """Its start is reserved, so it may run."""
    acknowledged: bool = False
    rejected: bool = False
    requeue: bool = False
    retried: bool = False
    """A retry supplied the message of the next try."""
    began: bool = False
    """The pool accepted the task."""
    over: bool = False
    """The task's body has ended."""
    dropped: bool = False
    """The pool dropped it before any of it ran."""
    unreadable: bool = False
    error: BaseException | None = None
    """The error raised by the task, or by Celery's own code while handling it."""


def decide(said: Said, *, to_blame: Callable[[], bool], failures: int) -> Ending:
    """Return how the attempt ended.

    Args:
        said: what Celery reported.
        to_blame: returns whether a death is the task's own fault: the worker has not ended it.
        failures: how often in a row the infrastructure has failed this message before.
    """
    if said.unreadable:
        return Ending.UNREADABLE
    if said.retried:
        return Ending.RETRIED
    if said.acknowledged:
        return Ending.ENDED
    if said.rejected:
        return _rejected(said, to_blame)
    if said.dropped:
        return Ending.NOT_STARTED
    if isinstance(said.error, Reject) and said.reserved:
        return Ending.REQUEUED if said.error.requeue else Ending.REJECTED
    if said.over and not isinstance(said.error, DEATHS):
        return Ending.ENDED  # Celery's own code failed before the acknowledgement
    if isinstance(said.error, Exception) and not (said.reserved and isinstance(said.error, DEATHS)):
        return Ending.UNREADABLE if _at_fault(said.error, failures + 1) else Ending.FAILED
    return Ending.DIED if to_blame() else Ending.INTERRUPTED


def may_have_run(ending: Ending, said: Said) -> bool:
    """Return whether the task's body may have run although nobody says how it ended."""
    match ending:
        case Ending.DIED | Ending.INTERRUPTED:
            return said.reserved
        case Ending.FAILED:
            return said.began and not isinstance(said.error, NotBegun)
    return False


def _rejected(said: Said, to_blame: Callable[[], bool]) -> Ending:
    if not said.requeue:
        return Ending.REJECTED
    if not to_blame():
        return Ending.INTERRUPTED
    return Ending.DIED if isinstance(said.error, DEATHS) else Ending.REQUEUED


def _at_fault(error: Exception, tries: int) -> bool:
    """Return whether the message is the cause of an error in Celery's code: surely, or after `MOST_TRIES` tries."""
    suspect = error.suspect if isinstance(error, NotBegun) else isinstance(error, SUSPECT)
    return isinstance(error, UNDECODABLE) or (suspect and tries >= MOST_TRIES)
