"""Finds the processes that a command has left behind."""

from __future__ import annotations

import os
from pathlib import Path

from celery_sticky.testing import processes


def processes_of(folder: Path) -> list[int]:
    """Return the processes whose environment names this folder: all that the command started, directly or not."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                known = str(folder).encode() in (entry / "environ").read_bytes()
            except OSError:
                continue
            if known and processes.running(int(entry.name)):
                found.append(int(entry.name))
    return found
