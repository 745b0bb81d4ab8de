"""Keyed tasks, and how a task's key is taken from its arguments.

A task is keyed if it has the class attribute `key`: the name of an argument, or a function of the arguments. This
module only inspects tasks; it does not need Celery.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from celery_sticky.errors import InvalidKey, InvalidTask
from celery_sticky.keys import DEFAULT_KEYSPACE, Key, check_keyspace, key_text

Arguments = Callable[[Sequence[Any], Mapping[str, Any]], Any]

_ABSENT: Final = object()


class Delivery(StrEnum):
    """How often a message may run."""

    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"


@dataclass(frozen=True, slots=True)
class KeySpec:
    """Key, keyspace and options of a keyed task."""

    task: str
    keyspace: str
    serial: bool
    source: str
    """Source of the key, as worded in error messages."""
    take: Arguments
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    dedupe: bool = False
    """Whether a message is discarded if its task has finished within the ledger's retention."""

    @property
    def once(self) -> bool:
        """Whether a run is claimed before it starts, and then never run again."""
        return self.delivery is Delivery.AT_MOST_ONCE

    @property
    def uses_ledger(self) -> bool:
        """Whether the ledger must know the runs of this task."""
        return self.once or self.dedupe

    def key_text(self, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> str:
        """Return the key of a call with these arguments.

        Raises:
            InvalidKey: the key is missing or invalid, or the task's key function failed.
        """
        try:
            key = self.take(args or (), kwargs or {})
        except Exception as exc:
            raise InvalidKey(f"task {self.task!r}: {self.source} failed: {exc!r}") from exc
        if key is _ABSENT:
            raise InvalidKey(f"task {self.task!r}: {self.source} is missing")
        return self.check(key)

    def check(self, key: Key) -> str:
        """Return the text form of a key that this task was given.

        Raises:
            InvalidKey: the value cannot be a key.
        """
        try:
            return key_text(key)
        except InvalidKey as exc:
            raise InvalidKey(f"task {self.task!r}: {self.source}: {exc}") from exc


@dataclass(frozen=True, slots=True)
class _Argument:
    """Finds one argument of a call. Binding the whole call would cost more than all other work of the sender."""

    name: str
    index: int | None
    """Position among the positional arguments; None if the argument is keyword-only."""
    default: Any

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if self.name in kwargs:
            return kwargs[self.name]
        if self.index is not None and self.index < len(args):
            return args[self.index]
        return self.default


def compile_spec(task: Any) -> KeySpec | None:
    """Return the key spec of a task, or None for a task without a key.

    Raises:
        InvalidTask: the task's `key`, `keyspace`, `serial`, `delivery` or `dedupe` is invalid.
    """
    # `getattr` would return a function bound to the task.
    key = inspect.getattr_static(task, "key", None)
    if key is None:
        _check_without_key(task)
        return None
    name, keyspace, serial = str(task.name), getattr(task, "keyspace", DEFAULT_KEYSPACE), getattr(task, "serial", True)
    try:
        check_keyspace(keyspace)
    except InvalidKey as exc:
        raise InvalidTask(f"task {name!r}: {exc}") from exc
    if not isinstance(serial, bool):
        raise InvalidTask(f"task {name!r}: serial is {serial!r}; it must be True or False")
    delivery, dedupe = _delivery(task), _dedupe(task)
    if isinstance(key, str):
        source, take = f"its key, the argument {key!r}", _argument(task, name, key)
        return KeySpec(name, keyspace, serial, source, take, delivery, dedupe)
    return KeySpec(name, keyspace, serial, "its key function", _function(name, key), delivery, dedupe)


def _delivery(task: Any) -> Delivery:
    given = getattr(task, "delivery", Delivery.AT_LEAST_ONCE)
    try:
        return Delivery(given)
    except ValueError:
        known = " or ".join(repr(one.value) for one in Delivery)
        raise InvalidTask(f"task {task.name!r}: delivery is {given!r}; it must be {known}") from None


def _dedupe(task: Any) -> bool:
    given = getattr(task, "dedupe", False)
    if not isinstance(given, bool):
        raise InvalidTask(f"task {task.name!r}: dedupe is {given!r}; it must be True or False")
    return given


def _check_without_key(task: Any) -> None:
    """Refuse a task whose delivery nobody would take care of."""
    asked = [
        name
        for name, value in (("delivery", Delivery.AT_MOST_ONCE), ("dedupe", True))
        if getattr(task, name, None) == value
    ]
    if asked:
        raise InvalidTask(
            f"task {task.name!r} has {' and '.join(asked)} but no key: only keyed tasks have a ledger. "
            "Add key=, with the id of what the task is about, such as its recipient"
        )


def _argument(task: Any, task_name: str, name: str) -> _Argument:
    parameters = inspect.signature(task.run).parameters
    parameter = parameters.get(name)
    kinds = {p.kind for p in parameters.values()}
    if parameter is None and inspect.Parameter.VAR_KEYWORD in kinds:
        return _Argument(name, None, _ABSENT)
    if parameter is None or parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        having = ", ".join(parameters) or "none"
        raise InvalidTask(f"task {task_name!r}: its key {name!r} is not one of its arguments; it has: {having}")
    positional = parameter.kind is not inspect.Parameter.KEYWORD_ONLY
    default = _ABSENT if parameter.default is inspect.Parameter.empty else parameter.default
    return _Argument(name, list(parameters).index(name) if positional else None, default)


def _function(task_name: str, key: Any) -> Arguments:
    function = key.__func__ if isinstance(key, staticmethod) else key
    if not callable(function):
        raise InvalidTask(
            f"task {task_name!r}: its key is a {type(key).__name__}; it must be the name of an argument or a function"
        )
    if not isinstance(key, staticmethod) and _first_parameter(function) in ("self", "cls"):
        raise InvalidTask(
            f"task {task_name!r}: its key function gets the task's arguments only, without `self`; "
            "write `key = lambda order: order['customer']`, or put @staticmethod above `def key(order)`"
        )

    def take(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return function(*args, **kwargs)

    return take


def _first_parameter(function: Callable[..., Any]) -> str | None:
    try:
        return next(iter(inspect.signature(function).parameters), None)
    except ValueError:  # some builtins have no signature
        return None


class KeyedTasks:
    """The key specs of an app's tasks, each computed once. Any thread may use it."""

    def __init__(self, registry: Callable[[], Mapping[str, Any]]) -> None:
        self._registry = registry
        # Two threads may compute the same spec. The results are equal, so it does not matter which one stays.
        self._specs: dict[str, tuple[Any, KeySpec | None]] = {}

    def spec_of(self, task: Any) -> KeySpec | None:
        """Return the spec of a task, or None for a task without a key.

        Raises:
            InvalidTask: see `compile_spec`.
        """
        known = self._specs.get(task.name)
        if known is None or known[0] is not task:  # another task may have been registered under this name
            known = self._specs[task.name] = (task, compile_spec(task))
        return known[1]

    def spec_for(self, name: str) -> KeySpec | None:
        """Return the spec of the task registered under a name; None if it has no key or does not exist.

        Raises:
            InvalidTask: see `compile_spec`.
        """
        task = self._registry().get(name)
        return None if task is None else self.spec_of(task)

    def all(self) -> Mapping[str, KeySpec]:
        """Return the specs of all registered keyed tasks, by name. This checks every task.

        Raises:
            InvalidTask: see `compile_spec`.
        """
        found = {name: self.spec_of(task) for name, task in list(self._registry().items())}
        return {name: spec for name, spec in found.items() if spec is not None}
