"""A driver: what celery-sticky knows about one kind of server, and how to open its parts.

A `Driver` is data and functions. The functions import what they need when they are called, so that a process loads
the parts and the client libraries that it uses, and no others. A server may be a broker, a store, or both: a driver
leaves out the parts that its server cannot play.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from celery_sticky.findings import Finding
from celery_sticky.keys import SlotId
from celery_sticky.queues.base import SlotQueues
from celery_sticky.queues.guarantees import Guarantees
from celery_sticky.stores.base import Store
from celery_sticky.stores.jobs import JobStore
from celery_sticky.stores.placement import PlacementStore
from celery_sticky.stores.shared import SharedClient

Kept = TypeVar("Kept", bound=Store | JobStore | PlacementStore, covariant=True)
"""A kind of store."""


class OpenQueues(Protocol):
    """Opens the slot queues of a broker. Each call makes a client of its own, which sends nothing yet."""

    def __call__(self, connection: Any, *, prefix: str, socket_timeout: float) -> SlotQueues:
        """Return the slot queues at the broker of a Kombu connection.

        `prefix` is the first part of the names of all slot queues (`sticky_key_prefix`); an answer takes at most
        `socket_timeout` seconds.

        Raises:
            InvalidSettings: the connection's options cannot be used.
            MissingDependency: the client library is not installed.
        """


class OpenStore(Protocol[Kept]):
    """Opens one kind of store for one keyspace. Each call makes a client of its own, which sends nothing yet."""

    def __call__(self, connection: Any, keyspace: str, *, prefix: str, socket_timeout: float) -> Kept:
        """Return the store at the server of a Kombu connection; arguments and errors are those of `OpenQueues`."""


class OpenShared(Protocol):
    """Opens one client for the stores of many keyspaces. Each call makes another, which sends nothing yet."""

    def __call__(self, connection: Any, *, prefix: str, socket_timeout: float) -> SharedClient:
        """Return the client of the server of a Kombu connection; arguments and errors are those of `OpenQueues`."""


class Checkup(Protocol):
    """What `celery sticky doctor` and a starting worker ask of a server, over clients of their own.

    Every method raises `BrokerUnavailable` if the server does not answer.
    """

    def facts(self, connection: Any, *, socket_timeout: float) -> dict[str, Any]:
        """Return facts about the server as plain JSON, in the order in which `doctor` shows them."""

    def findings(self, what: str, facts: Mapping[str, Any], *, trust: float) -> Iterable[Finding]:
        """Return what these facts mean for a server in the role `what`; a worker trusts its lease for `trust` s."""

    def access_findings(self, what: str, connection: Any, *, prefix: str, socket_timeout: float) -> Iterable[Finding]:
        """Return what the user that the app logs in as may not do. This changes nothing at the server."""

    def queue_findings(self, connection: Any, *, prefix: str, socket_timeout: float) -> Iterable[Finding]:
        """Return findings about the layout of the slot queues at a broker."""

    def slots(self, connection: Any, *, prefix: str, socket_timeout: float) -> Collection[SlotId]:
        """Return the slot queues that exist at a broker, also in keyspaces that this app does not know."""

    def warning(self, connection: Any, *, socket_timeout: float) -> str | None:
        """Return what a worker's log must say of this server when the worker starts, or None."""


class Failures(Protocol):
    """What a driver knows about the exceptions of its client library."""

    def classes(self) -> tuple[type[Exception], ...]:
        """Return the base classes of the client library's exceptions; none if the library is not installed."""

    def describe(self, error: BaseException) -> str | None:
        """Return the error as one line that ends with its remedy; None if the driver does not know it."""

    def passes(self, error: BaseException) -> bool:
        """Return True if the server refuses for now, so that connecting again helps."""


def declare_nothing(queue: Any, prefix: str) -> Sequence[Any]:
    """Declare no queue: the broker creates it with its first message."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """What celery-sticky knows about one kind of server.

    A package registers its driver as an entry point of the group `celery_sticky.drivers`.
    """

    name: str
    """What the server is called in messages."""
    schemes: tuple[str, ...]
    """The schemes of its URLs, for messages."""
    transports: tuple[str, ...]
    """The Kombu transport classes that reach it, as `module:Class`. Classes derived from them are reached too."""
    lists: tuple[str, ...] = ()
    """The schemes of which a list of URLs leads to one server. Other lists are refused."""
    guarantees: Guarantees | None = None
    """What its slot queues guarantee; the same object as `SlotQueues.guarantees`."""
    queues: OpenQueues | None = None
    """Opens the slot queues. None: the server cannot be the broker of keyed tasks."""
    store: OpenStore[Store] | None = None
    """Opens the store of ownership. None: the server cannot keep ownership."""
    placement_store: OpenStore[PlacementStore] | None = None
    """Opens the store of claims and pins. None: no placed keyspaces."""
    job_store: OpenStore[JobStore] | None = None
    """Opens the store of jobs. None: no jobs."""
    shared: OpenShared | None = None
    """Opens one client for the stores of many keyspaces. None: a worker has a thread and a client for each keyspace."""
    declare: Callable[[Any, str], Sequence[Any]] = declare_nothing
    """Says what Kombu must declare before a message is published to a slot queue (a Kombu `Queue`, and the prefix).

    A sender calls this once for each queue, and has Kombu declare the answer before each message."""
    checkup: Callable[[], Checkup] | None = None
    """Returns what `doctor` and a starting worker ask of the server. None: they ask nothing."""
    failures: Failures | None = None
    """What is known about the client library's exceptions. None: nothing."""
    one_process: bool = False
    """Whether everything is in the memory of one process: nothing outlives it, and no other process can reach it."""
