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


# -- Mend the code or the settings -------------------------------------------------------------


class InvalidTask(StickyError, TypeError):
    """The `key` of a task names no argument of it, or is not something a key can be taken with."""


class InvalidJob(StickyError, TypeError):
    """A job's name or handler cannot be used, or its name is another job's."""


class InvalidSettings(StickyError, ValueError):
    """A `sticky_*` setting is unknown or has a value that cannot be used."""


class MissingDependency(StickyError, ImportError):
    """A client library is not installed."""


# -- The worker refuses to start ---------------------------------------------------------------


class RefusedToStart(StickyError, RuntimeError):
    """This worker may not take part in the keyspace."""


class NameTaken(RefusedToStart):
    """Another live worker has the same node name: give each worker its own with `-n`."""


class KeyspaceMismatch(RefusedToStart):
    """The keyspace was made with another number of slots or another hash than this worker is configured with."""


# -- Try again ---------------------------------------------------------------------------------


class StoreUnavailable(StickyError, ConnectionError):
    """The store did not answer: whether the last write took place is not known."""


class BrokerUnavailable(StickyError, ConnectionError):
    """The broker did not answer: whether the last request took place is not known."""


# -- You lost ----------------------------------------------------------------------------------


class Fenced(StickyError):
    """The slot queue is fenced for another tenure."""

    def __init__(self, epoch: int, incarnation: str) -> None:
        super().__init__(f"the slot queue is fenced at epoch {epoch} for {incarnation or 'nobody'}")
        self.epoch = epoch
        self.incarnation = incarnation


# -- Mend the store, or upgrade -----------------------------------------------------------------


class DocumentDamaged(StickyError, ValueError):
    """The ownership document in the store cannot be read."""


class DocumentTooNew(StickyError, ValueError):
    """A newer release wrote the ownership document: upgrade this one, and do not write over it."""
