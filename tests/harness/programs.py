"""The server programs on this machine: the embedded Valkey, and the installed releases of Redis."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from celery_sticky.testing.servers.valkey import binary

OLD_REDIS = "STICKY_TEST_OLD_REDIS"
"""The environment variable with the path of the oldest supported `redis-server` (6.2)."""


def every_program() -> list[pytest.ParameterSet]:
    """Return the programs as parameters of a test; missing programs are skipped."""
    found = {"valkey": binary(), "redis": shutil.which("redis-server"), "redis-6.2": os.environ.get(OLD_REDIS)}
    missing = pytest.mark.skip(reason="no such server program on this machine")
    return [
        pytest.param(Path(path) if path else None, id=name, marks=() if path else missing)
        for name, path in found.items()
    ]
