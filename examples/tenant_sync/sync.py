"""One background sync for each tenant in the file `TENANTS`, on any worker; each writes its runs to a journal."""

import asyncio
import os
from pathlib import Path

from celery import Celery

from celery_sticky import Job, Sticky
from celery_sticky.testing.recorder import Recorder

app = Celery("sync", broker=os.environ.get("BROKER_URL", "redis://localhost:6379/0"))
app.conf.update(
    broker_transport_options={"global_keyprefix": os.environ.get("KEY_PREFIX", "tenant-sync:")},
    sticky_lease_ttl=3.0,  # short, to keep the example short: a dead worker's syncs move after 4 s
    sticky_lease_margin=0.8,
    sticky_settle=0.5,
)
sticky = Sticky(app)

tenants = Path(os.environ.get("TENANTS", "tenants.txt"))
journal = Recorder(os.environ.get("JOURNAL", "journal.jsonl"))


@sticky.job("sync")
async def sync(job: Job):
    with journal.run(job.key, job.attempt, job.id, worker=job.worker, epoch=job.epoch):
        page = job.saved or 0  # where the last run came to, perhaps on another worker
        job.started()
        while True:  # until it is cancelled, because the tenant is gone or its slot moves
            await asyncio.sleep(0.2)  # a real sync would fetch a page of new data here
            journal.published(job.key, page, job.worker)
            page += 1
            await job.save(page)


@sticky.schedule("tenants", every=1, job="sync")
def wanted():
    """Return the current tenants; one worker calls this once a second."""
    return tenants.read_text().split()
