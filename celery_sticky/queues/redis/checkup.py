"""What `doctor` and a starting worker ask of a Redis or Valkey server: see `celery_sticky.drivers.Checkup`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import redis

from celery_sticky.errors import BrokerUnavailable
from celery_sticky.findings import Finding, note, wrong
from celery_sticky.queues.redis.access import access_findings as access_findings
from celery_sticky.queues.redis.hello import celery_needs_it, meaning, refusal_of_hello
from celery_sticky.queues.redis.standing import queue_findings as queue_findings
from celery_sticky.queues.redis.standing import slots as slots
from celery_sticky.redis_clients import (
    client_from_connection,
    close_client,
    eviction_policy,
    harm_of,
    translate_errors,
)
from celery_sticky.redis_errors import NO_CLUSTER

Facts = Mapping[str, Any]
NEARLY_FULL = 0.9
CONFIG = ("maxmemory-policy", "appendonly", "save", "min-replicas-to-write", "min-replicas-max-lag")
KEEPS = ("noeviction", None)
"""The eviction policies under which the server deletes nothing; None: the server does not report it."""


def warning(connection: Any, *, socket_timeout: float) -> str | None:
    """Warn of a server that deletes keys when it runs out of memory, or that refuses RESP3."""
    found = []
    if (said := refusal_of_hello(connection, socket_timeout=socket_timeout)) is not None:
        found.append(f"{connection.as_uri()} {meaning(said)}")
    policy = eviction_policy(connection, socket_timeout=socket_timeout)
    if policy not in KEEPS:
        found.append(
            f"{connection.as_uri()} has maxmemory-policy {policy}: when its memory is short {harm_of(policy)}; "
            "set it to noeviction"
        )
    return ". ".join(found) or None


def facts(connection: Any, *, socket_timeout: float) -> dict[str, Any]:
    """Return facts about a server. A fact it refuses to tell is None; without INFO most facts are missing.

    Raises:
        BrokerUnavailable: the server does not answer.
    """
    client = client_from_connection(connection, socket_timeout=socket_timeout, decode_responses=True, protocol=2)
    try:
        with translate_errors(BrokerUnavailable):
            client.ping()
            info = _told(client.info)
            config = _config(client)
    finally:
        close_client(client)
    hello = refusal_of_hello(connection, socket_timeout=socket_timeout)
    wakes = hello is None and _wakes(connection, socket_timeout)
    if "run_id" not in info:
        return {"untold": "INFO", "wakes_clients": wakes, "hello_refused": hello}
    name = "Valkey" if "valkey_version" in info else "Redis"
    return {
        "server": f"{name} {info.get('valkey_version') or info['redis_version']}",
        "redis_version": info["redis_version"],
        "run_id": info["run_id"],
        "role": info.get("role"),
        "maxmemory": info.get("maxmemory"),
        "maxmemory_policy": info.get("maxmemory_policy", config.get("maxmemory-policy")),
        "appendonly": bool(info["aof_enabled"]) if "aof_enabled" in info else None,
        "save": config.get("save"),
        "used_memory": info.get("used_memory"),
        "cluster": bool(info.get("cluster_enabled")),
        "replicas": info.get("connected_slaves"),
        "min_replicas_to_write": _number(config.get("min-replicas-to-write")),
        "min_replicas_max_lag": _number(config.get("min-replicas-max-lag")),
        "wakes_clients": wakes,
        "hello_refused": hello,
    }


def _told(ask: Callable[[], Any]) -> dict[str, Any]:
    """Return the answer, or nothing if the server refuses: managed servers restrict such commands."""
    try:
        return dict(ask())
    except redis.ResponseError:
        return {}


def _config(client: redis.Redis) -> dict[str, str]:
    found = [_told(partial(client.config_get, wanted)) for wanted in CONFIG]
    return {str(name): str(value) for answer in found for name, value in answer.items()}


def _number(text: str | None) -> int | None:
    return int(text) if text is not None else None


def _wakes(connection: Any, socket_timeout: float) -> bool:
    """Return True if the server supports client tracking, which tells the slot queues that a key has changed."""
    client = client_from_connection(connection, socket_timeout=socket_timeout, protocol=3)
    try:
        return bool(client.client_tracking_on())
    except redis.RedisError:
        return False
    finally:
        close_client(client)


def findings(what: str, facts: Facts, *, trust: float) -> Iterable[Finding]:
    """Yield the findings about one server's facts."""
    if facts["hello_refused"] is not None:
        yield (wrong if celery_needs_it() else note)(f"{what}: the server {meaning(facts['hello_refused'])}")
    if "untold" in facts:
        yield wrong(
            f"{what}: the command INFO is refused. Workers need it to detect a restarted server and do not join; allow "
            "it with ACL SETUSER … +info"
        )
        return
    policy = facts["maxmemory_policy"]
    if policy not in KEEPS:
        yield wrong(
            f"{what}: maxmemory-policy is {policy}: when the server runs out of memory, {harm_of(policy)}; set it to "
            "noeviction"
        )
    yield from _memory(what, facts)
    if facts["cluster"]:
        yield wrong(f"{what}: {NO_CLUSTER}")
    if not facts["appendonly"] and not facts["save"]:
        yield note(f"{what}: neither append-only file nor snapshots are on: a restart loses every message")
    elif not facts["appendonly"]:
        yield note(f"{what}: the append-only file is off: a crash loses everything since the last snapshot")
    if facts["role"] not in (None, "master"):
        yield wrong(f"{what}: this server is a replica; connect to the primary")
    if facts["replicas"]:
        yield from _replication(what, facts, trust)
    if not facts["wakes_clients"] and facts["hello_refused"] is None:
        yield note(f"{what}: client tracking is refused: idle workers poll for messages instead")


def _memory(what: str, facts: Facts) -> Iterable[Finding]:
    used, most = facts["used_memory"], facts["maxmemory"]
    if not most or used is None or used < NEARLY_FULL * most:
        return
    how = f"{used / 2**20:.0f} of {most / 2**20:.0f} MB are used"
    if used < most:
        yield note(f"{what}: memory is nearly full ({how}); a full server refuses sends")
        return
    yield wrong(
        f"{what}: memory is full ({how}): sends, new jobs, notifications and results are refused; workers keep their "
        "leases and run waiting tasks. Raise maxmemory, or find out what fills it"
    )


def _replication(what: str, facts: Facts, trust: float) -> Iterable[Finding]:
    replicas, lag = facts["min_replicas_to_write"], facts["min_replicas_max_lag"]
    if replicas is not None and (not replicas or not lag or lag >= trust):
        yield note(
            f"{what}: this server has replicas; set min-replicas-to-write to 1 and min-replicas-max-lag below "
            f"{trust:g} s, so that a primary that is cut off refuses writes in time. A failover can still lose the "
            "last messages"
        )
