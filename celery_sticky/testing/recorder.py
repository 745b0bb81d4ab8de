"""Records a history as it happens, with one write per event, so that a SIGKILL loses nothing that was written."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from celery_sticky.errors import StickyError
from celery_sticky.testing.history import Event, Kind, parse


class Recorder:
    """Appends events to a file that many processes of one host share.

    The file is opened for each event, so a recorder works across forks and threads, and holds nothing open.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def published(self, key: str, n: int, task_id: str, *, keyspace: str = "default") -> None:
        """Record that the broker accepted task `n` of `key`."""
        at, pid = time.monotonic_ns(), os.getpid()
        self.write(Event(kind=Kind.PUBLISHED, key=key, n=n, task_id=task_id, at=at, pid=pid, keyspace=keyspace))

    def sending(self, key: str, n: int, task_id: str, *, sender: int) -> Sending:
        """Record the sending of a task: PUBLISHED when the block is left, REFUSED or UNSURE if it raises."""
        return Sending(self, key, n, task_id, sender)

    def events(self) -> list[Event]:
        """Return the events written so far by every process."""
        return parse(self.path.read_text()) if self.path.exists() else []

    @contextmanager
    def run(
        self,
        key: str,
        n: int,
        task_id: str,
        *,
        worker: str,
        keyspace: str = "default",
        slot: int | None = None,
        epoch: int | None = None,
        attempt: int = 0,
    ) -> Iterator[None]:
        """Record START now, and END when the block is left; after an exception, the END is not `finished`."""
        start = Event(
            kind=Kind.START,
            key=key,
            n=n,
            task_id=task_id,
            at=time.monotonic_ns(),
            pid=os.getpid(),
            worker=worker,
            run=uuid.uuid4().hex[:16],
            keyspace=keyspace,
            slot=slot,
            epoch=epoch,
            attempt=attempt,
        )
        self.write(start)
        finished = False
        try:
            yield
            finished = True
        finally:
            self.write(replace(start, kind=Kind.END, at=time.monotonic_ns(), finished=finished))

    def write(self, event: Event) -> None:
        """Append one event; it is in the file when this returns.

        Raises:
            OSError: the file cannot be written.
        """
        record = event.record().encode()
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            if os.write(file, record) < len(record):
                raise OSError(f"the disk of {self.path} is full")
        finally:
            os.close(file)


@dataclass(slots=True)
class Sending:
    """A task on its way to the broker."""

    recorder: Recorder
    key: str
    n: int
    task_id: str
    sender: int
    sent: int = 0

    def __enter__(self) -> Self:
        self.sent = time.monotonic_ns()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        refused = isinstance(error, StickyError)  # broker drivers never raise one to a sender: nothing was sent
        event = Event(
            kind=Kind.PUBLISHED if error is None else Kind.REFUSED if refused else Kind.UNSURE,
            key=self.key,
            n=self.n,
            task_id=self.task_id,
            at=time.monotonic_ns(),
            pid=os.getpid(),
            sender=self.sender,
            sent=self.sent,
        )
        self.recorder.write(event)
