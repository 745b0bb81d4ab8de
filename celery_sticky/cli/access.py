"""What `doctor` finds about the rights of the Redis user: each command that is needed is tried, on a key of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import redis

from celery_sticky.cli.checkup import Finding, wrong
from celery_sticky.cli.session import PATIENCE
from celery_sticky.redis_clients import client_from_connection, close_client, key_prefix
from celery_sticky.redis_errors import refusal_of

SCRIPTED: Mapping[str, str] = {
    **dict.fromkeys(("HGETALL", "HKEYS", "HVALS", "HLEN", "LLEN", "SCARD", "SMEMBERS", "XLEN", "ZCARD"), ""),
    **dict.fromkeys(("EXISTS", "UNLINK", "PERSIST", "RPOP", "SPOP"), ""),
    **dict.fromkeys(("HGET", "HDEL", "HEXISTS", "HMGET", "HSTRLEN", "SADD", "SREM", "XDEL", "ZREM"), "x"),
    **dict.fromkeys(("LPUSH", "RPUSH", "SET", "ZSCORE", "HSCAN", "LINDEX"), "x"),
    **dict.fromkeys(("LRANGE", "LTRIM", "ZRANGE", "ZREVRANGE", "ZRANGEBYSCORE", "ZCOUNT"), "0 0"),
    **dict.fromkeys(("ZREMRANGEBYRANK", "ZREMRANGEBYSCORE", "XRANGE", "HSET", "HSETNX", "ZADD"), "0 0"),
    **dict.fromkeys(("EXPIRE", "PEXPIRE", "PEXPIREAT"), "9"),
    "HINCRBY": "x 1",
    "LMOVE": "{key} LEFT LEFT",
    "RENAME": "{key}",
    "XADD": "* x 0",
}
"""Commands that scripts use on a key → what follows it, so that the server looks whether they may. No other key is
touched."""
KEYLESS: Mapping[str, str] = {"TIME": "", "INFO": "server", "PUBLISH": "{channel} x", "MEMORY": "USAGE {key}"}
"""Other commands that scripts use → what follows."""
EVERYTHING = "~* &* +@read +@write +@connection +@pubsub +@scripting +@transaction +info +time"
"""What a user needs: the broker's, and that of a store of its own."""

PROBE = """
local denied = {}
for i = 1, #ARGV do
  local words = {}
  for word in string.gmatch(ARGV[i], '%S+') do
    words[#words + 1] = word
  end
  local reply = redis.pcall(unpack(words))
  if type(reply) == 'table' and reply.err then
    denied[#denied + 1] = words[1] .. ' ' .. reply.err
  end
end
redis.pcall('DEL', KEYS[1])
return denied
"""


def access_findings(what: str, connection: Any, prefix: str) -> Iterable[Finding]:
    """Look whether the user may do what workers, senders and commands do. It leaves nothing behind."""
    client = client_from_connection(connection, socket_timeout=PATIENCE, decode_responses=True, protocol=2)
    try:
        missing = _missing(client, key_prefix(connection) + prefix)
        user = _user(client, connection)
    finally:
        close_client(client)
    if missing:
        yield wrong(
            f"{what}: the user {user} may not do all that is needed: ACL SETUSER {user} {' '.join(missing)}"
            f" (or all at once: ACL SETUSER {user} {EVERYTHING})"
        )


def _missing(client: redis.Redis, root: str) -> list[str]:
    """Return the rules that are missing, in order, each once."""
    key, channel = f"{root}:doctor", f"{root}:signals:doctor"
    found: dict[str, None] = {}
    for command, ask in _direct(client, key, channel).items():
        try:
            ask()
        except redis.RedisError as error:
            found |= dict.fromkeys(_rules(command, str(error), error, root))
    tried = [f"{command} {{key}} {rest}" for command, rest in SCRIPTED.items()]
    tried += [f"{command} {rest}" for command, rest in KEYLESS.items()]
    tried = [words.format(key=key, channel=channel) for words in tried]
    with suppress(redis.RedisError):  # said above: the user may run no scripts
        reply: Any = client.eval(PROBE, 1, key, *tried)
        for said in reply:
            command, _, text = said.partition(" ")
            found |= dict.fromkeys(_rules(command.lower(), text, text, root))
    return list(found)


def _direct(client: redis.Redis, key: str, channel: str) -> Mapping[str, Callable[[], Any]]:
    ask = client.execute_command
    return {
        "ping": client.ping,
        "info": partial(client.info, "server"),
        "type": partial(client.type, key),
        "exists": partial(client.exists, key),
        "scan": partial(client.scan, match=key),
        "xread": partial(ask, "XREAD", "COUNT", "1", "STREAMS", key, "0"),
        "brpop": partial(ask, "BRPOP", key, "0.01"),
        "eval": partial(client.eval, "return 1", 0),
        "evalsha": partial(_evalsha, client),
        "script|load": partial(client.script_load, "return 1"),
        "publish": partial(client.publish, channel, "x"),
        "subscribe": partial(_subscribe, client, channel),
        "multi +exec": partial(_transaction, client),
    }


def _evalsha(client: redis.Redis) -> None:
    with suppress(redis.exceptions.NoScriptError):
        client.evalsha("0" * 40, 0)


def _transaction(client: redis.Redis) -> None:
    one: Any
    with client.client() as one:  # type: ignore[no-untyped-call]  # one connection for both
        one.execute_command("MULTI")
        one.execute_command("EXEC")


def _subscribe(client: redis.Redis, channel: str) -> None:
    listening: Any
    with client.pubsub() as listening:  # type: ignore[no-untyped-call]
        listening.subscribe(channel)
        listening.get_message(timeout=PATIENCE)


def _rules(command: str, text: str, error: BaseException | str, root: str) -> Iterable[str]:
    refusal = refusal_of(error)
    if refusal is None or refusal.code != "NOPERM":
        return
    lowered = text.lower()
    if "channel" in lowered:
        yield f"&{root}*"
    elif "key" in lowered:
        yield f"~{root}*"
    else:
        yield f"+{command}"


def _user(client: redis.Redis, connection: Any) -> str:
    try:
        return str(client.acl_whoami())
    except redis.RedisError:
        return connection.userid or "default"
