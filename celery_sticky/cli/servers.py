"""`doctor`'s checks of the servers: their configuration, and messages that no worker will fetch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import redis

from celery_sticky.cli.checkup import Finding, guarded, note, wrong
from celery_sticky.cli.session import IO_TIMEOUT, Session
from celery_sticky.errors import BrokerUnavailable
from celery_sticky.keys import HASH_NAME, Slot, slot_of_queue
from celery_sticky.queues.redis import Layout
from celery_sticky.redis_clients import client_from_connection, close_client, harm_of, is_redis, translate_errors
from celery_sticky.redis_errors import NO_CLUSTER

OURS = re.compile(r":(flight|deferred|fence|marks|big|ahead|body:.*)$")
"""Suffixes of the keys of a slot queue, after the name of the queue."""
Facts = Mapping[str, Any]
NEARLY_FULL = 0.9
CONFIG = ("maxmemory-policy", "appendonly", "save", "min-replicas-to-write", "min-replicas-max-lag")


def server_facts(connection: Any) -> dict[str, Any]:
    """Return facts about a server. A fact it refuses to tell is None; without INFO most facts are missing.

    Raises:
        BrokerUnavailable: the server does not answer.
    """
    facts: dict[str, Any] = {"url": connection.as_uri(), "prefix": connection.transport_options.get("global_keyprefix")}
    if not is_redis(connection):
        return facts
    client = client_from_connection(connection, socket_timeout=IO_TIMEOUT, decode_responses=True, protocol=2)
    try:
        with translate_errors(BrokerUnavailable):
            client.ping()
            info = _told(client.info)
            config = _config(client)
    finally:
        close_client(client)
    if "run_id" not in info:
        return {**facts, "untold": "INFO", "wakes_clients": _wakes(connection)}
    name = "Valkey" if "valkey_version" in info else "Redis"
    return {
        **facts,
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
        "wakes_clients": _wakes(connection),
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


def _wakes(connection: Any) -> bool:
    """Return True if the server supports client tracking, which tells the slot queues that a key has changed."""
    client = client_from_connection(connection, socket_timeout=IO_TIMEOUT, protocol=3)
    try:
        return bool(client.client_tracking_on())
    except redis.RedisError:
        return False
    finally:
        close_client(client)


def server_findings(what: str, facts: Facts, settings: Any) -> Iterable[Finding]:
    """Yield the findings about one server's facts."""
    if "error" in facts:
        yield wrong(f"{what}: {facts['error']}")
        return
    if "untold" in facts:
        yield wrong(
            f"{what}: the command INFO is refused. Workers need it to detect a restarted server and do not join; allow "
            "it with ACL SETUSER … +info"
        )
        return
    if "server" not in facts:
        yield note(f"{what}: {facts['url']} works within one process only; use it for tests")
        return
    policy = facts["maxmemory_policy"]
    if policy not in (None, "noeviction"):
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
        yield from _replication(what, facts, settings.lease_ttl - settings.lease_margin)
    if not facts["wakes_clients"]:
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


def leftovers(session: Session) -> Iterable[Finding]:
    """Look for messages that no worker will fetch: in slots beyond the last one, and in keyspaces without members."""
    return guarded("slot queues", _leftovers(session))


def _leftovers(session: Session) -> Iterable[Finding]:
    if not is_redis(session.broker):
        return
    yield from _former_steps(session)
    standing, broken = _standing(session)
    for (keyspace, slot), error in sorted(broken.items(), key=str):
        yield wrong(f"keyspace {keyspace}: slot {slot} is blocked: {error}. Repair or delete that key")
    for keyspace in sorted({keyspace for keyspace, _ in standing}):
        yield from guarded(f"slot queues of keyspace {keyspace}", _left_in(session, keyspace, standing))


def _left_in(session: Session, keyspace: str, standing: Counter[tuple[str, Slot]]) -> Iterable[Finding]:
    reading = session.store(keyspace).read()
    slots = session.slots_of(keyspace, reading)
    beyond = sorted(n for name, n in standing if name == keyspace and isinstance(n, int) and n >= slots)
    if beyond:
        count = sum(standing[keyspace, slot] for slot in beyond)
        yield wrong(
            f"keyspace {keyspace}: {count} messages are in {len(beyond)} slot queues from number {beyond[0]} on, but "
            f"it has {slots} slots: the senders use another sticky_slots"
        )
    worker_queue = sum(count for (name, slot), count in standing.items() if name == keyspace and isinstance(slot, str))
    if worker_queue and reading.view and reading.view.hash == HASH_NAME:
        yield wrong(
            f"keyspace {keyspace}: {worker_queue} messages are in worker queues, from a time when it was a placed "
            "keyspace: no worker reads these queues. Restore the old declaration until they have run"
        )
    inside = sum(count for (name, slot), count in standing.items() if name == keyspace and slot not in beyond)
    if inside and not (reading.view and reading.view.members):
        yield wrong(f"keyspace {keyspace}: {inside} messages wait, but no worker takes part in it")


def _former_steps(session: Session) -> Iterable[Finding]:
    """Look for messages with priorities that these settings do not use, because `priority_steps` was changed."""
    layout = Layout.of(session.broker, session.settings.key_prefix)
    client = client_from_connection(session.broker, socket_timeout=IO_TIMEOUT, decode_responses=True, protocol=2)
    pattern = f"{_literal(layout.key_prefix + layout.prefix)}.*{_literal(layout.separator)}*"
    try:
        with translate_errors(BrokerUnavailable):
            lists = [
                name.removesuffix(":ahead").rpartition(layout.separator)[2] for name in client.scan_iter(match=pattern)
            ]
    finally:
        close_client(client)
    former = Counter(step for step in lists if step not in map(str, layout.steps))
    if former:
        yield wrong(
            f"{former.total()} slot queues hold messages of priorities {', '.join(sorted(former))}, which are not in "
            f"priority_steps {list(layout.steps)}: use the same steps for all senders and workers. A worker fetches "
            "such messages when it opens their slot"
        )


def _standing(session: Session) -> tuple[Counter[tuple[str, Slot]], dict[tuple[str, Slot], str]]:
    """Count the messages of all slot queues at the broker, also in keyspaces this app does not know.

    Returns the counts, and the slots with an unusable record together with the reason.
    """
    prefix = session.settings.key_prefix
    layout = Layout.of(session.broker, prefix)
    client = client_from_connection(session.broker, socket_timeout=IO_TIMEOUT, decode_responses=True, protocol=2)
    named: set[tuple[str, Slot]] = set()
    try:
        with translate_errors(BrokerUnavailable):
            for found in client.scan_iter(match=f"{_literal(layout.key_prefix + prefix)}.*", count=1000):
                name = found.removeprefix(layout.key_prefix).partition(layout.separator)[0]
                name = OURS.sub("", name)
                if (slot_id := slot_of_queue(name, prefix)) is not None:
                    named.add(slot_id)
    finally:
        close_client(client)
    counted: Counter[tuple[str, Slot]] = Counter()
    broken: dict[tuple[str, Slot], str] = {}
    for keyspace in {keyspace for keyspace, _ in named}:
        for slot, depth in session.queues.depth(keyspace, [slot for name, slot in named if name == keyspace]).items():
            if depth.broken:
                broken[keyspace, slot] = depth.broken
            if total := depth.waiting + depth.deferred + depth.in_flight:
                counted[keyspace, slot] = total
    return counted, broken


def _literal(text: str) -> str:
    """Return a SCAN pattern that matches only this text."""
    return "".join(f"\\{letter}" if letter in "*?[]\\^-" else letter for letter in text)
