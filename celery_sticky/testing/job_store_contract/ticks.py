"""The job store contract: periods of tickers, counted by the store's clock."""

# ruff: noqa: D102  (a test's name is its sentence)

from __future__ import annotations

import time

from celery_sticky.stores.jobs import JobStore
from celery_sticky.testing.job_store_contract import steps
from celery_sticky.testing.job_store_contract.steps import DECADES, OpenJobs
from celery_sticky.testing.store_contract.server import Opening, StoreServer

SHORT = 0.05
"""A period, in seconds, that ends during a test."""
DAY = 86400.0


class TickContract(Opening[JobStore]):
    """Which caller a period belongs to, and when the next one begins."""

    def test_a_period_is_claimed_once(self, store: JobStore, other: JobStore) -> None:
        assert store.claim_tick("t", DECADES).claimed
        assert not other.claim_tick("t", DECADES).claimed
        assert not store.claim_tick("t", DECADES).claimed
        assert other.claim_tick("t:2", DECADES).claimed, "each ticker has its own"

    def test_of_claims_of_one_period_at_once_exactly_one_succeeds(self, open_store: OpenJobs) -> None:
        ticks = steps.at_once(open_store, [lambda client: client.claim_tick("t", DECADES)] * 10)
        assert [tick.claimed for tick in ticks].count(True) == 1

    def test_the_next_period_can_be_claimed_when_it_was_told_to_begin(self, store: JobStore, other: JobStore) -> None:
        for i in range(10):
            tick = (store, other)[i % 2].claim_tick("t", SHORT)
            assert tick.claimed
            assert 0 < tick.next_in <= SHORT
            time.sleep(tick.next_in)

    def test_everybody_is_told_the_same_beginning(self, store: JobStore, other: JobStore) -> None:
        before = time.monotonic()
        first, second = store.claim_tick("t", DECADES), other.claim_tick("t", DECADES)
        passed = time.monotonic() - before
        assert 0 <= first.next_in - second.next_in <= passed + 0.001

    def test_a_changed_interval_makes_no_period_look_old(self, store: JobStore) -> None:
        assert store.claim_tick("t", DECADES).claimed
        tick = store.claim_tick("t", SHORT)
        assert tick.claimed
        assert not store.claim_tick("t", DECADES).claimed
        time.sleep(tick.next_in)
        assert store.claim_tick("t", SHORT).claimed

    def test_a_clock_that_is_set_back_silences_a_ticker_for_no_longer_than_one_period(
        self, server: StoreServer[JobStore], store: JobStore
    ) -> None:
        assert store.claim_tick("t", SHORT).claimed
        server.set_clock(-DAY)
        tick = store.claim_tick("t", SHORT)
        assert not tick.claimed, "nobody knows whether this period was run"
        time.sleep(tick.next_in)
        assert store.claim_tick("t", SHORT).claimed
        server.set_clock(DAY)
        assert store.claim_tick("t", SHORT).claimed
