"""The store of claims and pins in a SQL database."""

from celery_sticky.stores.sql.placement.store import SqlPlacementStore

__all__ = ["SqlPlacementStore"]
