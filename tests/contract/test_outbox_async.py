"""`sticky.outbox` on asynchronous connections: SQLAlchemy's, asyncpg's and psycopg's."""

# Celery and the libraries of databases have no types.
# mypy: disable-error-code="misc,no-any-return"

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from harness.callers import alchemy_url, plain
from harness.outbox import Shop
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

from celery_sticky import OutboxRefused

SESSIONS = [("sqlite", "aiosqlite"), ("postgresql", "asyncpg"), ("postgresql", "psycopg")]
ALCHEMY = pytest.mark.parametrize(("sql_url", "driver"), SESSIONS, indirect=["sql_url"])
RAW = pytest.mark.parametrize(
    ("sql_url", "driver"), [("postgresql", "raw asyncpg"), ("postgresql", "raw psycopg")], indirect=["sql_url"]
)
EVERY = pytest.mark.parametrize(
    ("sql_url", "driver"),
    [*SESSIONS, ("postgresql", "raw asyncpg"), ("postgresql", "raw psycopg"), ("postgresql", "connection")],
    indirect=["sql_url"],
)


@pytest.fixture
def shop(on_database: dict[str, Any]) -> Iterator[Shop]:
    """An app whose broker is a database."""
    shop = Shop(**on_database)
    yield shop
    shop.close()


class End(Exception):
    """Ends a transaction by a rollback."""


@asynccontextmanager
async def begun(driver: str, url: str) -> AsyncIterator[Any]:
    """Yield a connection or session in a transaction, which ends with the block."""
    if driver == "raw asyncpg":
        connection = await asyncpg.connect(url)
        try:
            async with connection.transaction():
                yield connection
        finally:
            await connection.close()
    elif driver == "raw psycopg":
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as one, one.transaction():
            yield one
    else:
        driver = "asyncpg" if driver == "connection" else driver
        kind = url.partition(":")[0]
        engine = create_async_engine(alchemy_url(url, **{kind: driver}), poolclass=NullPool)
        async with AsyncSession(engine) if driver != "connection" else engine.connect() as one, one.begin():
            yield one


@EVERY
def test_tasks_exist_exactly_if_the_transaction_commits(shop: Shop, sql_url: str, driver: str) -> None:
    async def send(error: Exception | None) -> None:
        async with begun(driver, sql_url) as one:
            async with shop.sticky.outbox(one):
                for n in range(3):
                    shop.plain.delay(n)
                shop.keyed.apply_async(("a", 3), priority=9)
                shop.plain.apply_async((4,), countdown=3600)
            assert shop.sent() == shop.sent("deferred") == []
            if error is not None:
                raise error

    with suppress(End):
        asyncio.run(send(End()))
    assert shop.sent() == shop.sent("deferred") == []
    asyncio.run(send(None))
    assert (shop.sent(), shop.sent("deferred")) == ([0, 1, 2, 3], [4])


@ALCHEMY
def test_what_a_savepoint_takes_back_is_not_sent(shop: Shop, sql_url: str, driver: str) -> None:
    async def send() -> None:
        async with begun(driver, sql_url) as one, shop.sticky.outbox(one):
            shop.plain.delay(1)
            with suppress(End):
                async with one.begin_nested():
                    await one.execute(text("SELECT 1"))
                    shop.plain.delay(2)
                    raise End
            async with one.begin_nested():
                await one.execute(text("SELECT 1"))
                shop.plain.delay(3)
            shop.plain.delay(4)

    asyncio.run(send())
    assert shop.sent() == [1, 3, 4]


@ALCHEMY
def test_a_session_may_commit_and_roll_back_in_the_block(shop: Shop, sql_url: str, driver: str) -> None:
    async def send() -> None:
        engine = create_async_engine(alchemy_url(sql_url, **{sql_url.partition(":")[0]: driver}), poolclass=NullPool)
        async with AsyncSession(engine) as one, shop.sticky.outbox(one):
            shop.plain.delay(1)
            await one.commit()
            assert shop.sent() == [1]
            await one.execute(text("SELECT 1"))
            shop.plain.delay(2)
            await one.rollback()
            await one.execute(text("SELECT 1"))
            shop.plain.delay(3)
            await one.commit()
        assert shop.sent() == [1, 3]

    asyncio.run(send())


@ALCHEMY
def test_run_sync_has_the_session_of_a_plain_block(shop: Shop, sql_url: str, driver: str) -> None:
    async def send() -> None:
        async with begun(driver, sql_url) as one:
            await one.run_sync(inside)
            assert shop.sent() == []

    def inside(session: Any) -> None:
        with shop.sticky.outbox(session):
            shop.plain.delay(1)

    asyncio.run(send())
    assert shop.sent() == [1]


@pytest.mark.parametrize(("sql_url", "driver"), [("postgresql", "asyncpg")], indirect=["sql_url"])
def test_other_tasks_and_threads_send_as_usual(shop: Shop, sql_url: str, driver: str) -> None:
    async def other(n: int) -> None:
        shop.plain.delay(n)

    async def send() -> None:
        async with begun(driver, sql_url) as one, shop.sticky.outbox(one):
            await asyncio.create_task(other(1))
            await asyncio.to_thread(shop.plain.delay, 2)
            shop.plain.delay(3)
            assert shop.sent() == [1, 2]
            raise End

    with suppress(End):
        asyncio.run(send())
    assert shop.sent() == [1, 2]


@pytest.mark.parametrize(("sql_url", "driver"), [("postgresql", "asyncpg")], indirect=["sql_url"])
def test_an_inner_block_of_the_same_session_keeps_the_order(shop: Shop, sql_url: str, driver: str) -> None:
    async def send() -> None:
        async with begun(driver, sql_url) as one, shop.sticky.outbox(one):
            shop.plain.delay(1)
            async with shop.sticky.outbox(one):
                shop.plain.delay(2)
            shop.plain.delay(3)

    asyncio.run(send())
    assert shop.sent() == [1, 2, 3]


@EVERY
def test_a_failure_of_the_block_is_not_hidden(shop: Shop, sql_url: str, driver: str) -> None:
    async def send() -> None:
        async with begun(driver, sql_url) as one, shop.sticky.outbox(one):
            shop.plain.delay(1)
            with suppress(Exception):  # PostgreSQL refuses everything from here on
                if driver.startswith("raw"):
                    await one.execute("SELECT nonsense")
                else:
                    await one.execute(text("SELECT nonsense"))
            raise End

    with pytest.raises(End) as ended:
        asyncio.run(send())
    assert shop.sent() == []
    if not sql_url.startswith("sqlite"):
        assert "the tasks that the block had sent were not written" in ended.value.__notes__[0]


@RAW
def test_a_block_that_outlives_its_transaction_says_so(shop: Shop, sql_url: str, driver: str) -> None:
    async def send() -> None:
        if driver == "raw asyncpg":
            connection = await asyncpg.connect(sql_url)
            transaction = connection.transaction()
            await transaction.start()
        else:
            connection = await psycopg.AsyncConnection.connect(sql_url, autocommit=True)
            await connection.execute("BEGIN")
            transaction = connection
        box = await shop.sticky.outbox(connection).__aenter__()
        shop.plain.delay(1)
        await transaction.commit()
        with pytest.raises(OutboxRefused, match="the transaction ended before the outbox, and 1 task"):
            await box.__aexit__(None, None, None)
        await connection.close()

    asyncio.run(send())
    assert shop.sent() == []


@pytest.mark.parametrize("sql_url", ["sqlite"], indirect=True)
def test_the_wrong_kind_of_with_is_refused(shop: Shop, sql_url: str) -> None:
    async def send() -> None:
        async with begun("aiosqlite", sql_url) as one:
            with pytest.raises(OutboxRefused, match="write `async with"), shop.sticky.outbox(one):
                pass
        with closing(plain("sqlite3", sql_url)) as raw, pytest.raises(OutboxRefused, match="write `with"):
            async with shop.sticky.outbox(raw):
                pass

    asyncio.run(send())


@pytest.mark.parametrize("sql_url", ["sqlite"], indirect=True)
def test_another_database_is_refused_by_both_names(shop: Shop, sql_url: str, tmp_path: Path) -> None:
    async def send() -> None:
        async with begun("aiosqlite", f"sqlite:///{tmp_path}/other.db") as one:
            with pytest.raises(OutboxRefused, match=r"/other\.db, the broker is .*/queues\.db"):
                async with shop.sticky.outbox(one):
                    pass

    asyncio.run(send())


@pytest.mark.parametrize("sql_url", ["postgresql"], indirect=True)
def test_a_connection_without_a_transaction_is_refused(shop: Shop, sql_url: str) -> None:
    async def send() -> None:
        connection = await asyncpg.connect(sql_url)
        with pytest.raises(OutboxRefused, match="has no transaction"):
            async with shop.sticky.outbox(connection):
                pass
        await connection.close()

    asyncio.run(send())
