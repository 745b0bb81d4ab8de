"""The contract of job stores on SQL databases, and what holds of them alone."""

from __future__ import annotations

import pytest
from harness.sql_stores import in_database

from celery_sticky.stores.jobs import JobStore
from celery_sticky.stores.sql.jobs import SqlJobs
from celery_sticky.testing.job_store_contract import JobStoreContract
from celery_sticky.testing.store_contract import StoreServer


class TestSql(JobStoreContract):
    """The contract, on a database of each kind."""

    @pytest.fixture
    def server(self, sql_url: str) -> StoreServer[JobStore]:
        return in_database(sql_url, SqlJobs)
