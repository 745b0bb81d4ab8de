"""Ways in which a worker lives on and runs nothing, for tests of proof of life. All end when a file appears."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from celery import signals
from celery.worker.control import control_command

from celery_sticky.platform.native import original

ENDS = "ends-hanging"
"""The file beside the history that ends all hanging."""
FAILS = "children-fail"
"""The file beside the history from whose appearance on children of the pool do not come up."""


def register(history: Path) -> None:
    """Have this process hang on the control command `hang`, on SIGUSR2, or in its children as the environment says."""
    end, fails = history.parent / ENDS, history.parent / FAILS

    def hang() -> None:
        while not end.exists():
            original("time", "sleep")(0.05)

    @control_command(name="hang", args=[], signature="")
    def on_command(state: Any) -> dict[str, str]:
        """Keep the loop."""
        hang()
        return {"ok": "it has hung"}

    @signals.worker_init.connect(weak=False)
    def on_start(**_: Any) -> None:
        signal.signal(signal.SIGUSR2, lambda *_: hang())

    @signals.worker_process_init.connect(weak=False)
    def on_child(**_: Any) -> None:
        if fails.exists() and not end.exists():
            hang() if os.environ.get("STICKY_TEST_CHILDREN") == "hang" else os._exit(7)
