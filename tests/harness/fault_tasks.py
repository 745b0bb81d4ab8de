"""Tasks that kill workers or are hard to interrupt, for tests of faults. Each records its runs in the history."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from celery import Celery, Task

from celery_sticky.testing.recorder import Recorder
from harness.tasks import recorded


def register(app: Celery, history: Path) -> None:
    """Define the tasks on `app`."""
    recorder = Recorder(history)

    @app.task(name="once", shared=False, key="key", bind=True, delivery="at_most_once", max_retries=3)
    def once(self: Task, key: str, n: int, seconds: float = 0.0, does: str = "") -> str:
        """Run for `seconds` at most once; `does`: then exit, retry once, or raise."""
        with recorded(recorder, self, key, n):
            time.sleep(seconds)
        if does == "exit":
            os._exit(1)
        if does == "retry" and not self.request.retries:
            raise self.retry(countdown=0)
        if does == "raise":
            raise ValueError("as asked")
        return f"{key} {n}"

    @app.task(name="deduplicated", shared=False, key="key", bind=True, dedupe=True)
    def deduplicated(self: Task, key: str, n: int, seconds: float = 0.0) -> None:
        """Run for `seconds`; not again once it has finished."""
        with recorded(recorder, self, key, n):
            time.sleep(seconds)

    @app.task(name="poison", shared=False, key="key", bind=True)
    def poison(self: Task, key: str, n: int) -> None:
        """Kill the whole worker."""
        with recorded(recorder, self, key, n):
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)  # until the signal arrives

    @app.task(name="holds_interpreter", shared=False, key="key", bind=True)
    def holds_interpreter(self: Task, key: str, n: int, seconds: int) -> None:
        """Sleep in C code that holds the GIL."""
        with recorded(recorder, self, key, n):
            ctypes.PyDLL(None).sleep(seconds)

    @app.task(name="computes", shared=False, key="key", bind=True)
    def computes(self: Task, key: str, n: int, seconds: float) -> None:
        """Compute without yielding to other greenlets."""
        with recorded(recorder, self, key, n):
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                pass

    @app.task(name="awaits", shared=False, key="key", bind=True)
    def awaits(self: Task, key: str, n: int, path: str) -> None:
        """Run until the file exists."""
        with recorded(recorder, self, key, n):
            while not Path(path).exists():
                time.sleep(0.02)  # until the next look

    @app.task(name="with_grandchild", shared=False, key="key", bind=True)
    def with_grandchild(self: Task, key: str, n: int, seconds: float, note: str) -> None:
        """Start a process that ignores SIGTERM and writes the time to `note` every 20 ms; kill it at the end."""
        with recorded(recorder, self, key, n):
            script = f"""
import os, signal, time, pathlib
signal.signal(signal.SIGTERM, signal.SIG_IGN)
note = pathlib.Path({note!r})
while True:
    note.with_suffix(".new").write_text(f"{{os.getpid()}} {{time.monotonic_ns()}}")
    note.with_suffix(".new").rename(note)
    time.sleep(0.02)
"""
            process = subprocess.Popen([sys.executable, "-c", script])  # outlives an interrupted task
            time.sleep(seconds)  # the run time that the test asks for
            process.kill()
            process.wait()
