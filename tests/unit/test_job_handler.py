"""What may be a job, and how its errors are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_sticky.errors import InvalidJob, StickyError
from celery_sticky.jobs.handler import Job, JobHandler, JobSpec, JobSpecs
from celery_sticky.jobs.host.surroundings import error_text


async def sync_crm(job: Job) -> None:
    """A job."""


async def other(job: Job) -> None:
    """Another job."""


class Connection(JobHandler):
    """A job that is a class."""

    async def start(self, job: Job) -> None:
        """See `JobHandler`."""


# -- what may be a job -----------------------------------------------------------------------------


@pytest.mark.parametrize("handler", [sync_crm, Connection])
def test_a_job_is_a_coroutine_function_or_a_subclass_of_the_base(handler: Any) -> None:
    specs = JobSpecs()
    specs.add(JobSpec("crm", "default", handler))
    found = specs.find("default", "crm")
    assert found is not None and found.handler is handler
    assert specs.find("default", "other") is specs.find("other", "crm") is None
    assert specs.names() == ("default/crm",)


def generates(job: Job) -> Any:
    yield


async def generates_async(job: Job) -> Any:
    yield


@pytest.mark.parametrize(
    "handler", [generates, generates_async, len, None, "crm", dict, object(), Connection(), JobHandler]
)
def test_nothing_else_is_a_job(handler: Any) -> None:
    with pytest.raises(InvalidJob, match="'crm'") as caught:
        JobSpec("crm", "default", handler)
    assert isinstance(caught.value, StickyError) and isinstance(caught.value, TypeError)


@pytest.mark.parametrize("name", ["", None, 7, "n" * 201, "ä" * 101])
def test_a_name_is_a_text_that_is_neither_empty_nor_too_long(name: Any) -> None:
    with pytest.raises(InvalidJob, match="name"):
        JobSpec(name, "default", sync_crm)
    JobSpec("ä" * 100, "default", sync_crm)


def test_a_keyspace_is_one() -> None:
    with pytest.raises(InvalidJob, match="keyspace"):
        JobSpec("crm", "no good", sync_crm)


def test_a_name_is_taken_once_in_a_keyspace_and_both_handlers_are_named() -> None:
    specs = JobSpecs()
    specs.add(JobSpec("crm", "default", sync_crm))
    specs.add(JobSpec("crm", "second", other))
    with pytest.raises(InvalidJob, match=r"taken by \S+\.sync_crm; give \S+\.other another"):
        specs.add(JobSpec("crm", "default", other))


def test_the_same_function_imported_again_takes_the_place_of_the_former() -> None:
    def imported() -> Callable[[Job], Any]:
        async def sync_crm(job: Job) -> None:
            """A job."""

        return sync_crm

    specs = JobSpecs()
    for _ in range(2):
        newest = imported()
        specs.add(JobSpec("crm", "default", newest))
    assert [spec.handler for spec in specs] == [newest]


# -- errors ----------------------------------------------------------------------------------------


class Untold(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError(), "ValueError"),
        (ValueError("a\n  b\tc"), "ValueError: a b c"),
        (KeyError("k"), "KeyError: 'k'"),
        (ValueError("a:"), "ValueError: a:"),
        (Untold(), "Untold: (its text cannot be read: RuntimeError)"),
        (ValueError("\udce4"), "ValueError: \\udce4"),
    ],
)
def test_an_error_is_told_as_type_and_message_in_one_line(error: Exception, text: str) -> None:
    assert error_text(error) == text


@pytest.mark.parametrize("message", ["x" * 5000, "\udce4" * 5000])
def test_a_long_error_is_cut(message: str) -> None:
    assert len(error_text(ValueError(message))) == 2000


def test_isolated_is_true_or_false() -> None:
    with pytest.raises(InvalidJob, match="job 'crm': isolated is 'no', it must be True or False"):
        JobSpec("crm", "default", sync_crm, isolated="no")  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["max_notes", "max_deliveries"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "3", True])
def test_an_option_that_is_no_number_is_refused(option: str, value: Any) -> None:
    with pytest.raises(InvalidJob, match=f"job 'crm': {option} is {value!r}, it must be a whole number, at least 1"):
        JobSpec("crm", "default", sync_crm, **{option: value})
