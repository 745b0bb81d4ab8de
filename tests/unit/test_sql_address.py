"""URLs of databases, and where their passwords are."""

from __future__ import annotations

import pickle

import pytest
from kombu import Connection

from celery_sticky.sql import Address

URLS = {
    "sticky+postgresql://u:s%40crEt@h:5/db?sslmode=require": "sticky+postgresql://u@h:5/db?sslmode=require",
    "sticky+postgresql://h/db?password=s%40crEt&sslmode=require": "sticky+postgresql://h/db?sslmode=require",
    "sticky+mysql://u:s%40crEt@h/db": "sticky+mysql://u@h/db",
}


@pytest.mark.parametrize("url", URLS)
def test_what_kombu_tells_of_a_connection_has_the_password_in_its_own_place(url: str) -> None:
    connection = Connection(url)
    info = connection.info()
    assert info["hostname"] == URLS[url] and info["password"] == "s@crEt"
    assert "crEt" not in f"{info | {'password': None}} {connection.as_uri()} {connection!r} {Address.parse(url)!r}"


@pytest.mark.parametrize("url", URLS)
def test_every_copy_of_a_connection_has_the_password(url: str) -> None:
    connection = Connection(url)
    before, options = Address.of(connection), {"sslmode": "require"} if "?" in url else {}
    assert before.password == "s@crEt" and before.options == options
    connection.transport  # noqa: B018 - it is made now
    for copy in (connection, connection.clone(), connection.clone().clone(), pickle.loads(pickle.dumps(connection))):
        assert Address.of(copy).password == "s@crEt" and Address.of(copy).options == before.options
        assert Address.parse(copy.as_uri(include_password=True)).password == "s@crEt"
    assert Connection(connection.as_uri(include_password=True)).as_uri() == connection.as_uri()


def test_a_password_that_is_given_beside_the_url_is_used() -> None:
    assert Address.of(Connection("sticky+mysql://u@h/db", password="s/crEt")).password == "s/crEt"


@pytest.mark.parametrize("url", ["sticky+sqlite:///a.db?synchronous=FULL", "sticky+sqlite:////b/a.db"])
def test_the_url_of_a_file_stays_as_it_is(url: str) -> None:
    assert Connection(url).info()["hostname"] == url == Connection(url).as_uri(include_password=True)
