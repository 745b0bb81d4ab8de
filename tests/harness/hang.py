"""Ways to hang a worker that stays alive but runs no tasks. Each ends when the file `ENDS` appears."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from celery import signals
from celery.worker.control import control_command

from celery_sticky.platform.native import original

HANGS = "hangs"
"""The file beside the history that appears when a process hangs."""
ENDS = "ends-hanging"
"""The file beside the history whose appearance ends every hang."""
FAILS = "children-fail"
"""The file beside the history that keeps new children of the pool from starting, until `ENDS` appears."""


def register(history: Path) -> None:
    """Make this process hang on the control command `hang` and on SIGUSR2, and its children hang or exit at start."""
    begun, end, fails = history.parent / HANGS, history.parent / ENDS, history.parent / FAILS

    def hang() -> None:
        begun.touch()
        while not end.exists():
            original("time", "sleep")(0.05)  # polls for the file; blocks the thread even if `sleep` is patched

    @control_command(name="hang", args=[], signature="")
    def on_command(state: Any) -> dict[str, str]:
        """Block Celery's loop."""
        hang()
        return {"ok": "it has hung"}

    @signals.worker_init.connect(weak=False)
    def on_start(**_: Any) -> None:
        signal.signal(signal.SIGUSR2, lambda *_: hang())

    @signals.worker_process_init.connect(weak=False)
    def on_child(**_: Any) -> None:
        if fails.exists() and not end.exists():
            hang() if os.environ.get("STICKY_TEST_CHILDREN") == "hang" else os._exit(7)
