"""Imported by the demo's worker processes: `celery -A celery_sticky.cli.demo.worker worker`."""

import os

from celery_sticky.cli.demo.app import Demo, make_app

app = make_app(Demo.from_environ(os.environ))
