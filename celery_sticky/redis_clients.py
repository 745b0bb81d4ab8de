"""Redis clients made from the settings of the app's own Kombu connection. This module parses no URLs.

Kombu's Redis channel turns a connection (`redis://`, `rediss://`, `redis+socket://`, `sentinel://`, and the
`broker_transport_options`) into a connection pool. We use that pool and change only what a client with a deadline
needs: short timeouts, and no retries, so that no request is ever sent twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kombu.transport import virtual

from celery_sticky.errors import BrokerUnavailable, InvalidSettings, MissingDependency, StickyError
from celery_sticky.one_server import check_one_server
from celery_sticky.redis_errors import LISTS, Cure, describe, refusal_of

try:
    import redis
    from kombu.transport.redis import Transport
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except (ImportError, AttributeError) as error:  # Kombu's module itself fails with an AttributeError without redis
    raise MissingDependency("the Redis client is not installed: pip install 'kombu[redis]'") from error

try:
    from redis.maint_notifications import MaintNotificationsConfig
except ImportError:  # redis-py below 7 has no such notifications
    NO_MAINTENANCE: dict[str, Any] = {}
else:
    # These notifications would extend our timeouts while a managed server is under maintenance.
    NO_MAINTENANCE = {"maint_notifications_config": MaintNotificationsConfig(enabled=False)}

if TYPE_CHECKING:
    from kombu import Connection

CLIENT_ERRORS: tuple[type[Exception], ...] = (redis.RedisError,)
"""The base of what the client library raises."""
MAX_CONNECTIONS = 4
SENTINEL_PARAMS = {"socket_timeout", "socket_connect_timeout", "retry", *NO_MAINTENANCE}
"""The parameters of ours that the clients of the Sentinels get too. Each Sentinel that is down costs one timeout."""


def is_redis(connection: Connection) -> bool:
    """Return True if Kombu reaches this broker through its Redis transport, or one derived from it."""
    return issubclass(connection.get_transport_cls(), Transport)


def key_prefix(connection: Connection) -> str:
    """Return the app's prefix for every Redis key (`global_keyprefix`). Clients made here do not add it."""
    return str(connection.transport_options.get("global_keyprefix") or "")


def client_from_connection(
    connection: Connection,
    *,
    socket_timeout: float,
    decode_responses: bool = False,
    protocol: int | None = None,
) -> redis.Redis:
    """Make a client with a small pool of its own. It sends nothing before the first command.

    The client connects as Kombu would (TLS, Sentinel, user, database, socket options). Connecting takes at most
    `socket_timeout` seconds, and so does each answer. The client never repeats a request.

    Raises:
        InvalidSettings: the connection is not to Redis, or is to several servers, or its transport options are invalid.
    """
    if not is_redis(connection):
        raise InvalidSettings(f"not a Redis connection: {connection.as_uri()}")
    check_one_server(connection, LISTS)
    params: dict[str, Any] = {
        "socket_timeout": socket_timeout,
        "socket_connect_timeout": socket_timeout,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
        # A PING before a command would double the wait without any gain: each command has its own timeout.
        "health_check_interval": 0,
        "max_connections": MAX_CONNECTIONS,
        "decode_responses": decode_responses,
        **NO_MAINTENANCE,
    }
    if protocol is not None:
        params["protocol"] = protocol
    try:
        pool = _pool(connection, params)
    except ValueError as error:  # Kombu raises it for a bad database number, a missing master_name, ...
        raise InvalidSettings(f"the broker's transport options are invalid: {error}") from error
    # Kombu passes the provider too: through the client, a streaming credential provider gets to know the pool.
    return redis.Redis(connection_pool=pool, credential_provider=pool.connection_kwargs.get("credential_provider"))


def harm_of(policy: str) -> str:
    """Return what a server with this `maxmemory-policy` deletes of ours when it runs out of memory."""
    if policy.startswith("volatile"):
        return "it deletes revokes, job outcomes and big messages that are being uploaded"
    return "it deletes messages and ownership records, and tasks are lost"


def eviction_policy(connection: Connection, *, socket_timeout: float) -> str | None:
    """Return the server's `maxmemory-policy`, or None if the server does not report it.

    Raises:
        BrokerUnavailable: the server does not answer.
    """
    client = client_from_connection(connection, socket_timeout=socket_timeout, decode_responses=True, protocol=2)
    try:
        with translate_errors(BrokerUnavailable, connection.as_uri()):
            info: Any = client.info("memory")
            policy: str | None = info.get("maxmemory_policy")
            return policy
    except BrokerUnavailable as error:
        refusal = refusal_of(error.__cause__ or error)
        if refusal is not None and refusal.cure is Cure.TELL:
            return None
        raise
    finally:
        close_client(client)


def close_client(client: redis.Redis) -> None:
    """Close every connection of a client made here, including those to its Sentinels. May be called twice."""
    client.connection_pool.disconnect()
    manager = getattr(client.connection_pool, "sentinel_manager", None)
    for sentinel in manager.sentinels if manager else ():
        sentinel.connection_pool.disconnect()


@contextmanager
def translate_errors(error_cls: type[StickyError], at: str = "Redis") -> Iterator[None]:
    """Turn every error of Redis or its network into `error_cls`. The caller can only wait and try again.

    `at` names the server in the message, because a timeout does not.

    This includes refusals such as LOADING, READONLY or OOM; `redis_errors` explains them. It does not include
    `redis.DataError`, which means that an argument cannot be sent.
    """
    try:
        yield
    except redis.DataError:
        raise
    except (redis.RedisError, OSError) as error:
        raise error_cls(f"{at}: {describe(error)}") from error


def _pool(connection: Connection, params: dict[str, Any]) -> redis.ConnectionPool:
    transport = connection.get_transport_cls()(client=connection)  # a new one: the app's own stays untouched
    sentinel_params = {name: value for name, value in params.items() if name in SENTINEL_PARAMS}

    class Settings(transport.Channel):  # type: ignore[misc,name-defined]
        """Kombu's channel (5.5-5.7, `transport/redis.py`), used only to read settings. It does not connect."""

        def __init__(self) -> None:
            virtual.Channel.__init__(self, transport)  # reads the options; Redis' own `__init__` would send a PING
            self.sentinel_kwargs = {**(getattr(self, "sentinel_kwargs", None) or {}), **sentinel_params}

        def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
            theirs = super()._connparams(asynchronous)
            ours = dict(params)
            if "path" in theirs:
                del ours["socket_connect_timeout"]  # a connection over a Unix socket does not accept it
            return {**theirs, **ours}

    pool: redis.ConnectionPool = Settings()._get_pool()
    return pool
