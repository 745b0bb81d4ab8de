"""Which errors of its own connection Celery's consumer survives."""

from __future__ import annotations

from types import SimpleNamespace as Some
from typing import Any

import pytest
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError

from celery_sticky.drivers.redis import RedisFailures
from celery_sticky.execution import reconnecting
from celery_sticky.execution.reconnecting import connect_again_when_refused


@pytest.fixture
def recovered(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    monkeypatch.setattr(reconnecting, "PAUSE", 0.0)
    return []


def consumer(recovered: list[Exception], *, retry: bool = False) -> Any:
    made = Some(
        connection_errors=(ConnectionError,),
        channel_errors=(ResponseError,),
        app=Some(conf=Some(broker_channel_error_retry=retry)),
        on_connection_error_before_connected=recovered.append,
        on_connection_error_after_connected=recovered.append,
    )
    connect_again_when_refused(made, RedisFailures())
    return made


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("lost"),
        OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
        ReadOnlyError("You can't write against a read only replica."),
        ResponseError("UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"),
        ResponseError("MISCONF Redis is configured to save RDB snapshots, but it cannot persist on disk."),
        ResponseError("NOREPLICAS Not enough good replicas to write."),
    ],
    ids=["lost", "OOM", "READONLY", "UNBLOCKED", "MISCONF", "NOREPLICAS"],
)
def test_it_connects_again_after_what_passes(recovered: list[Exception], error: Exception, when: str) -> None:
    made = consumer(recovered)
    assert isinstance(error, made.connection_errors), "else the consumer ends before anybody is asked"
    getattr(made, f"on_connection_error_{when}_connected")(error)
    assert recovered == [error]


@pytest.mark.parametrize("text", ["unknown command 'FOO'", "NOPERM no permissions", "WRONGTYPE Operation"])
def test_it_ends_as_before_where_waiting_cures_nothing(recovered: list[Exception], text: str) -> None:
    with pytest.raises(ResponseError, match=text[:8]):
        consumer(recovered).on_connection_error_after_connected(ResponseError(text))
    assert not recovered


def test_where_celery_tries_again_after_any_error_it_is_left_alone(recovered: list[Exception]) -> None:
    made = consumer(recovered, retry=True)
    assert made.connection_errors == (ConnectionError,)
    made.on_connection_error_after_connected(wrong := ResponseError("unknown command 'FOO'"))
    assert recovered == [wrong]
