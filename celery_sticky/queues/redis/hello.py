"""Asks a server for the protocol RESP3 (`HELLO 3`), and says what a refusal means. It needs Redis 6 or Valkey."""

from __future__ import annotations

from typing import Any

import redis

from celery_sticky.errors import BrokerUnavailable
from celery_sticky.redis_clients import client_from_connection
from celery_sticky.redis_resp import ServerError
from celery_sticky.redis_wire import HELLO, Wire

REMEDY = (
    "Use Redis 6.2 or newer, or Valkey. If a proxy or an access list refuses HELLO, allow it there "
    "(ACL SETUSER … +hello)"
)


def refusal_of_hello(connection: Any, *, socket_timeout: float) -> str | None:
    """Return the server's words if it refuses RESP3, or None.

    Raises:
        BrokerUnavailable: the server does not answer.
    """
    client = client_from_connection(connection, socket_timeout=socket_timeout, protocol=2)
    wire = Wire(
        client, socket_timeout, lambda push: None, setup=(), unavailable=BrokerUnavailable, at=connection.as_uri()
    )
    try:
        [reply] = wire.call(HELLO)
    finally:
        wire.close()
    return str(reply) if isinstance(reply, ServerError) else None


def celery_needs_it() -> bool:
    """Return whether Celery's own connections ask for RESP3. Kombu leaves that to redis-py, which does from 8.0 on."""
    unconnected: Any = redis.Connection  # redis-py has no types here
    return str(getattr(unconnected(), "protocol", 2)) == "3"


def meaning(said: str) -> str:
    """Return what follows from a refusal, in these words, and the remedy."""
    harm = "idle workers poll for messages, and hear of changes of owner later"
    remedy = REMEDY
    if celery_needs_it():
        harm = f"redis-py {redis.__version__} cannot connect, and so Celery neither sends nor runs tasks"
        remedy = f"{REMEDY}; or install redis-py below 8, which does without it"
    return f"refuses HELLO ({said}): {harm}. {remedy}"
