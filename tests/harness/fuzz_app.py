"""The app of a worker that is sent messages nobody would write: its task takes whatever comes, and counts its runs."""

from __future__ import annotations

import os
from typing import Any

from harness.app import make_worker_app

app = make_worker_app()


@app.task(name="fuzzed", shared=False, key=lambda *args, **kwargs: "fuzzed")
def fuzzed(*args: Any, **kwargs: Any) -> None:
    """Write one byte."""
    descriptor = os.open(os.environ["STICKY_FUZZ_RUNS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, b".")
    os.close(descriptor)
