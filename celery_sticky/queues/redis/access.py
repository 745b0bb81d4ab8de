"""The permissions a server user needs: printed as an ACL command, and checked for the user the app logs in as."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import redis

from celery_sticky.errors import BrokerUnavailable
from celery_sticky.findings import Finding, note, wrong
from celery_sticky.redis_clients import client_from_connection, close_client, key_prefix, translate_errors

KEY = "{key}"
# Each command has valid arguments: inside MULTI the server reports commands that are not allowed and runs none.
QUEUES_AND_STORE = """
del {key}; unlink {key}; exists {key}; type {key}; rename {key} {key}; persist {key}; expire {key} 1; pexpire {key} 1;
pexpireat {key} 1; set {key} 1; hget {key} a; hset {key} a 1; hsetnx {key} a 1; hdel {key} a; hmget {key} a;
hgetall {key}; hkeys {key}; hvals {key}; hlen {key}; hstrlen {key} a; hexists {key} a; hincrby {key} a 1; hscan {key} 0;
zadd {key} 1 a; zrem {key} a; zrange {key} 0 0; zrevrange {key} 0 0; zrangebyscore {key} 0 1; zcount {key} 0 1;
zcard {key}; zscore {key} a; zremrangebyscore {key} 0 1; zremrangebyrank {key} 0 1; llen {key}; lpush {key} a;
rpush {key} a; rpop {key}; lrange {key} 0 0; lindex {key} 0; ltrim {key} 0 0; lmove {key} {key} LEFT RIGHT;
sadd {key} a; srem {key} a; scard {key}; smembers {key}; spop {key}; xadd {key} * a 1; xdel {key} 1-1; xlen {key};
xrange {key} - +; xread STREAMS {key} 0; publish {key} a; time; eval ''  0;
evalsha {key} 0; script load ''; script exists a
"""
CELERY = """
get {key}; mget {key}; setex {key} 1 a; incr {key}; decr {key}; brpop {key} 1; lrem {key} 0 a;
zrevrangebyscore {key} 1 0; ping
"""
HELPS = {
    "memory usage {key}": "big messages are detected later, and block the server for longer",
    "info": "workers recognise a replaced store only by the data in it",
    "config get maxmemory": "doctor cannot show the server's configuration",
    "scan 0": "doctor cannot look for messages that no worker fetches",
    "client tracking on": "idle workers poll for messages",
}
ONLY_OUTSIDE = {
    *("multi", "exec", "discard", "watch", "unwatch", "select", "hello"),
    *("subscribe", "psubscribe", "unsubscribe", "punsubscribe"),
}
"""Commands that are needed too, but that no server accepts or checks inside MULTI."""


def _commands(text: str) -> list[list[str]]:
    return [part.split() for part in text.replace("\n", " ").split(";") if part.strip()]


def _every() -> list[str]:
    return [" ".join(one) for one in (*_commands(QUEUES_AND_STORE), *_commands(CELERY))] + list(HELPS)


def _named(command: list[str]) -> str:
    # Subcommands are named one by one: servers differ in them, and an ACL refuses subcommands it does not know.
    return f"{command[0]}|{command[1]}" if command[0] in ("config", "script") else command[0]


def needed() -> list[str]:
    """Return the commands that a user must be allowed to run, as named in an ACL."""
    return sorted({*(_named(text.split()) for text in _every()), *ONLY_OUTSIDE})


def line(user: str = "celery") -> str:
    """Return the command that creates a user with exactly the needed permissions."""
    return f"ACL SETUSER {user} on >PASSWORD ~* &* -@all " + " ".join(f"+{name}" for name in needed())


def access_findings(what: str, connection: Any, *, prefix: str, socket_timeout: float) -> Iterable[Finding]:
    """Try the needed commands as the user the app logs in as. This changes nothing.

    Raises:
        BrokerUnavailable: the server does not answer.
    """
    key = f"{key_prefix(connection)}{prefix}.doctor"
    client = client_from_connection(connection, socket_timeout=socket_timeout, decode_responses=True, protocol=2)
    taken: Any = client.connection_pool.make_connection()
    try:
        with translate_errors(BrokerUnavailable):
            refused = {text: _refused(taken, text.replace(KEY, key).split()) for text in _every()}
    finally:
        taken.disconnect()
        close_client(client)
    missing = [_named(text.split()) for text, is_refused in refused.items() if is_refused and text not in HELPS]
    if missing:
        yield wrong(f"{what}: this user may not run {', '.join(sorted(set(missing)))}. Create one that may: {line()}")
    for text, meaning in HELPS.items():
        if refused[text]:
            yield note(f"{what}: this user may not run {_named(text.split())}: {meaning}")


def _refused(connection: Any, command: list[str]) -> bool:
    """Return True if the ACL forbids a command. It is sent inside MULTI, which is then discarded."""
    forbidden = False
    for words in (["MULTI"], command, ["DISCARD"]):
        connection.send_command(*words)
        try:
            connection.read_response()
        except redis.exceptions.NoPermissionError:
            forbidden = forbidden or words is command
        except redis.ResponseError:  # the server does not know the command, or not inside MULTI
            continue
    return forbidden
