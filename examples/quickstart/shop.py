"""An app with a keyed task and an unkeyed one."""

import os
import time

from celery import Celery

from celery_sticky import Sticky

app = Celery(
    "shop",
    broker=os.environ.get("BROKER_URL", "redis://localhost:6379/0"),
    backend=os.environ.get("BROKER_URL", "redis://localhost:6379/0"),
)
sticky = Sticky(app)


@app.task(key="tenant_id", bind=True)
def sync(self, tenant_id, page=1):
    time.sleep(0.1)
    return self.request.sticky.worker


@app.task
def ping():
    return "pong"
