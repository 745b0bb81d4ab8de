"""No command ends in a traceback, whatever its servers refuse: every verb under every fault, on a real server."""

# Celery has no types.
# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result
from harness.refusing import FORBIDDEN, UNKNOWN, WithoutHello

from celery_sticky import Keyspace, Sticky
from celery_sticky.cli import drain
from celery_sticky.cli.main import COMMANDS, sticky
from celery_sticky.queues.redis.access import line
from celery_sticky.testing.guard import Guard
from celery_sticky.testing.servers.base import free_port
from celery_sticky.testing.servers.valkey import ValkeyServer

VERBS = {
    "status": ("status", "--timeout", "0.1"),
    "doctor": ("doctor", "--timeout", "0.1"),
    "owner": ("owner", "k"),
    "plan": ("plan", "--add", "1"),
    "init": ("init", "--force", "--yes"),
    "drain": ("drain", "nobody@here"),
    "pins list": ("pins", "list", "--keyspace", "clients"),
    "pins release": ("pins", "release", "k", "--keyspace", "clients"),
    "abandoned list": ("abandoned", "list"),
    "dead list": ("dead", "list"),
    "dead show": ("dead", "show", "x"),
    "dead retry": ("dead", "retry", "--all"),
    "dead drop": ("dead", "drop", "--all"),
    "jobs list": ("jobs", "list"),
    "jobs get": ("jobs", "get", "n", "k"),
    "jobs dispatch": ("jobs", "dispatch", "n", "k", "--timeout", "0.1"),
    "jobs notify": ("jobs", "notify", "n", "k"),
    "jobs stop": ("jobs", "stop", "n", "k"),
    "jobs shutdown": ("jobs", "shutdown", "--yes", "--timeout", "0.1"),
    "jobs reopen": ("jobs", "reopen"),
}
USER = ("ACL", "SETUSER", "bob", "reset", "on", ">pw", "~*", "&*", "+@all")
DENIED = {
    "no INFO": ("-info",),
    "no CLIENT": ("-client",),
    "no CONFIG": ("-config",),
    "no pub/sub": ("-publish", "-subscribe", "-psubscribe", "-pubsub"),
    "no channels": ("resetchannels",),
    "no scripts": ("-@scripting",),
    "no TIME": ("-time",),
    "no SCAN": ("-scan",),
    "no keys": ("resetkeys",),
    "nothing": ("nocommands",),
}
BROKEN = {
    "view": ("SET", "sticky:default:view", "oops"),
    "beats": ("SET", "sticky:default:beats", "oops"),
    "document": ("HSET", "sticky:default:view", "version", "1", "generation", "1", "document", "{"),
    "counter": ("HSET", "sticky:default:beats", "x", "oops"),
    "revoked": ("SET", "sticky:revoked", "oops"),
    "jobs": ("SET", "sticky:default:jobs:places", "oops"),
    "slot queue": ("SET", "sticky.default.3", "oops"),
    "dead queue": ("SET", "sticky.default.dead", "oops"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    guard = Guard()
    made = ValkeyServer(guard).start()
    yield made
    made.teardown()
    guard.close()


@pytest.fixture(autouse=True)
def clean(server: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(drain, "ANSWER_TIMEOUT", 0.1)  # nobody answers
    yield
    with server.client() as client:
        client.replicaof("NO", "ONE")
        client.config_set("maxmemory", 0)
        client.flushall()


@contextmanager
def shop(url: str | list[str]) -> Iterator[Any]:
    app = Celery("shop", broker=url, set_as_current=False)
    app.conf.update(sticky_slots=8, sticky_lease_ttl=1.0, sticky_lease_margin=0.1, broker_connection_max_retries=1)
    app.conf.broker_transport_options = {"socket_timeout": 2, "socket_connect_timeout": 2}
    Sticky(app)

    @app.task(name="sync", shared=False, key="tenant")
    def sync(tenant: str) -> None: ...

    yield app
    app.close()


def run(app: Any, *words: str) -> Result:
    if words[0] == "pins":
        Sticky.of(app).keyspace(Keyspace("clients", pins=True))
    result = CliRunner().invoke(sticky, words, obj=CLIContext(app, True, None))
    assert result.exception is None or isinstance(result.exception, SystemExit), (words, repr(result.exception))
    assert "Traceback" not in result.output
    if result.output.startswith("Error: "):
        assert result.output.count("\n") == 1, result.output
    return result


def test_every_verb_is_here() -> None:
    assert {words[0] for words in VERBS.values()} == COMMANDS.keys() - {"demo", "sql", "verify"}, "these need no Redis"


@pytest.mark.parametrize("verb", VERBS)
def test_servers_that_are_away_or_let_nobody_in(server: ValkeyServer, verb: str) -> None:
    for url, what in (
        (f"redis://127.0.0.1:{free_port()}/0", "refused"),
        (server.url.replace("//", "//bob:wrong@"), "WRONGPASS"),
        ("rediscluster://127.0.0.1:1", "Redis Cluster is not supported"),
        ("nosuch://127.0.0.1", "nosuch"),
        ("sqla+sqlite:///nowhere/x", "sqla|sqlalchemy"),
        ([server.url, "redis://127.0.0.1:1/0"], "2 servers are listed"),
    ):
        with shop(url) as app:
            result = run(app, *VERBS[verb])
            assert result.exit_code == 1, (url, result.output)
            assert any(one in result.output for one in what.split("|")), (url, result.output)


@pytest.mark.parametrize("verb", VERBS)
def test_users_that_may_not_do_everything(server: ValkeyServer, verb: str) -> None:
    for denied, rules in DENIED.items():
        with server.client() as client, shop(server.url.replace("//", "//bob:pw@")) as app:
            client.execute_command(*USER, *rules)
            result = run(app, *VERBS[verb])
            assert result.exit_code in (0, 1), (denied, result.output)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("refusal", [UNKNOWN, FORBIDDEN])
def test_servers_that_refuse_hello(server: ValkeyServer, verb: str, refusal: str) -> None:
    with WithoutHello(server.url, refusal) as proxy, shop(proxy.url) as app:
        result = run(app, *VERBS[verb])
    assert result.exit_code in (0, 1), result.output


@pytest.mark.parametrize("refusal", [UNKNOWN, FORBIDDEN])
@pytest.mark.parametrize(("protocol", "level"), [(2, "note"), (3, "wrong")])
def test_doctor_names_a_server_that_refuses_hello_and_the_remedy(
    server: ValkeyServer, refusal: str, protocol: int, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_sticky.queues.redis.checkup.celery_needs_it", lambda: protocol == 3)
    monkeypatch.setattr("celery_sticky.queues.redis.hello.celery_needs_it", lambda: protocol == 3)
    with WithoutHello(server.url, refusal) as proxy, shop(proxy.url) as app:
        found = json.loads(run(app, *VERBS["doctor"], "--json").stdout)
    assert found["servers"]["broker"]["hello_refused"] == refusal
    assert not found["servers"]["broker"]["wakes_clients"]
    (said,) = (one for one in found["findings"] if "HELLO (" in one["text"])
    assert said["level"] == level
    assert refusal in said["text"] and "Redis 6.2 or newer" in said["text"] and "+hello" in said["text"]
    assert ("neither sends nor runs tasks" in said["text"]) == (protocol == 3)


def test_the_access_list_that_doctor_prints_allows_what_wakes_workers() -> None:
    assert {"+hello", "+client"} <= set(line().split())


@pytest.mark.parametrize("verb", VERBS)
def test_servers_that_take_no_writes(server: ValkeyServer, verb: str) -> None:
    with server.client() as client, shop(server.url) as app:
        client.config_set("maxmemory", 1)
        full = run(app, *VERBS[verb])
        client.config_set("maxmemory", 0)
        client.replicaof("127.0.0.1", "1")
        replica = run(app, *VERBS[verb])
    if verb == "jobs dispatch":
        assert "memory is full" in full.output and "READONLY" in replica.output
    if verb == "doctor":
        assert "memory is full" in full.output and "is a replica" in replica.output


@pytest.mark.parametrize("verb", VERBS)
def test_records_of_another_type(server: ValkeyServer, verb: str) -> None:
    for key, command in BROKEN.items():
        with server.client() as client, shop(server.url) as app:
            client.flushall()
            client.execute_command(*command)
            result = run(app, *VERBS[verb])
            if verb == "doctor" and key not in ("slot queue", "dead queue"):
                assert command[1] in result.output.replace("\n", ""), (key, result.output)
            if key in ("view", "beats", "document") and verb in ("status", "owner", "plan"):
                assert result.exit_code == 1 and command[1] in result.output, result.output


def test_status_and_doctor_show_the_rest(server: ValkeyServer) -> None:
    with server.client() as client, shop(server.url) as app:
        app.conf.sticky_keyspaces = {"default": 8, "other": 8}
        run(app, "init")
        client.delete("sticky:default:view")
        client.set("sticky:default:view", "oops")
        found = json.loads(run(app, "status", "--json").stdout)
        assert [one["keyspace"] for one in found["keyspaces"]] == ["other"]
        assert "sticky:default:view is a string, not a hash" in found["problems"][0]
        texts = [one["text"] for one in json.loads(run(app, "doctor", "--json").stdout)["findings"]]
        assert any("sticky:default:view is a string" in text for text in texts)
        client.execute_command(*USER, "-publish", "-subscribe", "-psubscribe")
    with shop(server.url.replace("//", "//bob:pw@")) as app:
        assert run(app, "status", "--keyspace", "other").exit_code == 0
