"""The job store contract on every driver."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness.store_servers import InMemory, Private, Standing
from kombu import Connection

from celery_sticky.drivers import open_job_store
from celery_sticky.errors import InvalidSettings
from celery_sticky.stores import JobStore
from celery_sticky.stores.memory.jobs import MemoryJobs, MemoryJobServer
from celery_sticky.testing.job_store_contract import JobStoreContract
from celery_sticky.testing.job_store_contract.steps import ids, queued
from celery_sticky.testing.servers.valkey import ValkeyServer
from celery_sticky.testing.store_contract import StoreServer

StartValkey = Callable[..., ValkeyServer]


class TestMemory(JobStoreContract):
    @pytest.fixture
    def server(self) -> StoreServer[JobStore]:
        return InMemory(MemoryJobServer, MemoryJobs)


class TestStandingRedis(JobStoreContract):
    @pytest.fixture
    def server(self, redis_url: str) -> StoreServer[JobStore]:
        return Standing(redis_url, open_job_store)


class TestValkey(JobStoreContract):
    @pytest.fixture
    def server(self, valkey: StartValkey) -> StoreServer[JobStore]:
        return Private(valkey(appendonly=True), open_job_store)


def test_a_memory_job_store_is_one_for_all_of_the_process() -> None:
    one, two = open_job_store("memory://shared", "k"), open_job_store(Connection("memory://shared"), "k")
    queued(one)
    assert ids(two) == {"d1"}
    assert ids(open_job_store("memory://shared", "k", prefix="p")) == set()
    assert ids(open_job_store("memory://", "k")) == set()


@pytest.mark.parametrize("url", ["amqp://", "nosuch://h", "sqla+sqlite:///x"])
def test_a_scheme_without_a_job_store_is_told_with_those_that_have_one(url: str) -> None:
    with pytest.raises(InvalidSettings, match=r"redis://.*sentinel://.*memory://"):
        open_job_store(url, "k")
