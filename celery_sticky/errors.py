"""Every error of the package, grouped by what the caller can do about it.

The first line of a class docstring is the default message.
"""

from __future__ import annotations


class StickyError(Exception):
    """celery-sticky could not complete the request."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip().splitlines()[0])


# -- Fix the call ------------------------------------------------------------------------------


class InvalidKey(StickyError, ValueError):
    """The task's key is missing, empty, too long or of a type that is not accepted as a key."""


class RoutingConflict(StickyError, ValueError):
    """A keyed task goes to the queue of its slot: remove the other queue, exchange or routing key."""


class OutboxRefused(StickyError, ValueError):
    """Tasks cannot be sent in the transaction of this connection, or not like this."""


class NotPinned(StickyError, LookupError):
    """No live worker has pinned the key, and its keyspace refuses unpinned keys (`unpinned="refuse"`)."""


# -- Fix the code or the settings --------------------------------------------------------------


class InvalidTask(StickyError, TypeError):
    """The `key` of a task is neither the name of one of its arguments nor a function of them."""


class InvalidJob(StickyError, TypeError):
    """A job's name or handler is invalid, or another job has the same name."""


class BlockingCall(StickyError, RuntimeError):
    """A blocking call in an event loop, or an async one outside of it; the message names the right one."""


class InvalidSettings(StickyError, ValueError):
    """A `sticky_*` setting is unknown or has an invalid value."""


class AssignmentFailed(StickyError, RuntimeError):
    """The `assign` function of a keyspace raised, or did not return one of the workers it was given."""


class RunAbandoned(StickyError, RuntimeError):
    """A task with `delivery="at_most_once"` was claimed and never finished: it may have run, and is not run again.

    List such tasks with `celery sticky abandoned list`, and decide: `retry` runs one again, `drop` deletes it.
    """


class MissingDependency(StickyError, ImportError):
    """A client library is not installed."""


# -- Jobs: the outcome of a request ------------------------------------------------------------


class InvalidPayload(StickyError, ValueError):
    """A job's payload or checkpoint is not JSON, or too long."""


class JobExists(StickyError):
    """A job with this name and key is already dispatched."""


class JobConflict(StickyError, ValueError):
    """The id of the dispatch was already used for another job or payload."""


class JobFailed(StickyError):
    """The job failed to start and was removed."""


class NoSuchJob(StickyError, LookupError):
    """There is no job with this name and key."""


class KeyspaceFull(StickyError):
    """Too many jobs wait to start, or too many notifications wait for their job: try again later."""


class InboxFull(KeyspaceFull):
    """Too many notifications wait for one job."""

    def __init__(self, name: str, key: str, limit: int) -> None:
        super().__init__(
            f"{limit} notifications wait for job {name!r} of key {key!r}: it handles them too slowly, or not at all. "
            "See `celery sticky jobs get`, and try again later; or raise the limit: max_notes of the job, or "
            "sticky_job_max_notes"
        )


class KeyspaceClosed(StickyError):
    """The jobs of this keyspace were shut down and have not been reopened."""


class DispatchTimeout(StickyError, TimeoutError):
    """The job did not start in time; it may still start."""

    def __init__(self, name: str, key: str, job_id: str, timeout: float) -> None:
        super().__init__(
            f"job {name!r} of key {key!r} did not start within {timeout:g} s; it may still start. Check that a worker "
            f"with this job is running. Repeat the dispatch with id={job_id!r} to get its outcome, or stop the job"
        )
        self.id = job_id


class ShutdownTimeout(StickyError, TimeoutError):
    """The jobs did not stop in time."""


class StopFailed(StickyError):
    """The job has stopped, but its stop raised an error."""


# -- The worker refuses to start ---------------------------------------------------------------


class RefusedToStart(StickyError, RuntimeError):
    """This worker cannot take part in the keyspace."""


class NameTaken(RefusedToStart):
    """Another live worker has the same node name: give each worker its own with `-n`."""


class KeyspaceMismatch(RefusedToStart):
    """The keyspace has another number of slots, hash or placement than this process is configured with."""


# -- Try again ---------------------------------------------------------------------------------


class StoreUnavailable(StickyError, ConnectionError):
    """The store did not answer: the last write may or may not have taken effect."""


class StoreRefused(StoreUnavailable):
    """The store answered and refused the request."""


class RecordUnusable(StoreRefused):
    """A key in the store holds a value that celery-sticky did not write: move that key away."""


class BrokerUnavailable(StickyError, ConnectionError):
    """The broker did not answer: the last request may or may not have taken effect."""


class NoWorker(StickyError):
    """No live worker takes part in the keyspace, so the key cannot be assigned."""


# -- Another worker has it ---------------------------------------------------------------------


class Fenced(StickyError):
    """The slot's queue or its jobs are fenced for another tenure."""

    def __init__(self, epoch: int, incarnation: str) -> None:
        super().__init__(f"the slot is fenced at epoch {epoch}" + (f" for {incarnation}" if incarnation else ""))
        self.epoch = epoch
        self.incarnation = incarnation


class SaveRefused(StickyError):
    """The checkpoint was not stored: this run of the job is over, and is about to be stopped or killed."""


class SlotBroken(StickyError, RuntimeError):
    """A record of one slot queue is unusable: it has the wrong type, or the server refuses a command on it."""


class SlotHeld(StickyError):
    """Another connection still holds the slot's queue: its worker has not given it back yet."""


class PinnedElsewhere(StickyError):
    """Another live worker has pinned the key."""


class NotAMember(StickyError, RuntimeError):
    """This process does not belong to a worker that takes part in the keyspace now."""


# -- Repair the store, or upgrade --------------------------------------------------------------


class DocumentDamaged(StickyError, ValueError):
    """The ownership document in the store cannot be read."""


class DocumentTooNew(StickyError, ValueError):
    """A newer release wrote the ownership document: upgrade celery-sticky here, and do not overwrite the document."""


class SchemaTooOld(StickyError, ValueError):
    """The tables of this database have to be migrated, and this process may not do that."""


class SchemaTooNew(StickyError, ValueError):
    """A newer release has migrated the tables of this database: upgrade celery-sticky here."""
