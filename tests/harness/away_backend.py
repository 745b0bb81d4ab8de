"""A result backend that is unreachable while the file `away` is in its folder. Its address is `away:///folder`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from celery._state import task_join_will_block
from celery.backends.filesystem import FilesystemBackend


class AwayBackend(FilesystemBackend):
    """Keeps results in files. While it is away, each call raises an error and adds a byte to the file `tries`."""

    def __init__(self, url: str = "", **options: Any) -> None:
        self._flag = Path(url.removeprefix("away://")) / "away"
        super().__init__(url=url.replace("away://", "file://"), **options)

    def _do_directory_test(self, key: Any) -> None:
        """Skip the check: the backend may be away when it is created."""

    def _reach(self) -> None:
        if self._flag.exists():
            with self._flag.with_name("tries").open("a") as tries:
                tries.write(".")
            raise ConnectionError("the result backend is away")

    def on_task_call(self, producer: Any, task_id: str) -> Any:
        """Connect when a worker sends a task, as the Redis backend does to listen for the result."""
        if "STICKY_APP_HISTORY" in os.environ and not task_join_will_block():
            self._reach()
        return {}

    def get(self, key: Any) -> Any:
        """Read a result."""
        self._reach()
        return super().get(key)

    def set(self, key: Any, value: Any) -> Any:
        """Write a result."""
        self._reach()
        return super().set(key, value)

    def exception_safe_to_retry(self, exc: Exception) -> bool:
        """Return whether `result_backend_always_retry` repeats a call that raised this error."""
        return isinstance(exc, ConnectionError)
