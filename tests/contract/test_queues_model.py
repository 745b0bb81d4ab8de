"""Any sequence of calls has the same answers from every driver as from the reference driver in memory."""

from __future__ import annotations

from typing import Any

import pytest
from harness.queue_model import STEPS, Told, compare
from harness.sql_broker import OnSql
from kombu import Connection

from celery_sticky.drivers import open_queues
from celery_sticky.queues.redis import Layout
from celery_sticky.redis_clients import client_from_connection
from celery_sticky.slots import Slot


@pytest.mark.timeout(120)
def test_redis_answers_as_the_reference_does(redis_url: str) -> None:
    connection = Connection(redis_url)
    client: Any = client_from_connection(connection, socket_timeout=5.0)

    def publish(slot: Slot, step: int, body: bytes) -> None:
        client.lpush(Layout("model").lists("k", slot)[STEPS.index(step)], body)

    def start() -> Told:
        for key in client.scan_iter("model.*"):
            client.delete(key)
        return Told(open_queues(connection, prefix="model", socket_timeout=5.0), publish)

    compare(start, 60)


@pytest.mark.timeout(240)
def test_a_database_answers_as_the_reference_does(on_sql: OnSql) -> None:
    def start() -> Told:
        on_sql.clear()
        return Told(on_sql.driver(), lambda slot, step, body: on_sql.publish("k", slot, body, step))

    compare(start, 40)
