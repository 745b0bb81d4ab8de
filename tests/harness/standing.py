"""The server that stands on this machine, for one test session at a time; the others start their own.

`STICKY_TEST_REDIS` chooses: unset takes the Redis on its standard port where one answers (with `CI` set, it must), an
address takes that server (it must answer), `embedded` takes none.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

STANDARD = "redis://127.0.0.1:6379"
MARK = "celery-sticky:this-database-is-for-tests"


def standing_server(environ: Mapping[str, str]) -> str | None:
    """Return the address (without database) of the server to use, or None to start one."""
    wanted = environ.get("STICKY_TEST_REDIS", "")
    if wanted == "embedded":
        return None
    url = (wanted or STANDARD).rstrip("/")
    if answers(url):
        return url
    if wanted or environ.get("CI"):
        pytest.fail(f"no Redis answers on {url}, and this run must have one", pytrace=False)
    return None


def answers(url: str) -> bool:
    """Return whether a server at `url` answers a ping."""
    with redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2, retry=Retry(NoBackoff(), 0)) as client:
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False


@contextmanager
def claimed_database(url: str) -> Iterator[str | None]:
    """Claim the server for this test session and give the address of a database of it; None if another has it.

    The whole server is claimed, not a database: client tracking tells of keys of the same name in every database and
    of every FLUSHDB, pub/sub has no databases, and the server's counters count everybody. The database is one of 1 to
    15 that is empty or that an earlier session marked: on a developer's machine the others hold somebody's data.
    """
    name = "".join(letter if letter.isalnum() else "-" for letter in url.rpartition("@")[2])
    with (Path(tempfile.gettempdir()) / f"celery-sticky-tests-{name}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        address = next(filter(_is_ours, (f"{url}/{number}" for number in range(1, 16))), None)
        yield address
        if address is not None:
            with redis.Redis.from_url(address) as client:
                client.flushdb()


def clear(address: str) -> None:
    """Empty a claimed database, but for its mark."""
    with redis.Redis.from_url(address) as client:
        client.flushdb()
        client.set(MARK, os.getpid())


def _is_ours(address: str) -> bool:
    with redis.Redis.from_url(address) as client:
        return client.dbsize() == 0 or bool(client.exists(MARK))
