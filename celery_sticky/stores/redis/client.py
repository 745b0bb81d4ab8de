"""A client of a store in Redis, without its verbs: it runs scripts and hears signals.

Rule: a verb is one script, and a script is sent once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from celery_sticky.errors import StoreUnavailable
from celery_sticky.redis_clients import client_from_connection, close_client, translate_errors
from celery_sticky.stores.redis.subscription import Subscription

if TYPE_CHECKING:
    from kombu import Connection

Heard = TypeVar("Heard")
"""A signal."""


class Client(Generic[Heard]):
    """Runs scripts by their verb, and listens on `<root>:signals:<db>` (databases share their channels)."""

    def __init__(
        self,
        connection: Connection,
        root: str,
        scripts: Mapping[str, str],
        parse: Callable[[bytes], Heard | None],
        socket_timeout: float,
    ) -> None:
        # RESP 2: what a subscription receives are plain answers.
        self._at = connection.as_uri()
        self._client = client_from_connection(connection, socket_timeout=socket_timeout, protocol=2)
        database = self._client.connection_pool.connection_kwargs["db"]
        self._channel = f"{root}:signals:{database}"
        self._scripts = {verb: self._client.register_script(text) for verb, text in scripts.items()}
        self._subscription = Subscription(self._client, self._channel, parse, socket_timeout)

    def watch(self, timeout: float) -> Sequence[Heard]:
        """See the store's `watch`."""
        with translate_errors(StoreUnavailable, self._at):
            return self._subscription.wait(timeout)

    def wake(self) -> None:
        """See the store's `wake`."""
        self._subscription.wake()

    def close(self) -> None:
        """See the store's `close`."""
        self._subscription.close()
        close_client(self._client)

    def _run(self, verb: str, keys: Sequence[str], args: Sequence[Any] = ()) -> Any:
        with translate_errors(StoreUnavailable, self._at):
            return self._scripts[verb](keys=keys, args=args)


def script(package: str, *names: str) -> str:
    """Return the text of the scripts `<name>.lua` of a package, one behind the other."""
    return "".join(files(package).joinpath(f"{name}.lua").read_text(encoding="utf-8") for name in names)
