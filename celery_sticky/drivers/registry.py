"""Finds the driver of a Kombu connection: the built-in ones, and those of other packages (entry points).

An entry point of the group `celery_sticky.drivers` names a `Driver`. It is imported only if no built-in driver has the
connection's transport class, or to say in a refusal what there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from celery_sticky.drivers import memory, redis, sql
from celery_sticky.drivers.base import Driver
from celery_sticky.errors import InvalidSettings
from celery_sticky.redis_errors import NO_CLUSTER

GROUP = "celery_sticky.drivers"
BUILT_IN = (redis.DRIVER, memory.DRIVER, sql.DRIVER)


@dataclass(frozen=True, slots=True)
class Installed:
    """The drivers of other packages."""

    drivers: tuple[Driver, ...]
    unusable: tuple[str, ...]
    """For each driver that cannot be imported: a sentence with its name, the reason and the remedy."""


@cache
def installed() -> Installed:
    """Import the drivers of other packages, once in a process."""
    drivers: list[Driver] = []
    unusable: list[str] = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            drivers.append(_load(point))
        except Exception as error:  # whatever the other package raises: the other drivers are still there
            package = point.dist.name if point.dist is not None else point.value
            unusable.append(
                f"The driver {point.name!r} of package {package} cannot be imported "
                f"({type(error).__name__}: {error}): install what it needs, or upgrade or remove that package"
            )
    return Installed(tuple(drivers), tuple(unusable))


def _load(point: EntryPoint) -> Driver:
    driver = point.load()
    if not isinstance(driver, Driver):
        raise TypeError(f"{point.value} is not a celery_sticky.drivers.Driver")
    return driver


def all_drivers() -> Iterator[Driver]:
    """Yield the built-in drivers, then import and yield the others."""
    yield from BUILT_IN
    yield from installed().drivers


def find_driver(connection: Any) -> Driver | None:
    """Return the driver of the connection's transport class, or of the nearest class that it derives from."""
    for transport in connection.get_transport_cls().__mro__:
        path = f"{transport.__module__}:{transport.__qualname__}"
        for driver in all_drivers():
            if path in driver.transports:
                return driver
    return None


def listing(suits: Callable[[Driver], bool]) -> str:
    """Return the drivers that suit, with the schemes of their URLs, as part of a sentence."""
    suitable = [driver for driver in all_drivers() if suits(driver)]
    found = [f"{one.name} ({', '.join(f'{scheme}://' for scheme in one.schemes)})" for one in suitable]
    return " or ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)


def hints() -> str:
    """Return the sentences about drivers that cannot be imported, to be added to a refusal."""
    return "".join(f". {sentence}" for sentence in installed().unusable)


def known_connection(connect: Callable[[], Any]) -> Any:
    """Return the connection, after checking that Kombu can use it. This sends nothing.

    Raises:
        InvalidSettings: Kombu has no transport of this name, or the client library that it needs is missing.
    """
    try:
        try:
            connection = connect()
        except KeyError:
            installed()  # a package registers its transport with Kombu when its driver is imported
            connection = connect()
        connection.get_transport_cls()
    except KeyError as error:
        hint = f": {NO_CLUSTER}" if "cluster" in str(error) else ""
        raise InvalidSettings(f"{error.args[0]}{hint}. {_there_are()}") from error
    except (ImportError, AttributeError) as error:  # without redis-py, Kombu's module fails with an AttributeError
        raise InvalidSettings(f"the server's client library is not installed: {error}. {_there_are()}") from error
    return connection


def _there_are() -> str:
    return f"celery-sticky has drivers for {listing(lambda _: True)}{hints()}"
