"""`status` and `doctor` ask about all keyspaces together: how often they ask does not grow with their number."""

# Celery has no types.
# mypy: disable-error-code="misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_sticky import Keyspace, Sticky
from celery_sticky.cli.main import sticky
from celery_sticky.cli.session import Session
from celery_sticky.ownership import changes
from celery_sticky.ownership.view import Member
from celery_sticky.redis_wire import Wire
from celery_sticky.testing.servers.valkey import ValkeyServer

FEW, MANY = 3, 40
SLOTS = 4
LOOKS = 12
"""Most looks at the heartbeats of silent members: one every 0.1 s, for 0.9 s."""


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of requests in each round trip of our connections."""
    made: list[int] = []
    call = Wire.call

    def counted(self: Wire, *requests: bytes) -> list[object]:
        made.append(len(requests))
        return call(self, *requests)

    monkeypatch.setattr(Wire, "call", counted)
    return made


def shop(url: str, keyspaces: int) -> Any:
    """Return an app with so many plain keyspaces and as many placed ones."""
    app = Celery("shop", broker=url, set_as_current=False)
    app.conf.update(sticky_slots=SLOTS, sticky_lease_ttl=1.0, sticky_lease_margin=0.1)
    made = Sticky(app)
    for number in range(keyspaces):
        made.keyspace(Keyspace(f"placed{number}", pins=True))

        @app.task(name=f"sync{number}", shared=False, key="tenant", keyspace=f"plain{number}")
        def sync(tenant: str) -> None: ...

    return app


def command(app: Any, *words: str) -> str:
    result = CliRunner().invoke(sticky, words, obj=CLIContext(app, True, None), catch_exceptions=False)
    assert result.exit_code in (0, 1), result.output
    return result.stdout


def join_everywhere(app: Any) -> None:
    """Write a document with one member, which is not there, in every keyspace."""
    with Session(app) as session:
        for keyspace in session.keyspaces:
            store, hash_name = session.store(keyspace), session.settings.hash_of(keyspace)
            store_id = store.read().store_id
            view = changes.fresh(slots=SLOTS, hash=hash_name, generation=1, version=1, store_id=store_id)
            assert store.swap(None, changes.join(view, Member("w@here", "w-1")))


def status_trips(app: Any, trips: list[int]) -> int:
    command(app, "status", "--timeout", "0.01")  # the server then has the scripts
    trips.clear()
    command(app, "status", "--timeout", "0.01")
    return len(trips)


def test_status_makes_as_many_round_trips_for_many_keyspaces_as_for_few(server: ValkeyServer, trips: list[int]) -> None:
    few, many = (status_trips(shop(server.url, keyspaces), trips) for keyspaces in (FEW, MANY))
    assert few == many <= 6


def test_so_it_does_for_waiting_messages(server: ValkeyServer, client: Any, trips: list[int]) -> None:
    for number in range(MANY):
        client.lpush(f"sticky.plain{number}.1", "x")
    few, many = (status_trips(shop(server.url, keyspaces), trips) for keyspaces in (FEW, MANY))
    assert few == many <= 7


def test_silent_members_of_all_keyspaces_are_looked_for_together(server: ValkeyServer, trips: list[int]) -> None:
    app = shop(server.url, MANY)
    join_everywhere(app)
    assert status_trips(app, trips) <= 6 + LOOKS


def test_doctor_opens_as_many_connections_for_many_keyspaces_as_for_few(server: ValkeyServer, client: Any) -> None:
    def connections(keyspaces: int) -> int:
        app = shop(server.url, keyspaces)
        command(app, "doctor", "--timeout", "0.01")  # Celery's own connections are in its pools then
        before = client.info("stats")["total_connections_received"]
        command(app, "doctor", "--timeout", "0.01")
        app.close()
        return int(client.info("stats")["total_connections_received"] - before)

    assert connections(FEW) == connections(MANY)


def test_doctor_makes_as_many_round_trips_for_many_keyspaces_as_for_few(server: ValkeyServer, trips: list[int]) -> None:
    def made(keyspaces: int) -> int:
        app = shop(server.url, keyspaces)
        command(app, "doctor", "--timeout", "0.01")
        trips.clear()
        command(app, "doctor", "--timeout", "0.01")
        return len(trips)

    few, many = made(FEW), made(MANY)
    assert few == many <= 6
