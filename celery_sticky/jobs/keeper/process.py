"""The worker's end of its job host: the process, what is said to it, and its death.

All in operating system threads and with the system's own calls, so that it works beside greenlets too.
"""

from __future__ import annotations

import _queue
import _socket
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from celery_sticky.jobs.wire import Message, decode, encode
from celery_sticky.platform.native import original, start_native_thread
from celery_sticky.platform.reaper import FAREWELL, hire, kill_group
from celery_sticky.platform.spawn import reap, spawn

logger = logging.getLogger("celery_sticky.jobs")

CONNECTION, LEASE = 3, 4
"""What the host finds at these descriptors: the socket to its worker, and the memory of `membership.lease`."""

_CHUNK = 1 << 18
_HANG_UP = b""


class HostProcess:
    """A job host, from its start to its death. Methods may be called in any thread.

    `on_message` is called with all that the host says, and in the end `on_exit` with its exit status (negative: the
    signal that ended it), each in a thread of the operating system.
    """

    def __init__(
        self,
        command: Sequence[str],
        lease: int,
        on_message: Callable[[Message], None],
        on_exit: Callable[[int], None],
    ) -> None:
        self._on_message, self._on_exit = on_message, on_exit
        self._guard, self._dead = _lock(), _lock()
        self._dead.acquire()
        self._is_there = True
        self._says: _queue.SimpleQueue[bytes] = _queue.SimpleQueue()
        self._connection, theirs = _socket.socketpair()
        self._undertaker, self._orders = hire()
        try:
            self.pid = spawn(command, {CONNECTION: theirs.fileno(), LEASE: lease})
        except OSError:
            self._connection.close()
            os.close(self._orders)  # told of nobody, the reaper ends
            reap(self._undertaker, _nothing)
            raise
        finally:
            theirs.close()
        self._tell_undertaker(str(self.pid))
        self._threads = [_start(self._read), _start(self._write)]
        start_native_thread(self._bury)

    def send(self, messages: Sequence[Message]) -> None:
        """Say this, without waiting, in the order of the calls. A host that is dead is not told."""
        if messages:
            self._says.put(b"".join(map(encode, messages)))

    def kill(self) -> None:
        """SIGKILL the host and what its jobs have started; nothing if it is dead."""
        with self._guard:
            if self._is_there:
                kill_group(self.pid)

    def close(self, timeout: float) -> None:
        """Hang up: the host ends in order if nothing runs in it. Kill it if that takes longer than `timeout` seconds.

        Waits as long, also where threads are greenlets: all of them wait.
        """
        self._says.put(_HANG_UP)
        if self._dead.acquire(timeout=timeout):
            self._dead.release()
        else:
            self.kill()

    # -- threads -------------------------------------------------------------------------------

    def _read(self) -> None:
        rest = b""
        with suppress(OSError):
            while data := self._connection.recv(_CHUNK):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._hear(line)

    def _hear(self, line: bytes) -> None:
        try:
            self._on_message(decode(line))
        except Exception:
            logger.exception("jobs: passed over what the job host says: %.500r", line)

    def _write(self) -> None:
        with suppress(OSError):  # it is dead, or has been killed because it did not listen
            while data := self._says.get():
                self._connection.sendall(data)
            self._connection.shutdown(_socket.SHUT_WR)

    def _bury(self) -> None:
        status = reap(self.pid, self._kill_rest)
        # A process that a job has forked off, out of the group, may still hold the host's end of the socket.
        with suppress(OSError):
            self._connection.shutdown(_socket.SHUT_RDWR)
        self._says.put(_HANG_UP)
        for ended in self._threads:
            ended.acquire()  # so all that it has said is heard
        self._connection.close()
        self._tell_undertaker(FAREWELL)
        os.close(self._orders)
        reap(self._undertaker, _nothing)
        self._dead.release()
        self._on_exit(status)

    def _kill_rest(self) -> None:
        with self._guard:
            if self._is_there:
                kill_group(self.pid)
            self._is_there = False

    def _tell_undertaker(self, word: str) -> None:
        try:
            original("os", "write")(self._orders, f"{word}\n".encode())
        except OSError:
            logger.warning("jobs: the reaper is gone: what jobs start outlives a killed worker")


def _lock() -> Any:
    return original("_thread", "allocate_lock")()


def _start(work: Callable[[], None]) -> Any:
    """Run this in a thread; return a lock that can be had when it has ended."""
    ended = _lock()
    ended.acquire()

    def run() -> None:
        try:
            work()
        finally:
            ended.release()

    start_native_thread(run)
    return ended


def _nothing() -> None:
    pass
