"""Local proof of death: a lock file that a worker's process, and whatever it forked, holds for as long as it lives.

The file names the incarnation. If its lock is free, that incarnation is dead, and a successor of the same name need not
wait for the lease. If it is held, a living process of this machine has the name. A missing file, or one that names
another incarnation, proves nothing: the other worker may run on another machine or in another container.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from pathlib import Path

from celery_sticky.errors import NameTaken


def runtime_dir(configured: str | None) -> Path:
    """Return the folder for lock files, made if need be, private to this user."""
    folder = Path(configured or Path(tempfile.gettempdir()) / f"celery-sticky-{os.getuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


class Claim:
    """The lock on one name in one keyspace of one store."""

    def __init__(self, folder: Path, store: str, keyspace: str, name: str) -> None:
        digest = hashlib.blake2b("\0".join((store, keyspace, name)).encode(), digest_size=12).hexdigest()
        self._path = folder / f"{digest}.lock"
        self._name = name
        self._file: int | None = None

    def acquire(self) -> str:
        """Take the lock; return the incarnation whose process is dead now, or an empty string.

        Raises:
            NameTaken: a living process of this machine holds it.
        """
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(file)
            text = f"another live worker on this machine is named {self._name!r}: give each its own with -n"
            raise NameTaken(text) from error
        self._file = file
        return os.pread(file, 200, 0).decode(errors="replace")

    def write(self, incarnation: str) -> None:
        """Name the incarnation that lives while the lock is held. Call it before others can see that incarnation."""
        if self._file is not None:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, incarnation.encode(), 0)

    def release(self) -> None:
        """Let the lock go."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
