"""The app that test workers run and tests send with; an `AppConfig` configures it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from celery import Celery

from harness import retry_tasks, tasks

NAMES = ("STICKY_APP_BROKER", "STICKY_APP_BACKEND", "STICKY_APP_CONF", "STICKY_APP_HISTORY", "STICKY_APP_KEYED")


@dataclass(frozen=True, slots=True)
class AppConfig:
    """The configuration of one test app. Worker processes receive it in their environment."""

    broker: str
    history: Path
    backend: str = ""
    conf: Mapping[str, Any] = field(default_factory=dict)
    """Celery settings, including `sticky_*` settings."""
    keyed: bool = True
    """False leaves celery-sticky out: plain Celery."""

    def environ(self) -> dict[str, str]:
        """Return the configuration as environment variables."""
        values = (self.broker, self.backend, json.dumps(dict(self.conf)), str(self.history), "1" if self.keyed else "")
        return dict(zip(NAMES, values, strict=True))

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> AppConfig:
        """Read a configuration that `environ` wrote."""
        broker, backend, conf, history, keyed = (environ[name] for name in NAMES)
        return cls(broker, Path(history), backend, json.loads(conf), bool(keyed))


def make_app(config: AppConfig) -> Celery:
    """Return a new Celery app with the test tasks; it does not become the current app."""
    app = Celery("harness", broker=config.broker, backend=config.backend or None, set_as_current=False)
    app.loader.override_backends = {"away": "harness.away_backend:AwayBackend"}
    settings = {
        "broker_connection_retry_on_startup": True,
        "worker_prefetch_multiplier": 1,
        # Long enough for a loaded machine, short enough that a test of a broken server ends.
        "broker_transport_options": {"socket_timeout": 10, "socket_connect_timeout": 5},
    }
    app.conf.update({**settings, **config.conf})
    if config.keyed:
        from celery_sticky import Sticky  # a plain app must work without it

        Sticky(app)
    tasks.register(app, config.history)
    retry_tasks.register(app, config.history)
    return app


def make_worker_app() -> Celery:
    """Return the app of a worker process: `celery -A harness.worker_app worker`."""
    return make_app(AppConfig.from_environ(os.environ))
