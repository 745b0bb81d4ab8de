"""The server programs that are on this machine: the embedded Valkey, and whatever Redis is installed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from celery_sticky.testing.servers.valkey import binary

OLD_REDIS = "STICKY_TEST_OLD_REDIS"
"""Environment variable: where the oldest supported `redis-server` is (6.2)."""


def every_program() -> list[pytest.ParameterSet]:
    """Return the programs as parameters of a test; those that are not here are skipped."""
    found = {"valkey": binary(), "redis": shutil.which("redis-server"), "redis-6.2": os.environ.get(OLD_REDIS)}
    missing = pytest.mark.skip(reason="no such server program on this machine")
    return [
        pytest.param(Path(path) if path else None, id=name, marks=() if path else missing)
        for name, path in found.items()
    ]
