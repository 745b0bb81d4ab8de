"""`Sticky(app)`: wiring an app once, and reading its settings wherever they were written."""

# Celery has no types.
# mypy: disable-error-code="misc, no-untyped-call"

from __future__ import annotations

import pickle
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.app.amqp import AMQP
from celery.app.routes import Router

from celery_sticky import InvalidSettings, Sticky, StickyError, __version__, slot_for
from celery_sticky.router import StickyRouter


class Config:
    sticky_slots = 64
    broker_url = "memory://"


class OwnRouter(Router):
    pass


class OwnAMQP(AMQP):
    def Router(self, *args: Any, **kwargs: Any) -> Any:  # noqa: N802
        return OwnRouter(self.routes, self.queues, app=self.app)


def make_app(**options: Any) -> Any:
    return Celery("shop", broker="memory://", set_as_current=False, **options)


def queue_of(app: Any, key: str) -> str:
    options = app.amqp.router.route({"headers": {"sticky-key": key}}, "elsewhere", (), {})
    return str(options["queue"].name)


def test_wiring_an_app_does_not_read_its_configuration() -> None:
    app = make_app()
    app.on_configure.connect(lambda **_: pytest.fail("the configuration was read"), weak=False)
    sticky = Sticky(app)
    assert not app.configured and sticky.app is app


def test_the_configuration_may_be_given_after_the_wiring() -> None:
    app = make_app()
    sticky = Sticky(app)
    app.config_from_object(Config)
    assert sticky.settings.slots == 64 and queue_of(app, "foo") == "sticky.default.9"


def test_an_app_is_wired_once_however_often_it_is_asked_for() -> None:
    app = make_app()
    first, second, third = Sticky(app), Sticky(app), Sticky()
    third.init_app(app)
    third.init_app(app)
    assert first.wiring is second.wiring is third.wiring is Sticky.of(app).wiring
    assert first.settings is third.settings
    assert isinstance(app.amqp.router, StickyRouter) and isinstance(app.amqp.router._inner, Router)


def test_a_factory_wires_each_app_it_makes() -> None:
    sticky = Sticky()
    with pytest.raises(StickyError, match="init_app"):
        _ = sticky.settings
    apps = [make_app(), make_app()]
    for app, slots in zip(apps, (64, 10), strict=True):
        app.conf.sticky_slots = slots
        sticky.init_app(app)
        assert sticky.app is app and sticky.slot_for("foo") == slot_for("foo", slots)
    assert [queue_of(app, "foo") for app in apps] == ["sticky.default.9", "sticky.default.9"]


def test_an_app_without_sticky_says_what_to_write() -> None:
    with pytest.raises(StickyError, match=r"Sticky\(app\)"):
        Sticky.of(make_app())


def test_a_router_made_before_the_wiring_is_replaced() -> None:
    app = make_app()
    assert isinstance(app.amqp.router, Router)
    Sticky(app)
    assert queue_of(app, "foo") == "sticky.default.177"


@pytest.mark.parametrize("amqp", [OwnAMQP, f"{__name__}:OwnAMQP"])
def test_an_app_may_have_amqp_and_router_classes_of_its_own(amqp: Any) -> None:
    app = make_app(amqp=amqp)
    Sticky(app)
    assert type(app.amqp) is OwnAMQP and isinstance(app.amqp.router._inner, OwnRouter)
    assert queue_of(app, "foo") == "sticky.default.177"


def test_the_router_survives_a_change_of_the_routes() -> None:
    app = make_app()
    Sticky(app)
    for queue in ("first", "second"):
        app.conf.update(task_routes={"plain": {"queue": queue}})
        assert queue_of(app, "foo") == "sticky.default.177"
        assert app.amqp.router.route({}, "plain", (), {})["queue"].name == queue


def test_a_pickled_app_is_wired_where_it_arrives() -> None:
    app = make_app()
    app.conf.update(sticky_slots=10)
    Sticky(app)
    there = pickle.loads(pickle.dumps(app))
    assert Sticky.of(there).app is there
    assert queue_of(there, "foo") == "sticky.default.9"


def test_celery_shows_the_router_s_own_attributes_through_ours() -> None:
    app = make_app()
    Sticky(app)
    assert app.amqp.router.queues is app.amqp.queues and app.amqp.router.create_missing is True


# -- Where settings may stand -----------------------------------------------------------------------


def from_module(**names: Any) -> ModuleType:
    module = ModuleType("settings")
    vars(module).update(names)
    return module


WAYS = {
    "a class": lambda app: app.config_from_object(Config),
    "a module, lower case": lambda app: app.config_from_object(from_module(sticky_slots=64)),
    "a module, old style": lambda app: app.config_from_object(
        from_module(CELERY_STICKY_SLOTS=64, CELERY_DEFAULT_QUEUE="x")
    ),
    "a dict": lambda app: app.config_from_object({"sticky_slots": 64}),
    "Django's settings": lambda app: app.config_from_object(
        SimpleNamespace(CELERY_STICKY_SLOTS=64, STICKY_SESSIONS=True, DEBUG=True), namespace="CELERY"
    ),
    "a lower-case namespace": lambda app: app.config_from_object({"shop_sticky_slots": 64}, namespace="shop"),
    "update": lambda app: app.conf.update(sticky_slots=64),
    "update with a dict": lambda app: app.conf.update({"sticky_slots": 64}),
    "attribute": lambda app: setattr(app.conf, "sticky_slots", 64),
    "item": lambda app: app.conf.__setitem__("sticky_slots", 64),
    "add_defaults": lambda app: app.add_defaults({"sticky_slots": 64}),
    "changes": lambda app: app.conf.changes.update(sticky_slots=64),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wired_first", [True, False])
def test_settings_are_found_wherever_celery_lets_them_stand(way: str, wired_first: bool) -> None:
    app = make_app()
    if wired_first:
        Sticky(app)
    WAYS[way](app)
    assert Sticky(app).settings.slots == 64


def test_a_later_update_counts_as_it_does_for_celerys_own_settings() -> None:
    app = make_app()  # before 5.7 the settings module of a namespace went before a later update
    module = SimpleNamespace(CELERY_STICKY_KEY_PREFIX="module", CELERY_STICKY_WEIGHT=3)
    module.CELERY_TASK_DEFAULT_QUEUE = "module"
    app.config_from_object(module, namespace="CELERY")
    app.conf.update(sticky_key_prefix="update", task_default_queue="update")
    settings = Sticky(app).settings
    assert (settings.key_prefix, settings.weight) == (app.conf.task_default_queue, 3)


def test_a_later_update_goes_before_an_old_style_module() -> None:
    app = make_app()
    app.config_from_object(from_module(CELERY_STICKY_SLOTS=64))
    app.conf.update(sticky_slots=10)
    assert Sticky(app).settings.slots == 10


@pytest.mark.parametrize(
    ("config", "namespace"),
    [
        ({"sticky_slot": 1}, None),
        ({"CELERY_STICKY_SLOT": 1}, None),
        ({"CELERY_STICKY_SLOT": 1}, "CELERY"),
        ({"sticky_slot": 1}, "CELERY"),
    ],
)
def test_an_unknown_setting_is_found_wherever_it_stands(config: dict[str, Any], namespace: str | None) -> None:
    app = make_app()
    app.config_from_object(config, namespace=namespace)
    with pytest.raises(InvalidSettings, match=r"'sticky_slot'.*'sticky_slots'"):
        _ = Sticky(app).settings


def test_a_wrong_setting_stops_the_sender_of_a_keyed_task_only() -> None:
    app = make_app()
    app.conf.update(sticky_slots=0)
    Sticky(app)
    assert app.amqp.router.route({}, "plain", (), {})["queue"].name == "celery"
    with pytest.raises(InvalidSettings, match="sticky_slots"):
        queue_of(app, "foo")


def test_the_package_says_its_version() -> None:
    assert __version__.count(".") == 2
