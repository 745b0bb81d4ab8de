"""The app of a worker that receives malformed messages. Its task accepts any arguments and counts its runs."""

from __future__ import annotations

import os
from typing import Any

from harness.app import make_worker_app

app = make_worker_app()


@app.task(name="fuzzed", shared=False, key=lambda *args, **kwargs: "fuzzed")
def fuzzed(*args: Any, **kwargs: Any) -> None:
    """Append one byte to the file that counts the runs."""
    descriptor = os.open(os.environ["STICKY_FUZZ_RUNS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, b".")
    os.close(descriptor)
