"""The pins of a worker in the run: its main process pins random keys, takes some from other workers and unpins some."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path

from celery_sticky.app import Sticky
from celery_sticky.cli.verify.site import Site
from celery_sticky.errors import NotAMember, PinnedElsewhere, StoreUnavailable
from celery_sticky.placement.pin import Pin
from celery_sticky.testing.history import Event, Kind
from celery_sticky.testing.recorder import Recorder

TURN = 0.5
"""Seconds between two turns."""
AT_ONCE = 5
"""Number of keys in one turn."""
SELDOM = 0.04
"""Probability of taking a key from another worker, or of unpinning it, where that is possible."""
REFUSALS = (PinnedElsewhere, NotAMember, StoreUnavailable)


class Pins:
    """Pins keys as a front-end server pins its clients. A pin is recorded as a run that ends when the pin is gone."""

    def __init__(self, sticky: Sticky, site: Site, worker: str, keys: Sequence[str]) -> None:
        self._sticky, self._keyspace, self._keys, self._worker = sticky, site.keyspace, keys, worker
        self._recorder, self._calm = Recorder(site.pin_history), calm_file(site)
        self._draw = random.Random(f"pins-{site.seed}-{worker}")
        self._held: dict[str, Pin] = {}
        self._most = (len(keys) + 1) // 2  # the first worker must leave keys for the others
        self._lock = threading.Lock()
        """Keeps the recorded pins consistent with the pins in the store."""

    def start(self) -> None:
        """Start pinning."""
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        for key in self._draw.sample(self._keys, len(self._keys)):
            with self._lock:
                self._turn(key, bold=False)
        while True:
            time.sleep(TURN * self._draw.uniform(0.5, 1.5))
            calm = self._calm.exists()
            for _ in range(AT_ONCE):
                with self._lock:
                    self._turn(self._draw.choice(self._keys), bold=not calm and self._draw.random() < SELDOM)

    def _turn(self, key: str, *, bold: bool) -> None:
        with suppress(*REFUSALS):
            if key not in self._held and len(self._held) < self._most:
                self._hold(self._sticky.pin(key, self._keyspace, take=bold))
            elif key in self._held and bold:
                self._let_go(key).release()

    def lost(self, keys: AbstractSet[str]) -> None:
        """Handle lost pins: pin the keys again that are still held, as a receiver of `pins_lost` should."""
        with self._lock:
            for key in keys & self._held.keys():
                try:
                    self._held[key] = self._sticky.pin(key, self._keyspace)
                except REFUSALS:
                    self._let_go(key)

    def forgotten(self) -> None:
        """Handle that the store may have forgotten any pin, as a receiver of `pins_forgotten` should."""
        self.lost(frozenset(self._held))

    def _hold(self, pin: Pin) -> None:
        self._held[pin.key] = pin
        self._write(Kind.START, pin.key)

    def _let_go(self, key: str) -> Pin:
        self._write(Kind.END, key)
        return self._held.pop(key)

    def _write(self, kind: Kind, key: str) -> None:
        pid = os.getpid()
        at, run = time.monotonic_ns(), f"{pid} {key}"
        self._recorder.write(Event(kind=kind, key=key, n=0, task_id="", at=at, pid=pid, worker=self._worker, run=run))


def calm_file(site: Site) -> Path:
    """Return the file whose existence tells workers to stop taking pins and unpinning."""
    return Path(site.folder) / "calm"
