"""A server in this process and its clients, without verbs: the base of the memory drivers.

Tests can make it fail like a real server.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Condition
from typing import Generic, TypeVar
from uuid import uuid4

from celery_sticky.errors import StoreUnavailable

Records = TypeVar("Records")
"""Everything that a server stores."""
Heard = TypeVar("Heard")
"""A signal."""


@dataclass(slots=True, eq=False)
class Subscription(Generic[Heard]):
    """One client's subscription: the signals it has not yet taken."""

    keyspace: str
    on_signal: Callable[[], None]
    """Called when there is something to take, or the subscription broke; must not block."""
    signals: list[Heard] = field(default_factory=list)
    broken: bool = False


class Server(Generic[Records, Heard]):
    """The state that the clients of one process share. The public methods inject faults."""

    def __init__(self, empty: Callable[[], Records]) -> None:
        self.clock: Callable[[], float] = time.time
        """Returns seconds since the Unix epoch."""
        self.changed = Condition()
        self.records = empty()
        self.run_id = uuid4().hex
        self.running = True
        self.subscriptions: set[Subscription[Heard]] = set()
        self._empty = empty

    def stop(self) -> None:
        """Stop answering, and drop all subscriptions."""
        with self.changed:
            self.running = False
            self.cut()

    def restart(self) -> None:
        """Restart under a new run id, with the records kept."""
        with self.changed:
            self.stop()
            self.run_id = uuid4().hex
            self.running = True

    def wipe(self) -> None:
        """Lose the records, as by FLUSHALL; the run id stays."""
        self.roll_back(self._empty())

    def snapshot(self) -> Records:
        """Return a copy of the records for `roll_back`."""
        with self.changed:
            return copy.deepcopy(self.records)

    def roll_back(self, to: Records) -> None:
        """Restore older records; the run id stays."""
        with self.changed:
            self.records = copy.deepcopy(to)

    def cut(self) -> None:
        """Break every subscription."""
        with self.changed:
            for subscription in self.subscriptions:
                subscription.broken = True
                subscription.on_signal()
            self.subscriptions.clear()
            self.changed.notify_all()

    def signal(self, keyspace: str, signal: Heard, *, sender: Subscription[Heard] | None = None) -> None:
        """Signal all subscribers except the sender."""
        with self.changed:
            for subscription in self.subscriptions:
                if subscription.keyspace == keyspace and subscription is not sender:
                    subscription.signals.append(signal)
                    subscription.on_signal()
            self.changed.notify_all()


class Client(Generic[Records, Heard]):
    """A client of one keyspace: it accesses the records and receives signals. A driver adds the verbs."""

    def __init__(self, server: Server[Records, Heard], keyspace: str) -> None:
        self._server = server
        self._keyspace = keyspace
        self._subscription: Subscription[Heard] | None = None
        self._woken = False
        self.on_signal: Callable[[], None] = lambda: None
        """Called when `has_signals` becomes true."""

    @property
    def has_signals(self) -> bool:
        """Whether a `watch` would not wait: there are signals, or the subscription broke."""
        subscription = self._subscription
        return subscription is not None and (subscription.broken or bool(subscription.signals))

    def watch(self, timeout: float) -> Sequence[Heard]:
        """See the store's `watch`."""
        with self._server.changed:
            self._records()
            subscription = self._subscription
            if subscription is None:
                self._subscribe()
                return ()
            self._server.changed.wait_for(
                lambda: self._woken or subscription.broken or bool(subscription.signals), timeout
            )
            self._woken = False
            if subscription.broken:
                self._subscription = None
                raise StoreUnavailable("the subscription broke")
            signals = tuple(subscription.signals)
            subscription.signals.clear()
            return signals

    def wake(self) -> None:
        """See the store's `wake`."""
        with self._server.changed:
            self._woken = True
            self._server.changed.notify_all()

    def close(self) -> None:
        """See the store's `close`."""
        with self._server.changed:
            if self._subscription is not None:
                self._server.subscriptions.discard(self._subscription)
            self._subscription = None

    def _records(self) -> Records:
        if not self._server.running:
            raise StoreUnavailable("the memory server is stopped")
        return self._server.records

    def _subscribe(self) -> None:
        self._subscription = Subscription(self._keyspace, self.on_signal)
        self._server.subscriptions.add(self._subscription)
        self._woken = False
