"""The servers of a run: started here, or given by URL. Faults ask them which abilities they lack."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery_sticky.cli.verify.site import Mode
from celery_sticky.errors import MissingDependency
from celery_sticky.testing.guard import Guard
from celery_sticky.testing.servers import Kind, given, own_class
from celery_sticky.testing.servers.base import Ability, OwnServer, Server, WatchedServer
from celery_sticky.testing.servers.sentinel import WatchedPair
from celery_sticky.testing.servers.valkey import ValkeyServer, binary

if TYPE_CHECKING:
    from celery_sticky.cli.verify.options import RunOptions

Lacks = Mapping[Ability, str]
TOGETHER = "broker and store are one server here, and would go back together"
PREFIX = "sticky_verify_"


class Role(StrEnum):
    """What a server is for."""

    BROKER = "broker"
    STORE = "store"
    RESULTS = "results"


def lacks(options: RunOptions, role: Role) -> Lacks:
    """Return what the server in this role will lack, without starting any.

    Raises:
        InvalidSettings: the given server is of an unknown kind.
    """
    if role is Role.RESULTS:
        return _lacks_of_results()
    if url := _given(options, role):
        return given(url, role).lacks
    found: Lacks = own_class(options.server).lacks
    return {**found, Ability.ROLL_BACK: TOGETHER} if options.own_is_both else found


def _lacks_of_results() -> Lacks:
    """Return what the result backend will lack, which is a Valkey whatever the broker is."""
    try:
        binary()
    except MissingDependency as error:
        return dict.fromkeys(Ability, str(error))
    return ValkeyServer.lacks


def plays_on_pair(needs: Iterable[tuple[Role, Ability]]) -> bool:
    """Return whether a fault with these needs is possible on a broker that fails over."""
    return not any(role is Role.BROKER and ability in WatchedPair.lacks for role, ability in needs)


class Servers:
    """The running servers."""

    def __init__(self, options: RunOptions, guard: Guard, folder: Path, *, fails_over: bool, results: bool) -> None:
        self._own: dict[Role, OwnServer] = {}
        self.watched: WatchedServer | None = None
        """The broker, if it is a pair that fails over."""
        foreign = {role: given(url, role) for role in (Role.BROKER, Role.STORE) if (url := _named(options, role))}
        self.prefix = f"{PREFIX}{uuid.uuid4().hex[:8]}_" if foreign else ""
        """Prefix of every name on a server that others may use too."""
        for server in foreign.values():
            guard.clear(server.url, self.prefix)
        self.broker = foreign.get(Role.BROKER) or self._start_broker(options, guard, folder, fails_over)
        self.store = foreign.get(Role.STORE)
        """None: the broker is the store too."""
        if options.store is None and options.broker is None and options.mode is Mode.STICKY:
            self.store = self._own[Role.STORE] = own_class(options.server)(guard).start()
        if results:
            self._own[Role.RESULTS] = ValkeyServer(guard).start()

    def _start_broker(self, options: RunOptions, guard: Guard, folder: Path, fails_over: bool) -> Server:
        if fails_over:
            self.watched = WatchedPair(guard, folder)
            return self.watched
        if options.server is Kind.VALKEY:
            broker: OwnServer = ValkeyServer(guard, appendonly=bool(options.faults))
        else:
            broker = own_class(options.server)(guard)
        self._own[Role.BROKER] = broker
        return broker.start()

    def own(self, role: Role) -> OwnServer:
        """Return the server in this role, which was started here."""
        return self._own[role]

    def options(self) -> Mapping[str, Any]:
        """Return the transport options that go with the addresses of broker and store."""
        return {
            **(self.store.options(self.prefix) if self.store is not None else {}),
            **self.broker.options(self.prefix),
        }

    @property
    def results(self) -> OwnServer | None:
        """The result backend, if the run has one."""
        return self._own.get(Role.RESULTS)

    def teardown(self) -> None:
        """End the servers that were started here. May be called twice."""
        for server in self._own.values():
            server.teardown()
        if self.watched is not None:
            self.watched.teardown()


def _named(options: RunOptions, role: Role) -> str:
    return (options.broker if role is Role.BROKER else options.store) or ""


def _given(options: RunOptions, role: Role) -> str:
    """Return the URL of the given server in this role, or nothing if it will be started here."""
    return _named(options, role) or options.broker or ""
