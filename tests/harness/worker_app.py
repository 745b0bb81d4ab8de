"""The app of worker processes; only they import it."""

from __future__ import annotations

from harness.app import make_worker_app

app = make_worker_app()
