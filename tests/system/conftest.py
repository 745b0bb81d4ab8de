"""Fixtures for tests of real worker processes under real faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.app import AppConfig
from harness.guard import Guard
from harness.keyed_fleet import CONF, KeyedFleet
from harness.proxy import Proxy


@pytest.fixture
def crew(guard: Guard, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., KeyedFleet]]:
    """Makes keyed fleets: `crew(broker=…, document=True, **settings)`; the broker defaults to `redis_url`."""
    fleets: list[KeyedFleet] = []

    def make(*, broker: str | None = None, document: bool = True, **settings: Any) -> KeyedFleet:
        broker = broker or request.getfixturevalue("redis_url")
        directory = tmp_path / f"crew{len(fleets)}"
        directory.mkdir()
        conf = {**CONF, "sticky_runtime_dir": str(directory / "run"), **settings}
        config = AppConfig(broker, directory / "history.jsonl", conf=conf)
        fleets.append(KeyedFleet(guard, directory, config, document=document))
        return fleets[-1]

    yield make
    for made in fleets:
        made.teardown()


@pytest.fixture
def proxy() -> Iterator[Callable[[int], Proxy]]:
    """Starts proxies: `proxy(port)` → a started `Proxy` to that loopback port."""
    proxies: list[Proxy] = []

    def start(port: int) -> Proxy:
        proxies.append(Proxy(port))
        return proxies[-1].start()

    yield start
    for made in proxies:
        made.teardown()
