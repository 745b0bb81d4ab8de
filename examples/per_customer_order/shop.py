"""Charge the orders of each customer one at a time, in order; write each charge to a journal."""

import os
import time

from celery import Celery

from celery_sticky import Sticky
from celery_sticky.testing.recorder import Recorder

app = Celery("shop", broker=os.environ.get("BROKER_URL", "redis://localhost:6379/0"))
app.conf.update(
    broker_transport_options={"global_keyprefix": os.environ.get("KEY_PREFIX", "per-customer-order:")},
    task_ignore_result=True,
    sticky_lease_ttl=3.0,  # short, to keep the example short: a dead worker's customers move after 4 s
    sticky_lease_margin=0.8,
    sticky_settle=0.5,
)
Sticky(app)

journal = Recorder(os.environ.get("JOURNAL", "journal.jsonl"))


@app.task(key=lambda order: order["customer"], bind=True)
def charge(self, order):
    sticky = self.request.sticky
    with journal.run(sticky.key, order["number"], self.request.id, worker=sticky.worker, epoch=sticky.epoch):
        time.sleep(order["seconds"])
