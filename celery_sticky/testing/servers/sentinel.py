"""A primary, its replica and a Sentinel that watches them, on loopback, for failovers."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis

from celery_sticky.testing.guard import Guard
from celery_sticky.testing.servers.base import Ability, free_port
from celery_sticky.testing.servers.redis import RedisRecords
from celery_sticky.testing.servers.valkey import ValkeyServer, binary
from celery_sticky.testing.waiting import wait_until

MASTER = "main"
"""The Sentinel's name for the pair."""
DOWN_AFTER, FAILOVER_TIMEOUT = 500, 3000
"""Milliseconds."""


def sentinel_config(folder: Path, port: int, primary: int) -> Path:
    """Write the configuration of a Sentinel that watches the primary on port `primary`; return its path."""
    config = folder / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
        f"sentinel monitor {MASTER} 127.0.0.1 {primary} 1\n"
        f"sentinel down-after-milliseconds {MASTER} {DOWN_AFTER}\n"
        f"sentinel failover-timeout {MASTER} {FAILOVER_TIMEOUT}\n"
    )
    return config


class WatchedPair(RedisRecords):
    """Two servers; a Sentinel makes one of them the primary. Faults can only kill the primary."""

    lacks: Mapping[Ability, str] = dict.fromkeys(set(Ability) - {Ability.FAIL_OVER}, "it needs a fixed address")

    def __init__(self, guard: Guard, folder: Path) -> None:
        self._guard = guard
        self.primary = ValkeyServer(guard, appendonly=True).start()
        self.replica = ValkeyServer(guard, appendonly=True)
        self._follow()
        self._port = free_port()
        self._sentinel = self._start_sentinel(folder)

    @property
    def url(self) -> str:
        """The address in Celery's form; it needs `options`."""
        return f"sentinel://127.0.0.1:{self._port}"

    def options(self, prefix: str = "") -> Mapping[str, Any]:
        """Return the transport options that go with `url`; with them, every key starts with `prefix`."""
        return {**super().options(prefix), "master_name": MASTER}

    def caught_up(self) -> bool:
        """Return whether the replica has everything that the primary had at the time of the call."""
        with self.primary.client() as primary, self.replica.client() as replica:
            written = primary.info("replication")["master_repl_offset"]
            return bool(replica.info("replication").get("slave_repl_offset", -1) >= written)

    def kill_primary(self) -> None:
        """SIGKILL the primary and wait until the replica has taken its place."""
        self.primary.kill()
        with self.replica.client() as client:
            wait_until(lambda: client.info("replication")["role"] == "master", 30, "the replica is promoted")
        self.primary, self.replica = self.replica, self.primary

    def repair(self) -> None:
        """Start the killed server again as a replica of the other, and wait until it follows."""
        self._follow()
        with redis.Redis(port=self._port, decode_responses=True, socket_timeout=2) as client:
            wait_until(lambda: client.sentinel_masters()[MASTER]["port"] == self.primary.port, 20)

    def teardown(self) -> None:
        """End all processes and delete their files. May be called twice."""
        if self._sentinel.poll() is None:
            self._sentinel.kill()
            self._sentinel.wait(10)
            self._guard.forget(self._sentinel.pid)
        for server in (self.primary, self.replica):
            server.teardown()

    def _follow(self) -> None:
        self.primary.config.pop("replicaof", None)
        self.replica.config["replicaof"] = f"127.0.0.1 {self.primary.port}"
        self.replica.start()
        with self.replica.client() as client:
            wait_until(lambda: client.info("replication").get("master_link_status") == "up", 30, "the replica follows")

    def _start_sentinel(self, folder: Path) -> subprocess.Popen[bytes]:
        config = sentinel_config(folder, self._port, self.primary.port)
        with (folder / "sentinel.log").open("wb") as log:
            process = subprocess.Popen(
                [str(binary()), str(config), "--sentinel"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._guard.watch(process.pid)
        wait_until(self._knows_both, 20, "the Sentinel knows both servers")
        return process

    def _knows_both(self) -> bool:
        with redis.Redis(port=self._port, decode_responses=True, socket_timeout=2) as client:
            try:
                return bool(client.sentinel_masters()[MASTER]["num-slaves"] == 1)
            except redis.RedisError:
                return False
