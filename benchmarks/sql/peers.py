"""Task queues of others on PostgreSQL. They are no dependencies: a side is left out unless its package is there.

    python -m benchmarks.sql.peers procrastinate URL

is a worker. Both run coroutines in one event loop, so their tasks are the cheapest that they have.
"""

# They are not installed where types are checked.
# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator"

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.app import LOG
from benchmarks.sql.engines import Engine
from benchmarks.sql.sides import Side, Start
from benchmarks.workers import Pool, started

CONCURRENCY = 8
BATCH = 50
PIECE = 500
"""Tasks that are added at a time."""


def on_procrastinate(engine: Engine, *, locked: bool) -> Side:
    """Return procrastinate; with `locked` each key is a lock, and tasks of one key run one at a time, in order."""

    @contextmanager
    def loaded(backlog: int, keys: int) -> Iterator[Start]:
        with engine.fresh() as url:
            asyncio.run(_fill_procrastinate(url, backlog, keys if locked else 0))
            yield partial(_worker, "procrastinate", url)

    name = "procrastinate, a lock for each key" if locked else "procrastinate, no locks"
    return Side("procrastinate", name, 1500, loaded, engine.cpu)


def on_pgqueuer(engine: Engine) -> Side:
    """Return pgqueuer, which has no keys."""

    @contextmanager
    def loaded(backlog: int, keys: int) -> Iterator[Start]:
        with engine.fresh() as url:
            asyncio.run(_fill_pgqueuer(url, backlog))
            yield partial(_worker, "pgqueuer", url)

    return Side("pgqueuer", f"pgqueuer, batches of {BATCH}", 30_000, loaded, engine.cpu)


def _worker(kind: str, url: str, pool: Pool, log: Path) -> Any:
    return started([sys.executable, "-m", "benchmarks.sql.peers", kind, url], {LOG: str(log)})


# -- procrastinate -----------------------------------------------------------------------------


def _procrastinate(url: str) -> tuple[Any, Any]:
    """Return an app and its task."""
    import procrastinate

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))

    @app.task(name="count")
    async def count(key: str) -> None:
        _count()

    return app, count


async def _fill_procrastinate(url: str, backlog: int, locks: int) -> None:
    app, task = _procrastinate(url)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        if not locks:
            for begin in range(0, backlog, PIECE):
                await task.batch_defer_async(*({"key": "k"} for _ in range(min(PIECE, backlog - begin))))
        for number in range(backlog if locks else 0):
            key = f"k{number % locks}"
            await task.configure(lock=key).defer_async(key=key)


async def _run_procrastinate(url: str) -> None:
    app, _ = _procrastinate(url)
    async with app.open_async():
        await app.run_worker_async(concurrency=CONCURRENCY, delete_jobs="successful")


# -- pgqueuer ----------------------------------------------------------------------------------


async def _fill_pgqueuer(url: str, backlog: int) -> None:
    import asyncpg
    from pgqueuer import AsyncpgDriver, Queries

    connection = await asyncpg.connect(url)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    for begin in range(0, backlog, PIECE):
        size = min(PIECE, backlog - begin)
        await queries.enqueue(["count"] * size, [b"k"] * size, [0] * size)
    await connection.close()


async def _run_pgqueuer(url: str) -> None:
    import asyncpg
    from pgqueuer import AsyncpgDriver, PgQueuer

    queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(url)))

    @queue.entrypoint("count")
    async def count(job: Any) -> None:
        _count()

    await queue.run(batch_size=BATCH)


def _count() -> None:
    os.write(_log, b".")


if __name__ == "__main__":
    _, kind, url = sys.argv
    _log = os.open(os.environ[LOG], os.O_WRONLY | os.O_APPEND)
    asyncio.run({"procrastinate": _run_procrastinate, "pgqueuer": _run_pgqueuer}[kind](url))
