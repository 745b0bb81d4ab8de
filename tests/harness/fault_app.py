"""The worker app for tests of faults: it adds `fault_tasks`, and records the slots that it gains and loses."""

from __future__ import annotations

import os

from harness import fault_tasks, hang
from harness.app import AppConfig, make_app
from harness.slots_written import write_slots_down

config = AppConfig.from_environ(os.environ)
app = make_app(config)
fault_tasks.register(app, config.history)
write_slots_down(config.history)
hang.register(config.history)
