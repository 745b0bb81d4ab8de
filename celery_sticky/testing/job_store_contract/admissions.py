"""The job store contract: admission of jobs, and their records."""

# ruff: noqa: D102  (a test's name is its sentence)

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

import pytest

from celery_sticky.slots import KeyPlace
from celery_sticky.stores.jobs import Admission, JobRecord, JobState, JobStore, NewJob
from celery_sticky.stores.notes import Fate
from celery_sticky.testing.job_store_contract import steps
from celery_sticky.testing.job_store_contract.steps import SLOT, SUCCESS, OpenJobs
from celery_sticky.testing.store_contract.server import Opening

ODD = ["a:b", "a", ":", "b:c", "1:a", "a=b", "", "n\0l", '["a","b"]', "schlüssel 🔑", "\n", "\x7f/\\"]
"""Names, keys and ids whose concatenations must not be mistaken for one another."""
PAYLOADS = [b"[]", b"{}", b"null", b"1e400", b"9223372036854775808", b'{"a": [ ], "b":1.0}', '"🔑\\u0000"'.encode()]


class AdmissionContract(Opening[JobStore]):
    """Admission of jobs, and their records."""

    def test_a_new_store_is_empty(self, store: JobStore) -> None:
        assert list(store.records()) == []
        assert store.look({0: 0, SLOT: 0}) == {}

    def test_an_admitted_job_is_read_as_it_was_written(self, store: JobStore, other: JobStore) -> None:
        new = steps.queued(store)
        (found,) = other.records()
        assert abs(found.created - time.time()) < 60
        assert found == JobRecord(
            new.name,
            new.key,
            new.slot,
            new.id,
            new.payload,
            JobState.QUEUED,
            fresh=True,
            attempt=0,
            epoch=0,
            worker="",
            error="",
            created=found.created,
            version=steps.revision(other),
        )
        assert other.look({SLOT: 0})[SLOT].records == (found,)

    def test_names_keys_and_ids_may_hold_any_character(self, store: JobStore) -> None:
        places = [(name, key) for name in ODD for key in ODD]
        jobs = {
            place: steps.queued(store, steps.job(f"{place[0]}={place[1]}{i}", *place)) for i, place in enumerate(places)
        }
        assert {(found.name, found.key): found.id for found in store.records()} == {
            place: new.id for place, new in jobs.items()
        }
        for name, key in places[::2]:
            assert store.stop(SLOT, name, key)
        assert {(found.name, found.key) for found in store.records()} == set(places[1::2])

    @pytest.mark.parametrize("payload", PAYLOADS)
    def test_a_payload_comes_back_to_the_byte(self, store: JobStore, payload: bytes) -> None:
        steps.running(store, steps.job(payload=payload))
        assert steps.note(store, payload) is Fate.SENT
        steps.settle(store, steps.failed())
        assert steps.record(store).payload == payload
        assert store.look({SLOT: 0})[SLOT].records[0].payload == payload
        assert steps.notes(store) == [payload]

    @pytest.mark.parametrize("number", [2, 20])
    def test_of_dispatches_of_one_key_at_once_exactly_one_is_admitted(self, open_store: OpenJobs, number: int) -> None:
        jobs = [steps.job(f"d{i}") for i in range(number)]
        answers = steps.at_once(open_store, [partial(steps.ask, new=new) for new in jobs])
        assert sorted(answer for answer, _ in answers) == ["admitted"] + ["exists"] * (number - 1)
        winner = answers.index((Admission.ADMITTED, None))
        assert steps.ids(open_store()) == {jobs[winner].id}

    def test_a_job_of_another_name_or_key_is_another_job(self, store: JobStore) -> None:
        steps.queued(store, steps.job("d1", "a", "k"))
        steps.queued(store, steps.job("d2", "b", "k"))
        steps.queued(store, steps.job("d3", "a", "l"))
        assert steps.ids(store) == {"d1", "d2", "d3"}

    @pytest.mark.parametrize("wanted", [steps.queued, steps.starting, steps.running, steps.failing])
    def test_a_job_that_is_wanted_exists(self, store: JobStore, wanted: object) -> None:
        assert callable(wanted)
        wanted(store)
        assert steps.ask(store, steps.job("d2")) == (Admission.EXISTS, None)
        assert steps.ids(store) == {"d1"}

    def test_at_most_max_queued_fresh_jobs_wait_also_with_twenty_clients_at_once(self, open_store: OpenJobs) -> None:
        jobs = [steps.job(f"d{i}", key=f"k{i}", slot=i) for i in range(20)]
        answers = steps.at_once(open_store, [partial(steps.ask, new=new, max_queued=7) for new in jobs])
        assert sorted(answer for answer, _ in answers) == ["admitted"] * 7 + ["full"] * 13
        assert len(open_store().records()) == 7

    def test_a_start_that_is_only_reserved_waits(self, store: JobStore) -> None:
        steps.starting(store)
        assert steps.ask(store, steps.job("d2", key="k2"), max_queued=1) == (Admission.FULL, None)

    @pytest.mark.parametrize(
        "report", [steps.started(), steps.failed(), steps.ended()], ids=lambda report: report.result
    )
    def test_a_start_that_has_settled_waits_no_more(self, store: JobStore, report: object) -> None:
        steps.starting(store)
        steps.settle(store, report)  # type: ignore[arg-type]
        assert steps.ask(store, steps.job("d2", key="k2"), max_queued=1) == (Admission.ADMITTED, None)

    def test_a_stopped_job_waits_no_more(self, store: JobStore) -> None:
        steps.queued(store)
        store.stop(SLOT, "feed", "k")
        assert steps.ask(store, steps.job("d2", key="k2"), max_queued=1) == (Admission.ADMITTED, None)

    def test_a_start_after_the_first_does_not_wait(self, store: JobStore) -> None:
        steps.running(store)
        steps.reserved(store, "d1")
        assert steps.ask(store, steps.job("d2", key="k2"), max_queued=1) == (Admission.ADMITTED, None)

    def test_the_first_refusal_in_order_is_told(self, store: JobStore) -> None:
        steps.queued(store)
        assert steps.ask(store, steps.job("d2"), max_queued=1) == (Admission.EXISTS, None)
        assert steps.ask(store, steps.job("d1"), max_queued=1) == (Admission.REPEATED, None)
        assert steps.ask(store, steps.job("d1", payload=b"2"), max_queued=1) == (Admission.CONFLICT, None)
        assert steps.ask(store, steps.job("d2", key="k2"), max_queued=1) == (Admission.FULL, None)
        store.close_keyspace(closed=True)
        assert steps.ask(store, steps.job("d1"), max_queued=1) == (Admission.CLOSED, None)

    def test_a_refused_dispatch_changes_nothing(self, store: JobStore) -> None:
        steps.queued(store)
        before = store.look({SLOT: 0})
        for refused in (steps.job("d2"), steps.job("d1"), steps.job("d1", payload=b"2"), steps.job("d2", key="k2")):
            assert steps.ask(store, refused, max_queued=1)[0] is not Admission.ADMITTED
        assert store.look({SLOT: 0}) == before

    def test_a_job_over_one_that_is_stopping_takes_its_place(self, store: JobStore) -> None:
        steps.stopping(store)
        steps.queued(store, steps.job("d2", payload=b"2"))
        assert steps.ids(store) == {"d2"}
        found = steps.record(store, "d2")
        assert (found.state, found.fresh, found.attempt, found.payload) == (JobState.QUEUED, True, 0, b"2")

    def test_the_end_of_the_old_run_leaves_the_job_that_took_its_place(self, store: JobStore) -> None:
        steps.stopping(store)
        steps.queued(store, steps.job("d2"))
        steps.note(store)
        before = store.look({SLOT: 0})
        steps.settle(store, steps.ended("d1"))
        assert store.look({SLOT: 0}) == before
        assert steps.notes(store) == [b"{}"]

    def test_a_fresh_job_that_was_replaced_waits_no_more(self, store: JobStore) -> None:
        steps.stopping(store, fresh=True)
        steps.queued(store, steps.job("d2"))
        assert steps.ask(store, steps.job("d3", key="k3"), max_queued=2) == (Admission.ADMITTED, None)

    @pytest.mark.parametrize("where", [{"keyspace": "elsewhere"}, {"prefix": "two"}], ids=str)
    def test_keyspaces_and_prefixes_do_not_see_each_other(
        self, store: JobStore, open_store: OpenJobs, where: dict[str, str]
    ) -> None:
        apart = open_store(**where)
        steps.running(store)
        steps.note(store)
        assert list(apart.records()) == []
        assert apart.look({SLOT: 0}) == {}
        assert apart.outcome("d1", 0) is None
        assert not apart.stop(SLOT, "feed", "k")
        assert steps.note(apart) is Fate.NO_JOB
        assert apart.claim_tick("t", steps.DECADES).claimed
        assert store.claim_tick("t", steps.DECADES).claimed
        apart.open(SLOT, 99)
        apart.close_keyspace(closed=True)
        apart.close_keyspace(closed=False)
        assert steps.ask(apart, steps.job(payload=b"other"), max_queued=1) == (Admission.ADMITTED, None)
        assert steps.record(store).state is JobState.RUNNING
        steps.settle(store, steps.ended())
        assert steps.ids(apart) == {"d1"}

    def test_records_are_those_of_a_slot_a_name_a_key(self, store: JobStore) -> None:
        jobs: list[NewJob] = [steps.job("d1", "a", "k", 1), steps.job("d2", "a", "l", 2), steps.job("d3", "b", "k", 1)]
        for new in jobs:
            steps.queued(store, new)
        assert steps.ids(store) == {"d1", "d2", "d3"}
        assert steps.ids(store, slot=1) == {"d1", "d3"}
        assert {found.id for found in store.records("a")} == {"d1", "d2"}
        assert {found.id for found in store.records(key="k")} == {"d1", "d3"}
        assert [found.id for found in store.records("a", "k", 1)] == ["d1"]
        assert list(store.records("a", "k", 2)) == []

    def test_the_keys_of_a_name_are_those_that_have_a_job_of_it_that_is_not_to_stop(self, store: JobStore) -> None:
        for number, key in enumerate(ODD):
            steps.queued(store, steps.job(f"d{number}", key=key, slot=number))
            steps.queued(store, steps.job(f"e{number}", "f", key=f"eed{key}", slot=number))
        steps.queued(store, steps.job("placed", key="placed", slot=KeyPlace("placed")))
        for make in (steps.starting, steps.running, steps.failing, steps.stopping):
            make(store, steps.job(make.__name__, key=make.__name__))
        assert set(store.keys("feed")) == {*ODD, "placed", "starting", "running", "failing"}
        assert set(store.keys("f")) == {f"eed{key}" for key in ODD}
        assert set(store.keys("fee")) == set(store.keys("")) == set()

    def test_a_repeat_is_told_the_same_as_the_first(self, store: JobStore, other: JobStore) -> None:
        new = steps.queued(store)
        assert steps.ask(other, replace(new)) == (Admission.REPEATED, None)
        steps.reserved(store, "d1")
        assert steps.ask(other, new) == (Admission.REPEATED, None)
        steps.settle(store, steps.started())
        assert steps.ask(other, new) == (Admission.REPEATED, SUCCESS)
