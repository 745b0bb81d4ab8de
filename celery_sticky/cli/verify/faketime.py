"""A separate wall clock for each worker, by libfaketime, if this machine has a working one."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

_TRIAL = """
import sys, time
time.sleep(0.001)  # under a library that breaks sleeping this fails or takes for ever
off, since = time.time() - float(sys.argv[1]), time.monotonic() - float(sys.argv[2])
sys.exit(not (3500 < off < 3700 and since < 100))
"""


def libraries() -> list[Path]:
    """Return every libfaketime of this machine, installed by a system package or a Python package."""
    places = [Path("/usr/lib"), Path("/usr/local/lib"), *Path("/usr/lib").glob("*-linux-gnu")]
    files = [place / "faketime/libfaketime.so.1" for place in places]
    spec = importlib.util.find_spec("libfaketime")
    if spec is not None and spec.origin is not None:
        files.append(Path(spec.origin).parent / "vendor/libfaketime/src/libfaketime.so.1")
    return [file for file in files if file.exists()]


@functools.cache
def libfaketime() -> str | None:
    """Return the libfaketime to use, or None."""
    return first_that_works(libraries())


def why_not() -> str | None:
    """Return the reason why there is no usable libfaketime, or None if there is one."""
    if libfaketime() is not None:
        return None
    if found := libraries():
        return f"{found[0]} breaks Python's time.sleep: pip install libfaketime"
    return "libfaketime is not installed"


def first_that_works(files: Iterable[Path]) -> str | None:
    """Return the first library under which Python sees another time of day but still sleeps correctly."""
    return next((str(file) for file in files if _works(str(file))), None)


def environ(library: str, file: Path) -> Mapping[str, str]:
    """Return the environment variables that give a process the clock set by `file`."""
    return {
        "LD_PRELOAD": library,
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_CACHE_DURATION": "1",  # seconds; without a cache every clock read opens a file, and gevent starves
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }


def set_clock(file: Path, seconds: int) -> None:
    """Set the wall clock of the processes that use this file `seconds` ahead."""
    new = file.with_suffix(".new")
    new.write_text(f"{seconds:+d}\n")
    new.rename(file)


def _works(library: str) -> bool:
    # Version 0.9.10, in Debian 12, breaks the sleep of Python 3.11 and later.
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "clock")
        set_clock(file, 3600)
        trial = [sys.executable, "-S", "-c", "import time; print(time.time(), time.monotonic())"]
        now = subprocess.run(trial, capture_output=True, text=True, check=True).stdout.split()
        words = [sys.executable, "-S", "-c", _TRIAL, *now]
        done = subprocess.run(words, env={**os.environ, **environ(library, file)}, capture_output=True, check=False)
        return done.returncode == 0
