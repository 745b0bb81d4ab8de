"""The job store in a SQL database."""

from celery_sticky.stores.sql.jobs.store import SqlJobs

__all__ = ["SqlJobs"]
