"""Redis clients made from the settings of the app's own Kombu connection. Rule: no URL is parsed here.

Kombu's Redis channel turns a connection (`redis://`, `rediss://`, `redis+socket://`, `sentinel://`, and the
`broker_transport_options`) into a connection pool. We let it do just that, and change only what a client with a
deadline needs: short timeouts, and no retries of its own, so that no request is ever sent twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kombu.transport import virtual

from celery_sticky.errors import BrokerUnavailable, InvalidSettings, MissingDependency, StickyError
from celery_sticky.one_server import check_one_server
from celery_sticky.redis_errors import Cure, describe, refusal_of

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
    # They would stretch our timeouts while a managed server is under maintenance.
    NO_MAINTENANCE = {"maint_notifications_config": MaintNotificationsConfig(enabled=False)}

if TYPE_CHECKING:
    from kombu import Connection

MAX_CONNECTIONS = 4
SENTINEL_PARAMS = {"socket_timeout", "socket_connect_timeout", "retry", *NO_MAINTENANCE}
"""What the clients of the Sentinels themselves get of ours; each Sentinel that is down costs one timeout."""


def is_redis(connection: Connection) -> bool:
    """Whether Kombu reaches this broker through its Redis transport, or one derived from it."""
    return issubclass(connection.get_transport_cls(), Transport)


def key_prefix(connection: Connection) -> str:
    """Return what the app wants in front of every Redis key (`global_keyprefix`): clients made here do not add it."""
    return str(connection.transport_options.get("global_keyprefix") or "")


def client_from_connection(
    connection: Connection,
    *,
    socket_timeout: float,
    decode_responses: bool = False,
    protocol: int | None = None,
) -> redis.Redis:
    """Make a client with a small pool of its own; nothing is sent before the first command.

    It connects to where Kombu would (TLS, Sentinel, user, database, socket options), takes at most `socket_timeout`
    seconds to connect and as much for each answer, and never repeats a request.

    Raises:
        InvalidSettings: the connection is not one to Redis, or to several servers, or its transport options cannot be
            used.
    """
    if not is_redis(connection):
        raise InvalidSettings(f"not a Redis connection: {connection.as_uri()}")
    check_one_server(connection)
    params: dict[str, Any] = {
        "socket_timeout": socket_timeout,
        "socket_connect_timeout": socket_timeout,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
        # A PING before a command would only double the wait: each command has its own timeout.
        "health_check_interval": 0,
        "max_connections": MAX_CONNECTIONS,
        "decode_responses": decode_responses,
        **NO_MAINTENANCE,
    }
    if protocol is not None:
        params["protocol"] = protocol
    try:
        pool = _pool(connection, params)
    except ValueError as error:  # Kombu's answer to a bad database number, a missing master_name, ...
        raise InvalidSettings(f"the broker's transport options cannot be used: {error}") from error
    # As Kombu does: a streaming credential provider is told of the pool by the client.
    return redis.Redis(connection_pool=pool, credential_provider=pool.connection_kwargs.get("credential_provider"))


def harm_of(policy: str) -> str:
    """Return what a server with this `maxmemory-policy` deletes of ours when its memory is short."""
    if policy.startswith("volatile"):
        return "it deletes revokes, outcomes of jobs and big messages on their way to it"
    return "it deletes messages and ownership, and tasks are lost"


def eviction_policy(connection: Connection, *, socket_timeout: float) -> str | None:
    """Return what the server deletes when its memory is short (`noeviction`: nothing); None: it does not tell.

    Raises:
        BrokerUnavailable: it does not answer.
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
    """Drop every connection of a client made here, those to its Sentinels too. May be called twice."""
    client.connection_pool.disconnect()
    manager = getattr(client.connection_pool, "sentinel_manager", None)
    for sentinel in manager.sentinels if manager else ():
        sentinel.connection_pool.disconnect()


@contextmanager
def translate_errors(error_cls: type[StickyError], at: str = "Redis") -> Iterator[None]:
    """Turn whatever Redis or its network answers into `error_cls`: the caller can only wait and look again.

    `at` says whose answer it is: a timeout does not name its server.

    That includes refusals such as LOADING, READONLY or OOM: `redis_errors` tells what they mean. Not included:
    `redis.DataError`, an argument that cannot be sent.
    """
    try:
        yield
    except redis.DataError:
        raise
    except (redis.RedisError, OSError) as error:
        raise error_cls(f"{at}: {describe(error)}") from error


def _pool(connection: Connection, params: dict[str, Any]) -> redis.ConnectionPool:
    transport = connection.get_transport_cls()(client=connection)  # the app's own transport is left alone
    sentinel_params = {name: value for name, value in params.items() if name in SENTINEL_PARAMS}

    class Settings(transport.Channel):  # type: ignore[misc,name-defined]
        """Kombu's channel (5.5-5.7, `transport/redis.py`), as far as it reads settings: it does not connect."""

        def __init__(self) -> None:
            virtual.Channel.__init__(self, transport)  # takes the transport options; Redis' own would send a PING
            self.sentinel_kwargs = {**(getattr(self, "sentinel_kwargs", None) or {}), **sentinel_params}

        def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
            theirs = super()._connparams(asynchronous)
            ours = dict(params)
            if "path" in theirs:
                del ours["socket_connect_timeout"]  # a unix socket has none
            return {**theirs, **ours}

    pool: redis.ConnectionPool = Settings()._get_pool()
    return pool
