"""Every error of the package on one page: a leaf for each thing the caller can do about it.

The first line of a docstring is the default message.
"""

from __future__ import annotations


class StickyError(Exception):
    """celery-sticky could not do what was asked."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip().splitlines()[0])


# -- Mend the call -----------------------------------------------------------------------------


class InvalidKey(StickyError, ValueError):
    """The task's key is missing, empty, too long or of a type that has no one text form."""


class RoutingConflict(StickyError, ValueError):
    """A keyed task goes to the queue of its slot: do not name another queue, exchange or routing key."""


class NotPinned(StickyError, LookupError):
    """No live worker has pinned the key, and its keyspace says `unpinned="refuse"`."""


# -- Mend the code or the settings -------------------------------------------------------------


class InvalidTask(StickyError, TypeError):
    """The `key` of a task names no argument of it, or is not something a key can be taken with."""


class InvalidJob(StickyError, TypeError):
    """A job's name or handler cannot be used, or its name is another job's."""


class InvalidSettings(StickyError, ValueError):
    """A `sticky_*` setting is unknown or has a value that cannot be used."""


class AssignmentFailed(StickyError, RuntimeError):
    """The `assign` function of a keyspace raised, or returned none of the workers it was given."""


class MissingDependency(StickyError, ImportError):
    """A client library is not installed."""


# -- Jobs: what became of a request ------------------------------------------------------------


class InvalidPayload(StickyError, ValueError):
    """A job's payload is no JSON, or too long."""


class JobExists(StickyError):
    """A job of this name and key is wanted already."""


class JobConflict(StickyError, ValueError):
    """The id of a dispatch was used for another job or payload."""


class JobFailed(StickyError):
    """The start of the job has failed: it is wanted no more."""


class NoSuchJob(StickyError, LookupError):
    """No job of this name and key is wanted."""


class KeyspaceFull(StickyError):
    """Too many jobs wait for their start, or too many notifications for their job: try later."""


class KeyspaceClosed(StickyError):
    """The jobs of this keyspace were shut down, and not reopened."""


class DispatchTimeout(StickyError, TimeoutError):
    """The job has not started within the time allowed; it may still do so."""

    def __init__(self, name: str, key: str, job_id: str, timeout: float) -> None:
        super().__init__(
            f"job {name!r} of key {key!r} has not started within {timeout:g} s and may still do so: "
            f"is a worker up that has it? Repeat the dispatch with id={job_id!r} to learn what came of it, or stop it"
        )
        self.id = job_id


class ShutdownTimeout(StickyError, TimeoutError):
    """Jobs have not stopped within the time allowed."""


# -- The worker refuses to start ---------------------------------------------------------------


class RefusedToStart(StickyError, RuntimeError):
    """This worker may not take part in the keyspace."""


class NameTaken(RefusedToStart):
    """Another live worker has the same node name: give each worker its own with `-n`."""


class KeyspaceMismatch(RefusedToStart):
    """The keyspace was made with other slots, hash or assignment than this process is configured with."""


# -- Try again ---------------------------------------------------------------------------------


class StoreUnavailable(StickyError, ConnectionError):
    """The store did not answer: whether the last write took place is not known."""


class StoreRefused(StoreUnavailable):
    """The store answered, and refused the request."""


class RecordUnusable(StoreRefused):
    """A key in the store holds what celery-sticky has not written: move it away."""


class BrokerUnavailable(StickyError, ConnectionError):
    """The broker did not answer: whether the last request took place is not known."""


class NoWorker(StickyError):
    """No live worker takes part in the keyspace: there is none to assign the key to."""


# -- You lost ----------------------------------------------------------------------------------


class Fenced(StickyError):
    """The slot's queue, or its jobs, are fenced for another tenure."""

    def __init__(self, epoch: int, incarnation: str) -> None:
        super().__init__(f"the slot is fenced at epoch {epoch}" + (f" for {incarnation}" if incarnation else ""))
        self.epoch = epoch
        self.incarnation = incarnation


class SlotBroken(StickyError, RuntimeError):
    """A record of one slot queue cannot be used: it has a wrong type, or the server refuses a command for it."""


class PinnedElsewhere(StickyError):
    """Another live worker has pinned the key."""


class NotAMember(StickyError, RuntimeError):
    """This process belongs to no worker that takes part in the keyspace now."""


# -- Mend the store, or upgrade -----------------------------------------------------------------


class DocumentDamaged(StickyError, ValueError):
    """The ownership document in the store cannot be read."""


class DocumentTooNew(StickyError, ValueError):
    """A newer release wrote the ownership document: upgrade this one, and do not write over it."""
