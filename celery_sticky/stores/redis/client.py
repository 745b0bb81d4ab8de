"""The base of Redis store clients, without their verbs: it runs scripts and receives signals.

Rule: a verb is one script, and a script is sent once. The stores of one `Server` share its connection.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from celery_sticky.errors import RecordUnusable, StickyError, StoreRefused, StoreUnavailable
from celery_sticky.redis_clients import client_from_connection, key_prefix
from celery_sticky.redis_errors import Cure, describe, refusal_of
from celery_sticky.redis_resp import Argument, ServerError, is_unknown_script, pack
from celery_sticky.redis_wire import HELLO, Wire
from celery_sticky.stores.redis.subscription import Subscription
from celery_sticky.stores.shared import each

if TYPE_CHECKING:
    from kombu import Connection

Heard = TypeVar("Heard")
"""A signal."""
Answer = TypeVar("Answer")
AT_ONCE = 500
"""Number of requests in one round trip: their replies must fit into the buffers between us and the server."""
Types = Mapping[str, str]
"""The keys that might hold foreign data, each with the type it should have."""


class Server:
    """The connection to one server, for requests and signals."""

    def __init__(self, connection: Connection, *, prefix: str, socket_timeout: float) -> None:
        self.at = connection.as_uri()
        self.prefix = f"{key_prefix(connection)}{prefix}"
        self.socket_timeout = socket_timeout
        self.client = client_from_connection(connection, socket_timeout=socket_timeout, protocol=2)
        """For requests that block at the server. It has connections of its own."""
        self.database = self.client.connection_pool.connection_kwargs["db"]
        self.subscription = Subscription()
        self.wire = Wire(
            self.client,
            socket_timeout,
            self.subscription.hear,
            setup=(HELLO,),
            unavailable=StoreUnavailable,
            at=self.at,
        )

    def run(self, text: str, keys: Sequence[str], args: Sequence[Argument], types: Types) -> Any:
        """Run a script and return its reply."""
        with self.asking(types):
            self.wire.listen()
            [reply] = self.wire.call(pack("EVALSHA", _digest(text), len(keys), *keys, *args))
            if is_unknown_script(reply):
                [reply] = self.wire.call(pack("EVAL", text, len(keys), *keys, *args))
            return self.accepted(reply)

    def run_each(self, text: str, calls: Sequence[Sequence[str]], args: Sequence[Argument]) -> Sequence[object]:
        """Run a script once for each sequence of keys, in one round trip; return the replies, refusals too."""
        with self.asking({}):
            self.wire.listen()
            replies = self.wire.call(*[pack("EVALSHA", _digest(text), len(keys), *keys, *args) for keys in calls])
            if any(is_unknown_script(reply) for reply in replies):
                replies = self.wire.call(*[pack("EVAL", text, len(keys), *keys, *args) for keys in calls])
            return replies

    def run_many(
        self, text: str, keys: Sequence[str], calls: Sequence[Sequence[Argument]], types: Types
    ) -> list[object]:
        """Run a script once for each sequence of arguments, in one round trip; return the replies, refusals too."""
        with self.asking(types):
            self.wire.listen()
            replies = self.wire.call(*[pack("EVALSHA", _digest(text), len(keys), *keys, *args) for args in calls])
            for i, reply in enumerate(replies):
                if is_unknown_script(reply):
                    [replies[i]] = self.wire.call(pack("EVAL", text, len(keys), *keys, *calls[i]))
            return replies

    def accepted(self, reply: object) -> object:
        """Return the reply, unless it is a refusal."""
        if isinstance(reply, ServerError):
            raise StoreUnavailable(f"{self.at}: {describe(str(reply))}") from reply
        return reply

    @contextmanager
    def asking(self, types: Types) -> Iterator[None]:
        """Tell refusals from silence; drop the connections to a server that cannot serve us."""
        try:
            yield
        except StoreUnavailable as error:
            refusal = refusal_of(error.__cause__ or error)
            if refusal is None:
                raise
            if refusal.drops:
                # A server that was demoted keeps its clients: without reconnecting, they would stay with it forever.
                self.wire.drop()
                self.client.connection_pool.disconnect()
            if refusal.cure is Cure.KEY:
                raise RecordUnusable(f"{error}{self._strangers(types)}") from error.__cause__
            raise StoreRefused(str(error)) from error.__cause__

    def close(self) -> None:
        """Close every connection. May be called twice."""
        self.wire.close()

    def _strangers(self, types: Types) -> str:
        """Name the keys that hold a value of the wrong type."""
        with suppress(StoreUnavailable):
            kinds = self.wire.call(*(pack("TYPE", key) for key in types))
            wrong = [
                f"{key} is a {kind}, not a {right}"
                for (key, right), kind in zip(types.items(), kinds, strict=True)
                if kind not in ("none", right) and not isinstance(kind, ServerError)
            ]
            return f" ({', '.join(wrong)})" if wrong else ""
        return ""


class Client(Generic[Heard]):
    """A store: runs scripts by their verb, and listens on `<root>:signals:<db>`: databases share their channels."""

    def __init__(
        self, server: Server, root: str, scripts: Mapping[str, str], types: Types, keys: Sequence[str] = ()
    ) -> None:
        """`keys` are those of the verbs that `each` runs."""
        self._server, self._types, self._scripts, self._keys = server, types, scripts, keys
        self._channel = f"{root}:signals:{server.database}"

    def watch(self, timeout: float) -> Sequence[Heard]:
        """See the store's `watch`."""
        server = self._server
        with server.asking(self._types):
            if not server.subscription.listens(server.wire, self):
                refusal = server.subscription.add(server.wire, self, self._channel, self._parse)
                server.accepted(refusal)
                return []
            server.subscription.wait(server.wire, timeout)
            return server.subscription.take(self)

    def wake(self) -> None:
        """See the store's `wake`."""
        self._server.wire.wake()

    def close(self) -> None:
        """See the store's `close`. Call it only if no other store shares the connections."""
        self._server.close()

    def _parse(self, payload: bytes) -> Heard | None:
        """Return the signal in a payload; None if it is not for this store, or this release does not know it."""
        raise NotImplementedError

    def _run(self, verb: str, keys: Sequence[str], args: Sequence[Any] = ()) -> Any:
        return self._server.run(self._scripts[verb], keys, args, self._types)

    def _run_many(self, verb: str, keys: Sequence[str], calls: Sequence[Sequence[Any]]) -> list[Any]:
        """Run a verb for each sequence of arguments; return the replies, each perhaps the `StickyError` that it is."""
        replies: list[object] = []
        for first in range(0, len(calls), AT_ONCE):
            replies += self._server.run_many(self._scripts[verb], keys, calls[first : first + AT_ONCE], self._types)
        return each(replies, self._accepted)

    @classmethod
    def each(
        cls, stores: Sequence[Self], verb: str, read: Callable[[Self, Any], Answer], args: Sequence[Argument] = ()
    ) -> Sequence[Answer | StickyError]:
        """Run a verb of several stores of one server, with the same arguments; see `SharedClient.read_each`."""
        if not stores:
            return []
        try:
            script = stores[0]._scripts[verb]
            replies = stores[0]._server.run_each(script, [store._keys for store in stores], args)
        except StoreRefused as error:
            return [error] * len(stores)
        return each(zip(stores, replies, strict=True), lambda pair: read(pair[0], pair[0]._accepted(pair[1])))

    def _accepted(self, reply: object) -> Any:
        with self._server.asking(self._types):
            return self._server.accepted(reply)


@cache
def script(package: str, *names: str) -> str:
    """Return the texts of the scripts `<name>.lua` of a package, concatenated."""
    return "".join(files(package).joinpath(f"{name}.lua").read_text(encoding="utf-8") for name in names)


@cache
def _digest(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
