"""`celery sticky sql`: the tables of a database are shown, created and written out for others."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

from celery_sticky import Sticky
from celery_sticky.cli.main import sticky
from celery_sticky.errors import SchemaTooOld
from celery_sticky.sql.schema import NEWEST


@pytest.fixture
def app(tmp_path: Path) -> Celery:
    """An app whose store is a SQLite file, which does not exist yet."""
    made = Celery("shop", broker="memory://")
    made.conf.sticky_store = f"sticky+sqlite:///{tmp_path}/shop.db"
    made.conf.broker_transport_options = {"table_prefix": "own_"}
    Sticky(made)
    return made


def invoke(app: Celery, *words: str) -> Result:
    return CliRunner().invoke(sticky, ["sql", *words], obj=CLIContext(app, True, None))


def facts(result: Result) -> dict[str, object]:
    (found,) = json.loads(result.output)["databases"]
    assert isinstance(found, dict)
    return found


def test_a_database_without_tables_is_shown_and_then_migrated(app: Celery) -> None:
    before = invoke(app, "status", "--json")
    assert before.exit_code == 1
    assert facts(before) == {"url": app.conf.sticky_store, "prefix": "own_", "version": 0, "newest": NEWEST}
    assert "run `sticky sql migrate`" in " ".join(invoke(app, "status").output.split())
    done = invoke(app, "migrate")
    assert done.exit_code == 0 and f"version {NEWEST}, migrated from 0" in " ".join(done.output.split())
    after = invoke(app, "status", "--json")
    assert (after.exit_code, facts(after)["version"]) == (0, NEWEST)
    again = invoke(app, "migrate", "--json")
    assert (again.exit_code, facts(again)["before"]) == (0, NEWEST)


def test_a_process_that_may_not_migrate_uses_what_the_command_has_made(app: Celery, tmp_path: Path) -> None:
    app.conf.broker_url = app.conf.broker_read_url = app.conf.broker_write_url = f"sticky+sqlite:///{tmp_path}/shop.db"
    app.conf.broker_transport_options = {"table_prefix": "own_", "migrate": False}
    with app.connection_for_write() as connection, pytest.raises(SchemaTooOld, match="sticky sql migrate"):
        connection.connect()
    assert invoke(app, "migrate").exit_code == 0
    with app.connection_for_write() as connection:
        connection.connect()


def test_the_statements_are_printed_and_make_the_tables(app: Celery, tmp_path: Path) -> None:
    printed = invoke(app, "ddl")
    assert printed.exit_code == 0
    with closing(sqlite3.connect(tmp_path / "shop.db")) as raw:
        raw.executescript(printed.output)
    assert invoke(app, "status").exit_code == 0
    since = invoke(app, "ddl", "--since", str(NEWEST))
    assert since.output.splitlines() == [
        f"-- {app.conf.sticky_store}, tables own_*: version {NEWEST} to {NEWEST}",
    ]


def test_the_statements_for_another_database_need_no_server(app: Celery) -> None:
    printed = invoke(app, "ddl", "--url", "sticky+mysql://shop:secret@db.example/shop", "--prefix", "sticky_")
    assert printed.exit_code == 0 and "ENGINE=InnoDB" in printed.output and "secret" not in printed.output
    assert "autovacuum" not in printed.output
    printed = invoke(app, "ddl", "--url", "sticky+postgresql://db.example/shop")
    assert "ALTER TABLE own_message SET (autovacuum_vacuum_scale_factor = 0" in printed.output


def test_an_app_without_a_database_is_told_what_to_name(app: Celery) -> None:
    app.conf.sticky_store = None
    result = invoke(app, "status")
    assert result.exit_code == 1
    assert (
        "neither broker_url nor sticky_store is a database: name one with --url sticky+postgresql://" in result.output
    )
