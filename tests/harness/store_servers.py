"""The servers on which each kind of store is tested."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from celery_sticky.stores.in_process import Server
from celery_sticky.testing.servers.valkey import ValkeyServer
from celery_sticky.testing.store_contract import AnyStore, StoreServer
from harness.standing import clear


class InMemory(StoreServer[AnyStore]):
    """In-memory servers, one for each prefix."""

    def __init__(self, make: Callable[[], Any], connect: Callable[[Any, str], AnyStore]) -> None:
        self.servers: dict[str, Server[Any, Any]] = {}
        self.make, self.client = make, connect

    def connect(self, keyspace: str, prefix: str) -> AnyStore:
        if prefix not in self.servers:
            self.servers[prefix] = self.make()
        return self.client(self.servers[prefix], keyspace)

    def cut(self) -> None:
        for server in self.servers.values():
            server.cut()

    def stop(self) -> None:
        for server in self.servers.values():
            server.stop()

    def restart(self) -> None:
        for server in self.servers.values():
            server.restart()

    def set_clock(self, ahead: float) -> None:
        for server in self.servers.values():
            server.clock = lambda: time.time() + ahead

    def wipe(self) -> None:
        for server in self.servers.values():
            server.wipe()


class Standing(StoreServer[AnyStore]):
    """The server that this session shares; tests must not stop it."""

    def __init__(self, url: str, open_at: Callable[..., AnyStore]) -> None:
        self.url, self.open_at = url, open_at

    def connect(self, keyspace: str, prefix: str) -> AnyStore:
        return self.open_at(self.url, keyspace, prefix=prefix)

    def wipe(self) -> None:
        clear(self.url)


class Private(StoreServer[AnyStore]):
    """A private server, which the test may stop."""

    def __init__(self, server: ValkeyServer, open_at: Callable[..., AnyStore]) -> None:
        self.server, self.open_at = server, open_at

    def connect(self, keyspace: str, prefix: str) -> AnyStore:
        return self.open_at(self.server.url, keyspace, prefix=prefix)

    def cut(self) -> None:
        with self.server.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")

    def stop(self) -> None:
        self.server.kill()

    def restart(self) -> None:
        self.server.restart()

    def wipe(self) -> None:
        with self.server.client() as client:
            client.flushall()
