"""A Redis or Valkey that was not started here, and what can be asked of any of them by its URL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import redis
from kombu import Connection

from celery_sticky.errors import BrokerUnavailable
from celery_sticky.redis_clients import client_from_connection, close_client, is_redis, translate_errors
from celery_sticky.testing.servers.base import Ability, lacks_of_given

TIMEOUT = 5.0
"""Seconds the server may take to answer."""


class RedisRecords:
    """The verbs of every Redis: they need its URL only."""

    @property
    def url(self) -> str:
        """The address in Celery's form."""
        raise NotImplementedError

    def options(self, prefix: str = "") -> Mapping[str, Any]:
        """Return the transport options that go with `url`; with them, every key starts with `prefix`."""
        return {"global_keyprefix": prefix}

    def clear(self, prefix: str = "") -> None:
        """Delete every key that starts with `prefix`."""
        with self._client() as client:
            for name in client.scan_iter(match=f"{prefix}*", count=1000):
                client.delete(name)

    def find(self, texts: Iterable[str], prefix: str = "") -> set[str]:
        """Return those of `texts` that stand in some record whose key starts with `prefix`."""
        with self._client() as client:
            stored = b"\n".join(_values(client, prefix))
        return {text for text in texts if text.encode() in stored}

    @contextmanager
    def _client(self) -> Iterator[redis.Redis]:
        connection = Connection(self.url, transport_options=dict(self.options()))
        client = client_from_connection(connection, socket_timeout=TIMEOUT)
        try:
            with translate_errors(BrokerUnavailable, connection.as_uri()):
                yield client
        finally:
            close_client(client)


class GivenRedis(RedisRecords):
    """A server that others may use too, so that no fault may hit it."""

    supported: ClassVar[str] = "Redis and Valkey (redis://, rediss://, redis+socket://, sentinel://)"

    def __init__(self, url: str, role: str = "server") -> None:
        self._url, self._role = url, role

    @classmethod
    def fits(cls, url: str) -> bool:
        """Return whether Kombu reaches this URL as a Redis."""
        try:
            return is_redis(Connection(url))
        except (KeyError, ImportError):  # Kombu knows no such transport
            return False

    @property
    def url(self) -> str:
        """The address in Celery's form."""
        return self._url

    @property
    def lacks(self) -> Mapping[Ability, str]:
        """See `lacks_of_given`."""
        return lacks_of_given(self._url, self._role)

    def teardown(self) -> None:
        """Leave the server as it is."""


def _values(client: Any, prefix: str) -> Iterator[bytes]:
    for name in client.scan_iter(match=f"{prefix}*", count=1000):
        with suppress(redis.RedisError):  # the key may have been deleted meanwhile
            match client.type(name):
                case b"list":
                    yield from client.lrange(name, 0, -1)
                case b"hash":
                    yield from client.hvals(name)
                case b"zset":
                    yield from client.zrange(name, 0, -1)
