"""The store of ownership in a SQL database."""

from celery_sticky.stores.sql.store import SqlStore

__all__ = ["SqlStore"]
