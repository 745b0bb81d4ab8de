"""Addresses of databases, names of tables, and what errors mean: nothing here connects."""

from __future__ import annotations

import pytest

from celery_sticky.errors import InvalidSettings
from celery_sticky.sql import Address
from celery_sticky.sql.failures import describe
from celery_sticky.sql.tables import Tables


def test_an_address_is_read_from_a_url() -> None:
    found = Address.parse("sticky+postgresql://ann:p%40ss@db.example:6432/shop%20a?sslmode=require")
    assert (found.kind, found.host, found.port, found.user, found.password, found.database) == (
        "postgresql",
        "db.example",
        6432,
        "ann",
        "p@ss",
        "shop a",
    )
    assert found.options == {"sslmode": "require"}


def test_the_path_of_a_file_is_relative_after_three_slashes_and_absolute_after_four() -> None:
    assert Address.parse("sticky+sqlite:///data/app.db").database == "data/app.db"
    assert Address.parse("sticky+sqlite:////var/lib/app.db").database == "/var/lib/app.db"


def test_no_message_shows_the_password() -> None:
    found = Address.parse("sticky+mysql://ann:secret@db.example/shop")
    assert "secret" not in found.shown and "secret" not in repr(found)
    with pytest.raises(InvalidSettings) as refusal:
        Address.parse("sticky+mysql://ann:secret@db.example/")
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://localhost/0", "must be one of postgresql, mysql, sqlite"),
        ("sticky+postgresql://localhost", "does not name a database"),
        ("sticky+sqlite:///", "does not name a file"),
        ("sticky+sqlite://app.db/x", "follows three slashes"),
        ("sticky+mysql://h:port/d", "[Pp]ort"),
    ],
)
def test_what_is_not_the_address_of_a_database_is_refused(url: str, why: str) -> None:
    with pytest.raises(InvalidSettings, match=why):
        Address.parse(url)


def test_names_of_tables_have_the_prefix_and_possibly_a_schema() -> None:
    assert Tables("jobs.sticky_").fill("DELETE FROM {message} WHERE id = %s") == (
        "DELETE FROM jobs.sticky_message WHERE id = %s"
    )


@pytest.mark.parametrize("prefix", ["", "Sticky", "a;drop", "a.b.c", "1a", "a b"])
def test_a_prefix_that_cannot_begin_a_name_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidSettings, match="cannot begin the names of tables"):
        Tables(prefix)


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("25006", "connecting again to find the primary"),
        ("40P01", "resolve a conflict"),
        ("40001", "resolve a conflict"),
        ("57P01", "the connection was ended"),
        ("08006", "the connection was ended"),
        ("53100", "its disk is full"),
        ("53300", "accepts no more connections"),
        ("53200", "short of a resource"),
        ("1213", "resolve a conflict"),
        ("1290", "read-only"),
        ("SQLITE_FULL", "its disk is full"),
        ("SQLITE_BUSY", "holds the file's lock"),
        ("SQLITE_READONLY_DIRECTORY", "read-only"),
    ],
)
def test_an_error_is_told_with_its_code_and_the_remedy(code: str, advice: str) -> None:
    told = describe(RuntimeError("it is\nso."), code)
    assert told.startswith(f"{code} it is so: ") and advice in told


def test_an_error_without_a_known_code_is_told_as_it_is() -> None:
    assert describe(RuntimeError("odd"), "99999") == "99999 odd"
    assert describe(TimeoutError(), "") == "TimeoutError"
