"""Local proof of death: a lock file that a worker's process and its forked children hold while they live.

The file names the incarnation. If its lock is free, that incarnation is dead, and a successor with the same name need
not wait for the lease. If the lock is held, a living process on this machine has the name. A missing file, or one that
names another incarnation, proves nothing: the other worker may run on another machine or in another container.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import tempfile
from pathlib import Path

from celery_sticky.errors import InvalidSettings, NameTaken

logger = logging.getLogger("celery_sticky")

WITHOUT_LOCK = (
    "Without it, a worker that was killed and restarts under its name waits for its old lease to end, and another "
    "live worker with the same name on this machine is noticed only by its heartbeats. Set sticky_runtime_dir to a "
    "writable local folder"
)


def runtime_dir(configured: str | None) -> Path | None:
    """Return the folder for lock files, created if necessary and private to this user; None if no folder is usable.

    Raises:
        InvalidSettings: the configured folder cannot be used.
    """
    try:
        folder = Path(configured or Path(tempfile.gettempdir()) / f"celery-sticky-{os.getuid()}")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"{folder} is not writable")
    except OSError as error:  # a read-only root file system, no temporary folder, a file in its place
        if configured:
            raise InvalidSettings(f"sticky_runtime_dir is {configured!r}, which cannot be used: {error}") from error
        logger.warning("sticky: there is no folder for lock files (%s). %s", error, WITHOUT_LOCK)
        return None
    return folder


class NameLock:
    """The lock on one worker name in one keyspace of one store."""

    def __init__(self, folder: Path | None, store: str, keyspace: str, name: str) -> None:
        digest = hashlib.blake2b("\0".join((store, keyspace, name)).encode(), digest_size=12).hexdigest()
        self._path = folder / f"{digest}.lock" if folder is not None else None
        self._name = name
        self._file: int | None = None

    def acquire(self) -> str:
        """Take the lock; return the incarnation whose process is now known to be dead, or an empty string.

        Raises:
            NameTaken: a living process of this machine holds it.
        """
        if self._path is None:
            return ""
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(file)
                raise
        except BlockingIOError as error:
            text = f"another live worker on this machine is named {self._name!r}: give each its own name with -n"
            raise NameTaken(text) from error
        except OSError as error:  # a network file system without locks, a disk without space
            logger.warning("sticky: the lock file %s cannot be used (%s). %s", self._path, error, WITHOUT_LOCK)
            return ""
        self._file = file
        return os.pread(file, 200, 0).decode(errors="replace")

    def write(self, incarnation: str) -> None:
        """Write the incarnation that lives while the lock is held. Call this before others can see that incarnation."""
        if self._file is None:
            return
        try:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, incarnation.encode(), 0)
        except OSError as error:  # the present content, or none, proves nothing about this incarnation
            logger.warning("sticky: the lock file %s cannot be written (%s). %s", self._path, error, WITHOUT_LOCK)

    def release(self) -> None:
        """Release the lock."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
