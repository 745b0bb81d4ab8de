"""The worker's end of its job host: the process, the messages to it, and its death.

Everything runs in operating system threads and uses the system's own calls, so it also works beside greenlets.
"""

from __future__ import annotations

import _queue
import _socket
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from celery_sticky.jobs.marks import ReadMarks
from celery_sticky.jobs.wire import Message, decode, encode
from celery_sticky.platform.native import original, start_native_thread
from celery_sticky.platform.reaper import FAREWELL, hire, kill_group
from celery_sticky.platform.spawn import reap, spawn

logger = logging.getLogger("celery_sticky.jobs")

CONNECTION, LEASE, REPORT, MARKS = 3, 4, 5, 6
"""The host's descriptors: the socket to its worker, the memory of `membership.lease`, a socket
for its watchdog, because its event loop owns the first one, and the memory of `jobs.marks`.
"""

_CHUNK = 1 << 18
_HANG_UP = b""


class HostProcess:
    """A job host, from its start to its death. Any thread may call the methods.

    From `listen` on, `on_message` is called with each message from the host. `on_exit` is called last, with the exit
    status (negative: the signal that ended it). Each is called in an operating system thread.
    """

    def __init__(
        self,
        command: Sequence[str],
        lease: int,
        threads: int,
        on_message: Callable[[Message], None],
        on_exit: Callable[[int], None],
    ) -> None:
        """`threads` is the number of threads in which the host calls handlers."""
        self.executed = frozenset[int]()
        """The runs that the host executed when it ended: known when its exit is reported."""
        self._on_message, self._on_exit = on_message, on_exit
        self._guard, self._dead = _lock(), _lock()
        self._dead.acquire()
        self._is_there = True
        self._says: _queue.SimpleQueue[bytes] = _queue.SimpleQueue()
        self._connection, theirs = _socket.socketpair()
        self._reports, reports = _socket.socketpair()
        self._reaper, self._orders = hire()
        self._marks = ReadMarks(threads)
        theirs_at = {CONNECTION: theirs.fileno(), LEASE: lease, REPORT: reports.fileno()}
        try:
            self.pid = spawn(command, {**theirs_at, MARKS: self._marks.descriptor})
        except OSError:
            self._marks.close()
            self._connection.close()
            self._reports.close()
            os.close(self._orders)  # a reaper that was told of no process just ends
            reap(self._reaper, _nothing)
            raise
        finally:
            theirs.close()
            reports.close()
        self._tell_reaper(str(self.pid))
        self._threads: list[Any] = []

    def listen(self) -> None:
        """Begin to call `on_message` and `on_exit`, and to send."""
        self._threads = [
            _start(partial(self._read, self._connection)),
            _start(partial(self._read, self._reports)),
            _start(self._write),
        ]
        start_native_thread(self._bury)

    def send(self, messages: Sequence[Message]) -> None:
        """Send messages without waiting, in the order of the calls. Messages to a dead host are dropped."""
        if messages:
            self._says.put(b"".join(map(encode, messages)))

    def kill(self) -> None:
        """Send SIGKILL to the host and everything its jobs started; do nothing if it is dead."""
        with self._guard:
            if self._is_there:
                kill_group(self.pid)

    def close(self, timeout: float) -> None:
        """Hang up: the host ends if nothing runs in it. Kill it if that takes longer than `timeout` seconds.

        This call blocks meanwhile. If threads are greenlets, it blocks all of them.
        """
        self._says.put(_HANG_UP)
        if self._dead.acquire(timeout=timeout):
            self._dead.release()
        else:
            self.kill()

    # -- threads -------------------------------------------------------------------------------

    def _read(self, connection: _socket.socket) -> None:
        rest = b""
        with suppress(OSError):
            while data := connection.recv(_CHUNK):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._hear(line)

    def _hear(self, line: bytes) -> None:
        try:
            self._on_message(decode(line))
        except Exception:
            logger.exception("jobs: ignored an invalid message from the job host: %.500r", line)

    def _write(self) -> None:
        with suppress(OSError):  # the host is dead, or was killed because it did not read
            while data := self._says.get():
                self._connection.sendall(data)
            self._connection.shutdown(_socket.SHUT_WR)

    def _bury(self) -> None:
        status = reap(self.pid, self._kill_rest)
        # A process that a job forked and moved out of the group may still hold the host's ends of the sockets.
        for connection in (self._connection, self._reports):
            with suppress(OSError):
                connection.shutdown(_socket.SHUT_RDWR)
        self._says.put(_HANG_UP)
        for ended in self._threads:
            ended.acquire()  # so that every message it sent is handled
        self._connection.close()
        self._reports.close()
        self.executed = self._marks.executed()
        self._marks.close()
        self._tell_reaper(FAREWELL)
        os.close(self._orders)
        reap(self._reaper, _nothing)
        self._dead.release()
        self._on_exit(status)

    def _kill_rest(self) -> None:
        with self._guard:
            if self._is_there:
                kill_group(self.pid)
            self._is_there = False

    def _tell_reaper(self, word: str) -> None:
        try:
            original("os", "write")(self._orders, f"{word}\n".encode())
        except OSError:
            logger.warning("jobs: the reaper process is gone: processes of jobs survive a killed worker")


def _lock() -> Any:
    return original("_thread", "allocate_lock")()


def _start(work: Callable[[], None]) -> Any:
    """Run `work` in a thread; return a lock that can be acquired once it has ended."""
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
