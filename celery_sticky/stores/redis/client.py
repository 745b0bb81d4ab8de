"""The base of Redis store clients, without their verbs: it runs scripts and receives signals.

Rule: a verb is one script, and a script is sent once. The stores of one `Server` share its connections.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import redis

from celery_sticky.errors import RecordUnusable, StoreRefused, StoreUnavailable
from celery_sticky.redis_clients import client_from_connection, close_client, key_prefix, translate_errors
from celery_sticky.redis_errors import Cure, refusal_of
from celery_sticky.stores.redis.subscription import Subscription

if TYPE_CHECKING:
    from kombu import Connection

Heard = TypeVar("Heard")
"""A signal."""


class Server:
    """The connections to one server: one for requests, and one subscription."""

    def __init__(self, connection: Connection, *, prefix: str, socket_timeout: float) -> None:
        self.at = connection.as_uri()
        self.prefix = f"{key_prefix(connection)}{prefix}"
        self.socket_timeout = socket_timeout
        # RESP 2: what a subscription receives are plain replies.
        self.client = client_from_connection(connection, socket_timeout=socket_timeout, protocol=2)
        self.database = self.client.connection_pool.connection_kwargs["db"]
        self.subscription = Subscription(self.client, socket_timeout)

    @contextmanager
    def asking(self, types: Mapping[str, str]) -> Iterator[None]:
        """Translate errors; drop the connections to a server that cannot serve us.

        `types`: the keys that might hold foreign data, each with the type it should have.
        """
        try:
            with translate_errors(StoreUnavailable, self.at):
                yield
        except StoreUnavailable as error:
            refusal = refusal_of(error.__cause__ or error)
            if refusal is None:
                raise
            if refusal.drops:
                # A server that was demoted keeps its clients: without reconnecting, they would stay with it forever.
                self.subscription.disconnect()
                self.client.connection_pool.disconnect()
            if refusal.cure is Cure.KEY:
                raise RecordUnusable(f"{error}{self._strangers(types)}") from error.__cause__
            raise StoreRefused(str(error)) from error.__cause__

    def close(self) -> None:
        """Close every connection. May be called twice."""
        self.subscription.close()
        close_client(self.client)

    def _strangers(self, types: Mapping[str, str]) -> str:
        """Name the keys that hold a value of the wrong type."""
        with suppress(redis.RedisError, OSError):
            found: dict[str, Any] = {key: self.client.type(key) for key in types}
            wrong = [
                f"{key} is a {kind.decode()}, not a {types[key]}"
                for key, kind in found.items()
                if kind.decode() not in ("none", types[key])
            ]
            return f" ({', '.join(wrong)})" if wrong else ""
        return ""


class Client(Generic[Heard]):
    """A store: runs scripts by their verb, and listens on `<root>:signals:<db>`: databases share their channels."""

    def __init__(self, server: Server, root: str, scripts: Mapping[str, str], types: Mapping[str, str]) -> None:
        """`types`: see `Server.asking`."""
        self._server, self._types = server, types
        self._channel = f"{root}:signals:{server.database}"
        self._scripts = {verb: server.client.register_script(text) for verb, text in scripts.items()}

    def watch(self, timeout: float) -> Sequence[Heard]:
        """See the store's `watch`."""
        subscription = self._server.subscription
        with self._asking():
            if not subscription.listens(self):
                subscription.add(self, self._channel, self._parse)
                return []
            subscription.wait(timeout)
            return subscription.take(self)

    def wake(self) -> None:
        """See the store's `wake`."""
        self._server.subscription.wake()

    def close(self) -> None:
        """See the store's `close`. Call it only if no other store shares the connections."""
        self._server.close()

    def _parse(self, payload: bytes) -> Heard | None:
        """Return the signal in a payload; None if it is not for this store, or this release does not know it."""
        raise NotImplementedError

    def _run(self, verb: str, keys: Sequence[str], args: Sequence[Any] = ()) -> Any:
        with self._asking():
            return self._scripts[verb](keys=keys, args=args)

    def _asking(self) -> Any:
        return self._server.asking(self._types)


@cache
def script(package: str, *names: str) -> str:
    """Return the texts of the scripts `<name>.lua` of a package, concatenated."""
    return "".join(files(package).joinpath(f"{name}.lua").read_text(encoding="utf-8") for name in names)
