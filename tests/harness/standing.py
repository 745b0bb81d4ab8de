"""The Redis that already runs on this machine. One test session at a time uses it; the others start their own server.

`STICKY_TEST_REDIS` selects it. Unset: the Redis on the standard port, if it answers (with `CI` set, it must answer).
An address: that server, which must answer. `embedded`: none, the session starts its own.
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
        pytest.fail(f"no Redis answers at {url}: start it, or set STICKY_TEST_REDIS=embedded", pytrace=False)
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
    """Claim the server for this test session and yield the address of one of its databases, or None if it is taken.

    The claim covers the whole server: client tracking reports every FLUSHDB and keys of the same name in all
    databases, pub/sub has no databases, and the server's counters include all clients. The database is one of 1 to
    15 that is empty or marked by an earlier session; the others may hold the data of a developer.
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
    """Empty a claimed database, except for its mark."""
    with redis.Redis.from_url(address) as client:
        client.flushdb()
        client.set(MARK, os.getpid())


def _is_ours(address: str) -> bool:
    with redis.Redis.from_url(address) as client:
        return client.dbsize() == 0 or bool(client.exists(MARK))
