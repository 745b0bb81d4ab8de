"""The base of Redis store clients, without their verbs: it runs scripts and receives signals.

Rule: a verb is one script, and a script is sent once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import redis

from celery_sticky.errors import RecordUnusable, StoreRefused, StoreUnavailable
from celery_sticky.redis_clients import client_from_connection, close_client, translate_errors
from celery_sticky.redis_errors import Cure, refusal_of
from celery_sticky.stores.redis.subscription import Subscription

if TYPE_CHECKING:
    from kombu import Connection

Heard = TypeVar("Heard")
"""A signal."""


class Client(Generic[Heard]):
    """Runs scripts by their verb, and listens on `<root>:signals:<db>`, because databases share their channels."""

    def __init__(
        self,
        connection: Connection,
        root: str,
        scripts: Mapping[str, str],
        parse: Callable[[bytes], Heard | None],
        socket_timeout: float,
        types: Mapping[str, str],
    ) -> None:
        """`types`: the keys that might hold foreign data, each with the type it should have."""
        self._types = types
        # RESP 2: what a subscription receives are plain replies.
        self._at = connection.as_uri()
        self._client = client_from_connection(connection, socket_timeout=socket_timeout, protocol=2)
        database = self._client.connection_pool.connection_kwargs["db"]
        self._channel = f"{root}:signals:{database}"
        self._scripts = {verb: self._client.register_script(text) for verb, text in scripts.items()}
        self._subscription = Subscription(self._client, self._channel, parse, socket_timeout)

    def watch(self, timeout: float) -> Sequence[Heard]:
        """See the store's `watch`."""
        with self._asking():
            return self._subscription.wait(timeout)

    def wake(self) -> None:
        """See the store's `wake`."""
        self._subscription.wake()

    def close(self) -> None:
        """See the store's `close`."""
        self._subscription.close()
        close_client(self._client)

    def _run(self, verb: str, keys: Sequence[str], args: Sequence[Any] = ()) -> Any:
        with self._asking():
            return self._scripts[verb](keys=keys, args=args)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Translate errors; drop the connection to a server that cannot serve us."""
        try:
            with translate_errors(StoreUnavailable, self._at):
                yield
        except StoreUnavailable as error:
            refusal = refusal_of(error.__cause__ or error)
            if refusal is None:
                raise
            if refusal.drops:
                self._disconnect()
            if refusal.cure is Cure.KEY:
                raise RecordUnusable(f"{error}{self._strangers()}") from error.__cause__
            raise StoreRefused(str(error)) from error.__cause__

    def _disconnect(self) -> None:
        # A server that was demoted keeps its clients: without reconnecting, a client would stay with it forever.
        self._subscription.disconnect()
        self._client.connection_pool.disconnect()

    def _strangers(self) -> str:
        """Name the keys that hold a value of the wrong type."""
        with suppress(redis.RedisError, OSError):
            found: dict[str, Any] = {key: self._client.type(key) for key in self._types}
            wrong = [
                f"{key} is a {kind.decode()}, not a {self._types[key]}"
                for key, kind in found.items()
                if kind.decode() not in ("none", self._types[key])
            ]
            return f" ({', '.join(wrong)})" if wrong else ""
        return ""


def script(package: str, *names: str) -> str:
    """Return the texts of the scripts `<name>.lua` of a package, concatenated."""
    return "".join(files(package).joinpath(f"{name}.lua").read_text(encoding="utf-8") for name in names)
