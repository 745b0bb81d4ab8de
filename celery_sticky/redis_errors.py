"""What a Redis server means when it refuses a request, and what follows: one table for every client of ours.

A refusal that comes out of a script carries its code in front (Redis 7, Valkey) or in the middle of its text (Redis
6.2); redis-py takes the code off and makes it a class. All three are read here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Cure(StrEnum):
    """What a client does about a refusal."""

    RECONNECT = "reconnect"
    """The connection leads to a server that cannot do it: drop it, and ask Sentinel or the name server again."""
    WAIT = "wait"
    """The server will take it later, with or without an operator's help: try again with a pause."""
    TELL = "tell"
    """Only a change of the configuration helps: report it; try again on a new connection, with a pause."""
    KEY = "key"
    """One key is at fault, not the server: report the key; everything else goes on."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One kind of refusal."""

    code: str
    cure: Cure
    advice: str
    """What it means and what to do, as the end of a sentence in a log."""
    text: str = ""
    """A pattern of refusals that carry no code."""
    raised_as: str = ""
    """The class of redis-py, where that is not enough to be read from the text."""

    @property
    def drops(self) -> bool:
        """Whether the connection is to be given up."""
        return self.cure in (Cure.RECONNECT, Cure.TELL)


NO_CLUSTER = "Redis Cluster is not supported: use one server, or Sentinel"
NOT_ALLOWED = "allow the user what it needs: `celery sticky doctor` prints it"

REFUSALS = (
    Refusal("READONLY", Cure.RECONNECT, "it is a replica now; connecting again to find the primary",
            text="previous master is now a slave",
            raised_as="ReadOnlyError"),
    Refusal("MASTERDOWN", Cure.RECONNECT, "it is a replica without its primary; connecting again to find the primary",
            raised_as="MasterDownError"),
    Refusal("UNBLOCKED", Cure.RECONNECT, "its role has changed; connecting again to find the primary"),
    Refusal("LOADING", Cure.WAIT, "it still loads its data; waiting until it has", raised_as="BusyLoadingError"),
    Refusal("NOREPLICAS", Cure.WAIT,
            "fewer replicas follow it than its min-replicas-to-write asks for; bring them back, or lower that setting"),
    Refusal("MISCONF", Cure.WAIT,
            "it cannot save its data, so it takes no writes; look at its log and its disk"),
    Refusal("BUSY", Cure.WAIT, "another client's script holds it; SCRIPT KILL at the server ends that script"),
    Refusal("OOM", Cure.WAIT, "its memory is full; raise maxmemory, or let workers run what waits",
            raised_as="OutOfMemoryError"),
    Refusal("MAXCLIENTS", Cure.WAIT, "it takes no more connections; raise its maxclients, or find who holds them",
            text="max number of clients", raised_as="MaxClientsError"),
    Refusal("NOPERM", Cure.TELL, NOT_ALLOWED, raised_as="NoPermissionError",
            text="ACL failure in script|executing the script can't|[Nn]o permissions|can't access"),
    Refusal("NOAUTH", Cure.TELL, "give the URL a password"),
    Refusal("WRONGPASS", Cure.TELL, "correct user and password in the URL",
            text="invalid (username-password pair|password)", raised_as="AuthenticationError"),
    Refusal("CLUSTERDOWN", Cure.TELL, NO_CLUSTER, raised_as="ClusterDownError"),
    Refusal("MOVED", Cure.TELL, NO_CLUSTER, raised_as="MovedError"),
    Refusal("ASK", Cure.TELL, NO_CLUSTER, raised_as="AskError"),
    Refusal("TRYAGAIN", Cure.TELL, NO_CLUSTER, raised_as="TryAgainError"),
    Refusal("CROSSSLOT", Cure.TELL, NO_CLUSTER, raised_as="ClusterCrossSlotError"),
    Refusal("WRONGTYPE", Cure.KEY, "something else has written this key; move it away",
            text="value is not an integer"),
)  # fmt: skip

_BY_CLASS = {refusal.raised_as: refusal for refusal in REFUSALS if refusal.raised_as}
_BY_CODE = {refusal.code: refusal for refusal in REFUSALS}
_CODE = re.compile(rf"(?:^|\s-?)({'|'.join(_BY_CODE)})(?= )")
_BY_TEXT = [(re.compile(refusal.text), refusal) for refusal in REFUSALS if refusal.text]


def refusal_of(error: BaseException | str) -> Refusal | None:
    """Return what kind of refusal this is; None: the server has not answered, or with something unknown."""
    text = str(error)
    if found := _CODE.search(text):
        return _BY_CODE[found[1]]
    if "Authentication required" in text:
        return _BY_CODE["NOAUTH"]
    if (known := _BY_CLASS.get(type(error).__name__)) is not None:
        return known
    return next((refusal for pattern, refusal in _BY_TEXT if pattern.search(text)), None)


def describe(error: BaseException | str) -> str:
    """Return the error as one line that ends with what to do, where that is known."""
    refusal, text = refusal_of(error), str(error)
    if refusal is None:
        return text if isinstance(error, str) else f"{type(error).__name__}: {text}"
    said = text if refusal.code in text else f"{refusal.code} {text}"
    return f"{said.rstrip('.')}: {refusal.advice}"
