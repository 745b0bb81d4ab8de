"""A SQLite file as a server: nothing to install, and no process."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import count
from pathlib import Path

from celery_sticky.queues.sql.names import queue_number
from celery_sticky.testing.guard import Guard
from celery_sticky.testing.servers.base import Ability
from celery_sticky.testing.servers.sql import TABLES, DatabaseRecords

NOW, FILE = "now", "tasks.db"
"""The names of the link to the present folder, and of the file in it."""
LOCK_TIMEOUT = 30.0
"""Seconds to wait for the file's lock, which workers hold in turn."""
NO_PROCESS = "a SQLite file has no server process"
NO_CONNECTION = "no network connection leads to a SQLite file"


class SqliteFile(DatabaseRecords):
    """A file in a folder of its own. There is no process: `start`, `stop` and `kill` do nothing.

    The folder is a symbolic link, so that the file can be replaced together with its log, in one step.
    """

    lacks: Mapping[Ability, str] = {
        Ability.RESTART: NO_PROCESS,
        Ability.FREEZE: NO_PROCESS,
        Ability.FAIL_OVER: NO_PROCESS,
        Ability.PROXY: NO_CONNECTION,
        Ability.DISCONNECT: NO_CONNECTION,
        Ability.FILL: "it needs a file system of its own that can be filled",
        Ability.READ_ONLY: "a SQLite file stays writable for those who have opened it",
        Ability.DEADLOCK: "SQLite has one writer at a time, so writers never wait in a circle",
    }

    def __init__(self, guard: Guard) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sticky-sqlite-"))
        guard.remove(self.folder)
        self._copy, self._replaced = self.folder / "copy", ExitStack()
        self._count = count()
        self._lead_to_new_folder()

    @property
    def url(self) -> str:
        """The address in Celery's form."""
        return f"sticky+sqlite:///{self.folder / NOW / FILE}"

    def start(self) -> SqliteFile:
        """Do nothing: the file is created when it is opened."""
        return self

    def freeze(self) -> None:
        """Do nothing."""

    def thaw(self) -> None:
        """Do nothing."""

    def kill(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def restart(self) -> None:
        """Do nothing."""

    def copy(self) -> None:
        """Keep a copy of the present data for `restore`."""
        self._copy.unlink(missing_ok=True)
        with self.link(LOCK_TIMEOUT) as link:
            link.run("VACUUM INTO %s", [str(self._copy)])

    def restore(self) -> None:
        """Bring the copy back: replace the file.

        The old file stays locked: a write that was about to begin there must fail, not be lost.
        """
        self._replaced.enter_context(self._inside("BEGIN IMMEDIATE"))
        self._lead_to_new_folder(self._copy)

    def _lead_to_new_folder(self, file: Path | None = None) -> None:
        """Let the path lead to a new folder, with a copy of this file in it."""
        folder, link = self.folder / f"data-{next(self._count)}", self.folder / "next"
        folder.mkdir()
        if file is not None:
            shutil.copyfile(file, folder / FILE)
        link.symlink_to(folder)
        link.replace(self.folder / NOW)

    def impaired(self, how: Ability, queues: Iterable[str] = ()) -> AbstractContextManager[bool]:
        """See `OwnServer.impaired`."""
        match how:
            case Ability.LOCK:
                return self._inside("BEGIN IMMEDIATE")
            case Ability.HOLD:
                return self._inside("BEGIN", "SELECT COUNT(*) FROM sqlite_master")
            case Ability.SPOIL:
                return self._spoiled(queues)
        raise ValueError(f"{how}: {self.lacks.get(how)}")

    @contextmanager
    def _spoiled(self, queues: Iterable[str]) -> Iterator[bool]:
        """Give the fence of the first slot queue that has one an epoch that is no number."""
        with self.link(LOCK_TIMEOUT) as link:
            fences = {row[0]: row[1] for row in link.rows(TABLES.fill("SELECT queue, epoch FROM {fence}"))}
            queue = next((number for name in queues if (number := queue_number(name)) in fences), None)
            change = TABLES.fill("UPDATE {fence} SET epoch = %s WHERE queue = %s")
            link.run(change, ["oops", queue])
            try:
                yield queue is not None
            finally:
                link.run(change, [fences.get(queue or 0), queue])

    @contextmanager
    def _inside(self, *statements: str) -> Iterator[bool]:
        """Hold a transaction open that begins with these statements."""
        with self.link(LOCK_TIMEOUT) as link:
            for statement in statements:
                link.rows(statement)
            yield True

    def teardown(self) -> None:
        """Delete the folder. May be called twice."""
        self._replaced.close()
        shutil.rmtree(self.folder, ignore_errors=True)
