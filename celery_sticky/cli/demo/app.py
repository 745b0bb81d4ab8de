"""The app of the demo: shops whose orders are charged one at a time, in order."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

from celery import Celery, Task

from celery_sticky.app import Sticky
from celery_sticky.testing.recorder import Recorder

VARIABLE = "STICKY_DEMO"
"""The environment variable that passes the `Demo` to a worker process."""

LEASE_TTL, LEASE_MARGIN = 3.0, 0.8
SLOTS = 120
TASK = "demo.charge"


@dataclass(frozen=True, slots=True)
class Demo:
    """The broker and folder of one demo."""

    broker: str
    prefix: str
    """Prefix of every Redis key of the demo; empty on the demo's own server."""
    folder: str

    @property
    def history(self) -> Path:
        """The file in which every process records what it did."""
        return Path(self.folder) / "history.jsonl"

    def environ(self) -> dict[str, str]:
        """Return the environment variables for a worker process."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """Read what `environ` wrote."""
        return cls(**json.loads(environ[VARIABLE]))


def make_app(demo: Demo) -> Celery:
    """Return the app."""
    app = Celery("demo", broker=demo.broker, set_as_current=False)
    app.conf.update(
        broker_connection_retry_on_startup=True,
        broker_transport_options={
            "global_keyprefix": demo.prefix,
            "socket_timeout": 5,
            "socket_connect_timeout": 5,
        },
        worker_enable_remote_control=False,
        sticky_slots=SLOTS,
        sticky_lease_ttl=LEASE_TTL,
        sticky_lease_margin=LEASE_MARGIN,
        sticky_settle=1.0,
        sticky_runtime_dir=demo.folder,
    )
    Sticky(app)
    recorder = Recorder(demo.history)

    @app.task(name=TASK, shared=False, key="shop", bind=True, ignore_result=True)
    def charge(self: Task, shop: str, n: int, order: Mapping[str, str], seconds: float) -> None:
        sticky = self.request.sticky
        worker, slot, epoch, attempt = sticky.worker, sticky.slot, sticky.epoch, sticky.attempt
        with recorder.run(shop, n, self.request.id, worker=worker, slot=slot, epoch=epoch, attempt=attempt):
            time.sleep(seconds)

    return app


def read_orders() -> list[dict[str, Any]]:
    """Return the orders that are part of the package."""
    text = files(__package__).joinpath("orders.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
