"""A driver that another package brings (`tests/driver_package`), found by its entry point."""

# Celery has no types.
# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner
from harness.bare_worker import assemble
from harness.in_process import in_process_worker
from kombu import Connection

from celery_sticky import InvalidSettings, Keyspace, Sticky, jump
from celery_sticky.cli.main import sticky
from celery_sticky.drivers import find_driver, open_job_store, open_queues, open_store
from celery_sticky.drivers.registry import installed
from celery_sticky.queues import SlotQueues
from celery_sticky.slots import Slot
from celery_sticky.stores import Store
from celery_sticky.testing.queue_contract import QueueContract
from celery_sticky.testing.store_contract import StoreContract, StoreServer
from celery_sticky.testing.waiting import wait_until

PACKAGE = Path(__file__).parent.parent / "driver_package"


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the package: its module and its metadata are on `sys.path`."""
    monkeypatch.syspath_prepend(str(PACKAGE))
    installed.cache_clear()
    import toybroker  # as the module of an app that uses it does

    assert toybroker.__file__ is not None and Path(toybroker.__file__).is_relative_to(PACKAGE)
    yield
    installed.cache_clear()


class Broker:
    """A toy broker with no messages: each has a prefix of its own."""

    def __init__(self) -> None:
        self.prefix = f"toy-{uuid.uuid4().hex}"

    def driver(self) -> SlotQueues:
        return open_queues(Connection("toy://"), prefix=self.prefix, socket_timeout=1.0)

    def publish(self, keyspace: str, slot: Slot, body: bytes, priority: int = 0) -> None:
        from toybroker import server

        server.broker(self.prefix).publish((keyspace, slot), body, priority)


class TestToyQueues(QueueContract):
    @pytest.fixture
    def broker(self) -> Broker:
        return Broker()


class Server(StoreServer[Store]):
    """A toy store with no records."""

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex

    def connect(self, keyspace: str, prefix: str) -> Store:
        return open_store(f"toy://{self.name}", keyspace, prefix=prefix)


class TestToyStore(StoreContract):
    @pytest.fixture
    def server(self) -> Server:
        return Server()


# -- in an app ---------------------------------------------------------------------------------------


@pytest.fixture
def app() -> Iterator[Any]:
    made = Celery("shop", broker="toy://", set_as_current=False)
    made.conf.update(sticky_key_prefix=f"toy-{uuid.uuid4().hex}", sticky_slots=8, sticky_settle=0.0)
    Sticky(made)
    yield made
    made.close()


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_a_worker_runs_keyed_tasks_through_it_in_their_order(app: Any, pool: str) -> None:
    ran: list[tuple[str, int]] = []

    @app.task(name="sync", key="tenant", shared=False)
    def sync(tenant: str, page: int) -> None:
        ran.append((tenant, page))

    sent = [(f"t-{page % 3}", page) for page in range(30)]
    for tenant, page in sent[:10]:
        sync.delay(tenant, page)
    with in_process_worker(app, pool):
        for tenant, page in sent[10:]:
            sync.delay(tenant, page)
        wait_until(lambda: len(ran) == len(sent), 20)
    assert {name: [page for tenant, page in ran if tenant == name] for name in ("t-0", "t-1", "t-2")} == {
        f"t-{first}": list(range(first, 30, 3)) for first in range(3)
    }


def test_its_queues_are_declared_before_a_message_is_published(app: Any) -> None:
    @app.task(name="sync", key="tenant", shared=False)
    def sync(tenant: str) -> None: ...

    sync.delay("t-7")
    prefix = app.conf.sticky_key_prefix
    slot = Sticky.of(app).slot_for("t-7")
    with_driver = open_queues(app.connection_for_read(), prefix=prefix, socket_timeout=1.0)
    assert with_driver.depths([("default", slot)])["default", slot].waiting == 1


def test_a_placed_keyspace_is_refused_since_its_messages_cannot_move(app: Any) -> None:
    Sticky.of(app).keyspace(Keyspace("clients", assign=jump))

    with pytest.raises(InvalidSettings, match=r"toy://.*clients.*'moves' is missing.*Redis or Valkey.*without assign"):
        assemble(app)


def test_jobs_are_refused_since_it_has_no_store_for_them(app: Any) -> None:
    with pytest.raises(InvalidSettings, match=r"no job store for toy://.*Redis or Valkey.*memory://.*sticky_store"):
        open_job_store("toy://", "default")


def test_status_and_doctor_count_no_jobs_where_there_can_be_none(app: Any) -> None:
    for command, shown in (("status", "jobs: none"), ("doctor", "keyed task")):
        done = CliRunner().invoke(sticky, [command, "--timeout", "0.01"], obj=CLIContext(app, True, None))
        assert shown in done.output and "no job store" not in done.output
        assert command == "doctor" or done.exit_code == 0


def test_the_nearest_class_of_a_transport_counts() -> None:
    from toybroker.transport import Transport

    class Own(Transport):
        """A transport of an app."""

    found = find_driver(Connection("memory://", transport=Own))
    assert found is not None and found.name == "Toy"


def test_a_refusal_names_the_driver() -> None:
    with pytest.raises(InvalidSettings, match=r"amqp://.*Redis or Valkey.*memory://.*Toy \(toy://\)"):
        open_queues(Connection("amqp://nowhere"), prefix="sticky", socket_timeout=1.0)


def test_a_driver_that_cannot_be_imported_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"broken": "import no_such_library\n", "odd": "DRIVER = 1\n"}.items():
        (tmp_path / f"{name}_driver.py").write_text(text)
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[celery_sticky.drivers]\n{name} = {name}_driver:DRIVER\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    installed.cache_clear()
    with pytest.raises(InvalidSettings, match=r"no slot queues for amqp://") as refused:
        open_queues(Connection("amqp://nowhere"), prefix="sticky", socket_timeout=1.0)
    said = str(refused.value)
    assert (
        "'broken' of package broken cannot be imported (ModuleNotFoundError: No module named 'no_such_library')" in said
    )
    assert "'odd' of package odd cannot be imported (TypeError: odd_driver:DRIVER is not a" in said
    assert "upgrade or remove that package" in said and "Toy (toy://)" in said
    open_queues(Connection("toy://"), prefix="sticky", socket_timeout=1.0).close()
    assert "odd_driver" in sys.modules
