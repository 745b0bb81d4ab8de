"""The registry of drivers, and what senders and workers refuse. `contract/test_driver_package` has one from outside."""

# Celery has no types.
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
from celery import Celery
from harness.bare_worker import assemble
from kombu import Connection
from kombu.transport.memory import Channel

from celery_sticky import InvalidSettings, Keyspace, Sticky, jump
from celery_sticky.drivers import find_driver, known_connection, open_queues, registry
from celery_sticky.drivers.base import Driver
from celery_sticky.drivers.needs import NEEDS
from celery_sticky.queues.guarantees import FULL, Guarantees


@pytest.fixture
def app() -> Iterator[Any]:
    made = Celery("shop", broker="memory://", set_as_current=False)
    made.conf.sticky_key_prefix = f"drivers-{uuid.uuid4().hex}"
    Sticky(made).keyspace(Keyspace("clients", assign=jump))
    yield made
    made.close()


@pytest.mark.parametrize("driver", registry.BUILT_IN, ids=lambda driver: driver.schemes[0])
def test_every_scheme_of_a_driver_leads_to_it(driver: Driver) -> None:
    for scheme in driver.schemes:
        assert find_driver(Connection(f"{scheme}:///0")) is driver


@pytest.mark.parametrize("url", ["memory://", "redis://", "sticky+sqlite:///nosuch"])
def test_the_guarantees_of_a_driver_are_those_of_its_queues(url: str) -> None:
    driver = find_driver(Connection(url))
    queues = open_queues(Connection(url), prefix="sticky", socket_timeout=1.0)
    assert driver is not None and driver.guarantees == queues.guarantees
    queues.close()


def test_no_package_is_imported_where_a_built_in_driver_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    def installed() -> None:
        raise AssertionError("the entry points were read")

    monkeypatch.setattr(registry, "installed", installed)
    assert find_driver(Connection("redis://")) is registry.BUILT_IN[0]
    with pytest.raises(AssertionError):
        find_driver(Connection("amqp://"))


def test_a_class_derived_from_a_known_transport_is_known() -> None:
    class Own(Connection("memory://").get_transport_cls()):  # type: ignore[misc]
        """A transport of an app."""

    assert find_driver(Connection("memory://", transport=Own)) is registry.BUILT_IN[1]


def test_a_url_that_kombu_does_not_know_is_refused_with_what_there_is() -> None:
    with pytest.raises(InvalidSettings, match=r"No such transport: nosuch.*drivers for Redis or Valkey.*memory://"):
        known_connection(lambda: Connection("nosuch://h"))


# -- what a broker lacks -----------------------------------------------------------------------------


def without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a guarantee from the memory driver."""
    redis, memory, _ = registry.BUILT_IN
    lacking = replace(memory, guarantees=replace(FULL, **dict[str, Any]({name: False})))
    monkeypatch.setattr(registry, "BUILT_IN", (redis, lacking))


def send(app: Any, keyspace: str) -> None:
    @app.task(name=f"sync {keyspace}", key="tenant", keyspace=keyspace, shared=False)
    def sync(tenant: str) -> None: ...

    sync.delay("t-7")


def test_every_guarantee_is_asked_for() -> None:
    described = {"counts_starts", "epochs_outlive_store", "fence", "priorities", "returns", "exact_idle", "company"}
    assert {field.name for field in fields(Guarantees)} == {*NEEDS, "moves", "claims_runs", *described}


@pytest.mark.parametrize("option", [{"delivery": "at_most_once"}, {"dedupe": True}], ids=str)
def test_only_tasks_with_a_ledger_need_a_broker_that_keeps_one(
    app: Any, monkeypatch: pytest.MonkeyPatch, option: dict[str, Any]
) -> None:
    without("claims_runs", monkeypatch)
    assemble(app)

    @app.task(name="mail", key="to", shared=False, **option)
    def mail(to: str) -> None: ...

    said = r"memory://.*cannot carry tasks mail.*'claims_runs' is missing.*Redis or Valkey.*leave out these options"
    with pytest.raises(InvalidSettings, match=said):
        assemble(app)


@pytest.mark.parametrize("name", NEEDS)
def test_a_broker_that_lacks_what_keyed_tasks_need_is_refused_by_sender_and_worker(
    app: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    without(name, monkeypatch)
    said = rf"memory://.*cannot be the broker.*'{name}' is missing.*broker_url to Redis or Valkey \(redis://.*leave out"
    queues = set(Channel.queues)
    with pytest.raises(InvalidSettings, match=said):
        send(app, "default")
    assert set(Channel.queues) == queues, "nothing was sent"
    with pytest.raises(InvalidSettings, match=said):
        assemble(app)


def test_only_placed_keyspaces_need_a_broker_that_can_move_messages(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    without("moves", monkeypatch)
    said = r"memory://.*cannot carry keyspaces clients.*'moves' is missing.*Redis or Valkey.*without assign and pins"
    send(app, "default")
    with pytest.raises(InvalidSettings, match=said):
        send(app, "clients")
    with pytest.raises(InvalidSettings, match=said):
        assemble(app)
    app.conf.sticky_keyspaces = ["default"]
    del vars(Sticky.of(app).wiring)["settings"]
    assemble(app)
