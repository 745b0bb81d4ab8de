"""The worker app of tests of directed keyspaces."""

from __future__ import annotations

import os

from harness import directed_tasks
from harness.app import AppConfig, make_app

config = AppConfig.from_environ(os.environ)
app = make_app(config)
directed_tasks.register(app, config.history)
