"""How one attempt at a message ended, decided in one place from what Celery said of it.

"Celery said nothing" has many reasons, and only one of them is the death of a process: a result backend that is away,
an event that cannot be sent, a pool that takes no tasks, a message that nobody can read. They are told apart here.
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
"""Failures in a row after which a message is buried, where the error may be the message's own fault."""
DEATHS = (WorkerLostError, Terminated, TimeLimitExceeded, MemoryError, SystemExit, KeyboardInterrupt)
"""What tells that the process of a task is gone, or was killed for the task's sake."""

UNDECODABLE = (RecursionError, PicklingError, ContentDisallowed, DecodeError, InvalidTaskError)
"""Errors that only the message can be to blame for."""


class Ending(StrEnum):
    """How an attempt ended."""

    ENDED = "ended"
    """It succeeded, raised, was ignored, revoked or expired: its message is done with."""
    RETRIED = "retried"
    """The message of the next try takes its place."""
    REJECTED = "rejected"
    """The task refused its message for good."""
    REQUEUED = "requeued"
    """The task gave its message back."""
    DIED = "its process died"
    """The only outcome that counts as an attempt."""
    INTERRUPTED = "interrupted"
    """The worker ended it: the lease was over, or the worker shuts down."""
    NOT_STARTED = "not started"
    """The pool dropped it before it began."""
    FAILED = "infrastructure failed"
    """Neither task nor message is to blame: it is tried again later."""
    UNREADABLE = "cannot be read"
    """No worker can make a task of it."""


class Said(Struct):
    """What was said of an attempt so far."""

    reserved: bool = False
    """Its start is reserved: it may run."""
    acknowledged: bool = False
    rejected: bool = False
    requeue: bool = False
    retried: bool = False
    """A retry brought the message of the next try along."""
    began: bool = False
    """The pool accepted the task."""
    over: bool = False
    """The task's body came to its end."""
    dropped: bool = False
    """The pool has dropped it, and nothing of it ran."""
    unreadable: bool = False
    error: BaseException | None = None
    """What the task raised, or Celery's own code on its behalf."""


def decide(said: Said, *, to_blame: Callable[[], bool], failures: int) -> Ending:
    """Return how the attempt ended.

    Args:
        said: what Celery said.
        to_blame: tells whether a death is the task's own: the worker has not ended it.
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
        return Ending.ENDED  # Celery's own code failed on the way to the acknowledgement
    if isinstance(said.error, Exception) and not (said.reserved and isinstance(said.error, DEATHS)):
        return Ending.UNREADABLE if _at_fault(said.error, failures + 1) else Ending.FAILED
    return Ending.DIED if to_blame() else Ending.INTERRUPTED


def _rejected(said: Said, to_blame: Callable[[], bool]) -> Ending:
    if not said.requeue:
        return Ending.REJECTED
    if not to_blame():
        return Ending.INTERRUPTED
    return Ending.DIED if isinstance(said.error, DEATHS) else Ending.REQUEUED


def _at_fault(error: Exception, tries: int) -> bool:
    """Whether the message is to blame for an error of Celery's code: at once, or when that many tries have met it."""
    suspect = error.suspect if isinstance(error, NotBegun) else isinstance(error, SUSPECT)
    return isinstance(error, UNDECODABLE) or (suspect and tries >= MOST_TRIES)
