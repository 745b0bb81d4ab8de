"""The meaning of each refusal of a Redis server, and how our clients react: one table for all of them.

A refusal from inside a script has its code at the beginning (Redis 7, Valkey) or in the middle of its text (Redis
6.2). redis-py removes the code and raises a class instead. This module recognises all three forms.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Cure(StrEnum):
    """A client's reaction to a refusal."""

    RECONNECT = "reconnect"
    """This server cannot accept the request: drop the connection, and ask Sentinel or the name server again."""
    WAIT = "wait"
    """The server will accept the request later, possibly after an operator acts: try again after a pause."""
    TELL = "tell"
    """Only a configuration change helps: report it, and try again on a new connection after a pause."""
    KEY = "key"
    """One key is the cause, not the server: report the key; everything else continues."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One kind of refusal."""

    code: str
    cure: Cure
    advice: str
    """Meaning and remedy, as the end of a sentence in a log."""
    text: str = ""
    """A pattern that matches refusals without a code."""
    raised_as: str = ""
    """The redis-py class of this refusal, for errors whose text does not contain the code."""

    @property
    def drops(self) -> bool:
        """Whether the connection must be dropped."""
        return self.cure in (Cure.RECONNECT, Cure.TELL)


LISTS = ("sentinel",)
"""The URL schemes of which a list is allowed: all Sentinels lead to one primary."""
NO_CLUSTER = "Redis Cluster is not supported: use one server, or Sentinel"
NOT_ALLOWED = "grant the user the missing permissions: `celery sticky doctor` prints what it needs"

REFUSALS = (
    Refusal("READONLY", Cure.RECONNECT, "it is a replica now; connecting again to find the primary",
            text="previous master is now a slave",
            raised_as="ReadOnlyError"),
    Refusal("MASTERDOWN", Cure.RECONNECT, "it is a replica that lost its primary; connecting again to find the primary",
            raised_as="MasterDownError"),
    Refusal("UNBLOCKED", Cure.RECONNECT, "its role has changed; connecting again to find the primary"),
    Refusal("LOADING", Cure.WAIT, "it is still loading its data; waiting until it is done",
            raised_as="BusyLoadingError"),
    Refusal("NOREPLICAS", Cure.WAIT,
            "it has fewer replicas than its min-replicas-to-write requires; bring them back, or lower that setting"),
    Refusal("MISCONF", Cure.WAIT,
            "it cannot save its data, so it refuses writes; check its log and its disk"),
    Refusal("BUSY", Cure.WAIT, "another client's script blocks it; SCRIPT KILL at the server ends that script"),
    Refusal("OOM", Cure.WAIT, "its memory is full; raise maxmemory, or let workers run the waiting tasks",
            raised_as="OutOfMemoryError"),
    Refusal("MAXCLIENTS", Cure.WAIT, "it accepts no more connections; raise its maxclients, or find out who holds them",
            text="max number of clients", raised_as="MaxClientsError"),
    Refusal("NOPERM", Cure.TELL, NOT_ALLOWED, raised_as="NoPermissionError",
            text="ACL failure in script|executing the script can't|[Nn]o permissions|can't access"),
    Refusal("NOAUTH", Cure.TELL, "add a password to the URL"),
    Refusal("WRONGPASS", Cure.TELL, "correct the user and password in the URL",
            text="invalid (username-password pair|password)", raised_as="AuthenticationError"),
    Refusal("CLUSTERDOWN", Cure.TELL, NO_CLUSTER, raised_as="ClusterDownError"),
    Refusal("MOVED", Cure.TELL, NO_CLUSTER, raised_as="MovedError"),
    Refusal("ASK", Cure.TELL, NO_CLUSTER, raised_as="AskError"),
    Refusal("TRYAGAIN", Cure.TELL, NO_CLUSTER, raised_as="TryAgainError"),
    Refusal("CROSSSLOT", Cure.TELL, NO_CLUSTER, raised_as="ClusterCrossSlotError"),
    Refusal("WRONGTYPE", Cure.KEY, "another program has written this key; move it away",
            text="value is not an integer"),
)  # fmt: skip

_BY_CLASS = {refusal.raised_as: refusal for refusal in REFUSALS if refusal.raised_as}
_BY_CODE = {refusal.code: refusal for refusal in REFUSALS}
_CODE = re.compile(rf"(?:^|\s-?)({'|'.join(_BY_CODE)})(?= )")
_BY_TEXT = [(re.compile(refusal.text), refusal) for refusal in REFUSALS if refusal.text]


def refusal_of(error: BaseException | str) -> Refusal | None:
    """Return the kind of refusal, or None if the server did not answer or its answer is unknown."""
    text = str(error)
    if found := _CODE.search(text):
        return _BY_CODE[found[1]]
    if "Authentication required" in text:
        return _BY_CODE["NOAUTH"]
    if (known := _BY_CLASS.get(type(error).__name__)) is not None:
        return known
    return next((refusal for pattern, refusal in _BY_TEXT if pattern.search(text)), None)


def describe(error: BaseException | str) -> str:
    """Return the error as one line. It ends with the remedy, if there is a known one."""
    refusal, text = refusal_of(error), str(error)
    if refusal is None:
        return text if isinstance(error, str) else f"{type(error).__name__}: {text}"
    said = text if refusal.code in text else f"{refusal.code} {text}"
    return f"{said.rstrip('.')}: {refusal.advice}"
