"""The contract of queue drivers as tests. Subclass `QueueContract`, override its `broker` fixture, run pytest.

    class TestMyQueues(QueueContract):
        @pytest.fixture
        def broker(self):
            return MyBroker()          # .driver() -> a new driver;  .publish(keyspace, slot, body, priority)

The broker is empty at the start of each test. Every test checks one sentence of `celery_sticky.queues.base`.
"""

from __future__ import annotations

from celery_sticky.testing.queue_fence_contract import FenceContract
from celery_sticky.testing.queue_ledger_contract import LedgerContract
from celery_sticky.testing.queue_settle_contract import SettleContract
from celery_sticky.testing.queue_starts_contract import StartsContract
from celery_sticky.testing.queue_steps import Broker

__all__ = ["Broker", "QueueContract"]


class QueueContract(FenceContract, SettleContract, StartsContract, LedgerContract):
    """The whole contract."""
