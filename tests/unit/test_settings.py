"""Settings: defaults, what each may be, and what is said when one cannot be used."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from celery_sticky.errors import InvalidSettings
from celery_sticky.settings import OnLeaseLoss, Settings


def test_the_defaults_go_together() -> None:
    assert Settings.read({}) == Settings()
    assert Settings().slots_of("default") == 256


def test_settings_are_read_from_their_entries_and_cannot_be_changed() -> None:
    settings = Settings.read(
        {
            "sticky_store": "redis://localhost/3",
            "sticky_slots": 64,
            "sticky_lease_ttl": 30,
            "sticky_on_lease_loss": "finish",
            "sticky_weight": 0,
            "broker_url": "redis://localhost/0",
        }
    )
    assert (settings.store, settings.slots, settings.weight) == ("redis://localhost/3", 64, 0)
    assert settings.lease_ttl == 30.0 and type(settings.lease_ttl) is float
    assert settings.on_lease_loss is OnLeaseLoss.FINISH
    with pytest.raises(FrozenInstanceError):
        settings.slots = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("unknown", "meant"),
    [
        ("sticky_slot", "sticky_slots"),
        ("sticky_lease_tll", "sticky_lease_ttl"),
        ("sticky_prefix", "sticky_key_prefix"),
        ("sticky_margin", "sticky_lease_margin"),
        ("sticky_onleaseloss", "sticky_on_lease_loss"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_one_meant(unknown: str, meant: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        Settings.read({unknown: 1})
    assert repr(unknown) in str(refused.value) and repr(meant) in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("sticky_slots", value) for value in (0, -1, 65537, "256", 2.0, True, None)],
        *[("sticky_lease_ttl", value) for value in (0.5, "10", True, None, float("nan"), float("inf"))],
        *[("sticky_lease_margin", value) for value in (-1, "2")],
        *[("sticky_settle", value) for value in (-0.1, None)],
        *[("sticky_on_lease_loss", value) for value in ("kill", None, 1)],
        *[("sticky_max_waiting", value) for value in (0, 1.5)],
        *[("sticky_max_attempts", value) for value in (0, "5")],
        *[("sticky_key_prefix", value) for value in ("", "a.b", "a b", None, "x" * 65)],
        *[("sticky_weight", value) for value in (-1, 0.5)],
        *[("sticky_broker_grace", value) for value in (-1, "30")],
        *[("sticky_store", value) for value in ("", 6379)],
        *[("sticky_runtime_dir", value) for value in ("", 1)],
        *[("sticky_revoke_ttl", value) for value in (-1,)],
        *[("sticky_revoke_limit", value) for value in (-1, 1.0)],
        *[("sticky_keyspaces", value) for value in ("", [], {}, ["a.b"], "a b", 5, {"a": 0}, {"a": "64"}, [None])],
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidSettings, match=name):
        Settings.read({name: value})


def test_the_margin_must_leave_room_for_a_lost_beat() -> None:
    with pytest.raises(InvalidSettings, match=r"sticky_lease_margin.*third of sticky_lease_ttl"):
        Settings.read({"sticky_lease_ttl": 6.0, "sticky_lease_margin": 2.0})
    assert Settings.read({"sticky_lease_ttl": 6.0, "sticky_lease_margin": 1.9}).lease_margin == 1.9


@pytest.mark.parametrize(
    "given", ["orders,default", " orders , default ", ["orders", "default"], ("orders", "default")]
)
def test_keyspaces_are_named_in_a_list_or_with_commas(given: Any) -> None:
    settings = Settings.read({"sticky_keyspaces": given, "sticky_slots": 32})
    assert settings.keyspaces == {"orders": 32, "default": 32}


def test_keyspaces_may_have_slots_of_their_own() -> None:
    settings = Settings.read({"sticky_keyspaces": {"orders": 1024, "default": 16}, "sticky_slots": 32})
    assert [settings.slots_of(name) for name in ("orders", "default", "elsewhere")] == [1024, 16, 32]
