"""The server that stands on this machine, and a database of it that no other test session uses meanwhile.

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
    """Claim one of the databases 1 to 15 by a file lock and give its address; None if all are taken.

    A database is taken only if it is empty or an earlier test session marked it: on a developer's machine the others
    hold somebody's data.
    """
    for number in range(1, 16):
        path = Path(tempfile.gettempdir()) / f"celery-sticky-tests-db{number}.lock"
        with path.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            address = f"{url}/{number}"
            if not _is_ours(address):
                continue
            yield address
            with redis.Redis.from_url(address) as client:
                client.flushdb()
            return
    yield None


def clear(address: str) -> None:
    """Empty a claimed database, but for its mark."""
    with redis.Redis.from_url(address) as client:
        client.flushdb()
        client.set(MARK, os.getpid())


def _is_ours(address: str) -> bool:
    with redis.Redis.from_url(address) as client:
        return client.dbsize() == 0 or bool(client.exists(MARK))
