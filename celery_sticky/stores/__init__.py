"""The stores of a keyspace: its ownership view (contract: `base`), jobs (`jobs`), claims and pins (`placement`)."""

from celery_sticky.stores.base import Heartbeat, Reading, Signal, Store
from celery_sticky.stores.jobs import JobStore
from celery_sticky.stores.placement import PlacementStore

__all__ = ["Heartbeat", "JobStore", "PlacementStore", "Reading", "Signal", "Store"]
